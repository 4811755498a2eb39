//! `polis recovery-key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputFormat;

#[derive(Debug, Args)]
#[command(
    about = "The key that brings nodes back when neither their TPM nor their cluster does",
    arg_required_else_help = true,
    after_help = "Example:\n  polis recovery-key create -o recovery.pem"
)]
pub(crate) struct RecoveryKeyArguments {
    #[command(subcommand)]
    pub(crate) command: RecoveryKeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecoveryKeyCommand {
    Create(CreateRecoveryKeyArguments),
    Show(ShowRecoveryKeyArguments),
    Verify(VerifyRecoveryKeyArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Make a recovery key: the words to the terminal, the public half to a file",
    long_about = "Make a recovery key: the words to the terminal, the public half to a file.\n\n\
        The private half is 24 words that are shown once and kept by nobody but you. With them, `polis unlock` opens any node of \
        a cluster that has the public half, and `polis cluster recover` reads its snapshots. The public half is no secret: it goes \
        into the parameters of a new cluster, or is set later.",
    after_help = "Example:\n  \
        polis recovery-key create -o recovery.pem\n  \
        polis parameters bootstrap --owner-key ~/.config/metroctl/owner-key.pem --recovery-key recovery.pem -o node.pb\n  \
        polis cluster recovery-key set recovery.pem      # a cluster that is there already"
)]
pub(crate) struct CreateRecoveryKeyArguments {
    /// File for the public half; never overwritten
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Where the words go when the standard output is no terminal: a new file that only you can read, or - for the standard output
    #[arg(long, value_name = "FILE|-")]
    pub(crate) words_to: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    about = "Say which recovery key a public half is of",
    after_help = "Example:\n  polis recovery-key show recovery.pem -o json"
)]
pub(crate) struct ShowRecoveryKeyArguments {
    /// The public half, as `polis recovery-key create` makes it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Form of the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: OutputFormat,
}

#[derive(Debug, Args)]
#[command(
    about = "Check that the words which you have kept are those of a public half",
    long_about = "Check that the words which you have kept are those of a public half.\n\n\
        They are asked for without being shown, and are neither sent nor stored. Do it once right after you have written them \
        down, and again from time to time: words that nobody has read for years may be wrong.",
    after_help = "Example:\n  polis recovery-key verify recovery.pem"
)]
pub(crate) struct VerifyRecoveryKeyArguments {
    /// The public half, as `polis recovery-key create` makes it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The words: a file, or - to be asked for them
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub(crate) words: PathBuf,
}
