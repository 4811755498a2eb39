//! The command line of the commands for the node on this machine.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use polis_control::Peer;

use crate::address;

/// Commands for the node on this machine, whether it runs or not.
#[derive(Debug, Subcommand)]
pub(crate) enum LocalCommand {
    /// Tell a node where others are
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example:\n  polis node peers set --root /var/lib/polis metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877=192.0.2.11"
    )]
    Peers(PeersCommand),
    Reset(ResetArguments),
    Report(ReportArguments),
    InstallUnit(InstallUnitArguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeersCommand {
    Set(SetPeersArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Say where other nodes are now, instead of what was said before",
    long_about = "Say where other nodes are now, instead of what was said before.\n\n\
        Nodes find each other by themselves while they see each other, or a quorum of their cluster. This is for when all of \
        them have moved at once. An address is a hint: who really is there shows by its key. A node that runs uses it at \
        once, one that does not at its next start.",
    after_help = "Examples:\n  \
        polis node peers set --root /var/lib/polis metropolis-5c1f0d6e0d9b1b5a8f3e2d1c0b9a8877=192.0.2.11\n  \
        polis node peers set --root /var/lib/polis --none"
)]
pub(crate) struct SetPeersArguments {
    /// Root directory of the node
    #[arg(long, value_name = "DIR", env = "POLIS_ROOT")]
    pub(crate) root: PathBuf,
    /// Node and IP address; may be given several times, also for the same node
    #[arg(value_name = "ID=ADDR", required_unless_present = "none", conflicts_with = "none")]
    pub(crate) peers: Vec<Peer>,
    /// Forget what was said before
    #[arg(long)]
    pub(crate) none: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Delete a node that does not run, from any state",
    long_about = "Delete a node that does not run, from any state, so that its directory can be used for a new one.\n\n\
        It shows what will be deleted and asks. Only what belongs to the node is deleted: files of others stay and are named, \
        and so are node parameters that somebody put there. The cluster is not asked: a node that it knows goes on being \
        listed until `polis node delete`, and a consensus member goes on counting for the quorum until its role is taken \
        away. If it is cut off, repeat it: what is left does not start.",
    after_help = "Example:\n  polis node reset --root /var/lib/polis"
)]
pub(crate) struct ResetArguments {
    /// Root directory of the node
    #[arg(long, value_name = "DIR", env = "POLIS_ROOT")]
    pub(crate) root: PathBuf,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Write everything that helps to see what is wrong with a node to one file",
    long_about = "Write everything that helps to see what is wrong with a node to one file that can be sent to somebody.\n\n\
        In it are status and conditions, the tree of runnables, the newest lines of all logs, versions, the consensus \
        member's status, metrics, and the names and sizes of files. Whatever has the form of a key or a token is taken out. \
        A node that does not run has less to tell, and what it wrote down last is told instead.",
    after_help = "Example:\n  polis node report --root /var/lib/polis -o report.json"
)]
pub(crate) struct ReportArguments {
    /// Root directory of the node
    #[arg(long, value_name = "DIR", env = "POLIS_ROOT")]
    pub(crate) root: PathBuf,
    /// File to write, which must not exist; - is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    about = "Have systemd run a node on this machine",
    long_about = "Write a systemd unit that runs a node on this machine.\n\n\
        A unit that is there and says something else is not overwritten. Nothing is started; the next command is printed.",
    after_help = "Examples:\n  \
        polis node install-unit --root /var/lib/polis --parameters /etc/polis/node.pb\n  \
        polis node install-unit --print"
)]
pub(crate) struct InstallUnitArguments {
    /// Root directory of the node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/polis")]
    pub(crate) root: PathBuf,
    /// NodeParameters file for the first start
    #[arg(long, value_name = "FILE")]
    pub(crate) parameters: Option<PathBuf>,
    /// Address to serve on; without it that of the default route
    #[arg(long, value_name = "IP", value_parser = address::parse)]
    pub(crate) address: Option<IpAddr>,
    /// The etcd binary; without it the one in PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) etcd: Option<PathBuf>,
    /// Where another node is; may be given several times
    #[arg(long = "peer", value_name = "ID=ADDR")]
    pub(crate) peers: Vec<Peer>,
    /// User that the node runs as; without it root
    ///
    /// The root directory must be this user's, and the TPM, if it is used, readable for it. Encrypted data are mounted by
    /// fusermount3, and only the node sees the mount.
    #[arg(long, value_name = "USER", value_parser = unit_word)]
    pub(crate) user: Option<String>,
    /// Name of the unit, without `.service`
    #[arg(long, value_name = "NAME", default_value = "polis", value_parser = unit_word)]
    pub(crate) name: String,
    /// Directory of units
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    pub(crate) directory: PathBuf,
    /// Print the unit and write nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Overwrite a unit that says something else
    #[arg(long)]
    pub(crate) force: bool,
}

/// Longest name of a unit or a user, in bytes: systemd takes names of 255 with their suffix.
const MAX_WORD_LENGTH: usize = 200;

/// A name that needs no quoting in a unit or in the name of its file.
fn unit_word(text: &str) -> Result<String, String> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "_-.@".contains(character);
    if text.is_empty() || text.len() > MAX_WORD_LENGTH || !text.chars().all(plain) || text.starts_with(['-', '.']) {
        return Err("it may have letters, digits and _ - . @, and does not begin with - or .".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_quoting() {
        for (text, valid) in
            [("polis", true), ("polis@2", true), ("", false), ("../x", false), ("a b", false), ("-x", false)]
        {
            assert_eq!(unit_word(text).is_ok(), valid, "{text:?}");
        }
    }
}
