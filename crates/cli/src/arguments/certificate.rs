//! `polis certificate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ConfigurationArguments;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = "Example:\n  polis certificate export --dir ./prometheus-tls")]
pub(crate) struct CertificateArguments {
    #[command(subcommand)]
    pub(crate) command: CertificateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertificateCommand {
    /// Write the owner's key and certificate in the forms that other programs read
    #[command(
        long_about = "Write the owner's key and certificate in the forms that other programs read.\n\n\
            key.pem (PKCS#8, readable for you only), certificate.pem and ca.pem.\n\n\
            The key is the owner's own: whoever can read it can do everything that you can, delete nodes and take the cluster over \
            included. There is no user who may only look. Give it to a machine for monitoring only if you trust that machine like your \
            own: in a directory that nobody but the monitoring's user can read, and in no backup and no image. When it may have been \
            read by others, `polis owner rotate` makes it worthless.",
        after_help = "Example:\n  \
            polis certificate export --dir ./tls && openssl s_client -connect 192.0.2.10:7840 \\\n      \
            -key tls/key.pem -cert tls/certificate.pem -CAfile tls/ca.pem"
    )]
    Export {
        /// Directory to write to; made if it is not there
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Replace files that are there with another content
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        configuration: ConfigurationArguments,
    },
}
