//! The command line: every command, argument and help text.
//!
//! One type per group of commands, in the files below. Nothing here does anything.

mod certificate;
mod cluster;
mod completion;
mod connection;
mod dev;
mod fleet;
mod image;
mod node;
mod output;
mod owner;
mod parameters;
mod recovery_key;
mod unlock;

use clap::{CommandFactory as _, Parser, Subcommand};

pub(crate) use certificate::{CertificateArguments, CertificateCommand};
pub(crate) use cluster::{
    ClusterArguments, ClusterCommand, ClusterRecoveryKeyCommand, ConfigureCommand, ConfirmTwoArguments,
    ConsensusArguments, ConsensusCommand, RecoverArguments, ShowClusterArguments, SnapshotCommand, TicketCommand,
};
pub(crate) use completion::{CompletionArguments, ManualArguments, Shell};
pub(crate) use connection::{ConfigurationArguments, ConnectionArguments};
pub(crate) use dev::{
    DevAddArguments, DevArguments, DevCommand, DevDirectory, DevLaunchArguments, DevLogsArguments, DevNodeArguments,
    DevUpArguments, StorageSecurityOfDev,
};
pub(crate) use fleet::{
    ActivationMode, AddCommand, ApproveArguments, Backlog, DecommissionArguments, DeleteArguments, FleetLogsArguments,
    KeyArguments, ListArguments, LogKind, LogOutput, LogSeverity, MetricsArguments, PowerArguments, RebootArguments,
    RemoveCommand, Role, RoleArguments, SetCommand, UpdateNodesArguments,
};
pub(crate) use image::{
    BuildImageArguments, DriversOfImage, ImageArguments, ImageArtifactArguments, ImageCommand, InstallImageArguments,
};
pub(crate) use node::{FleetCommand, NodeCommand, NodeStatusArguments};
pub use node::{LogFormat, NodeRunOptions};
pub(crate) use output::OutputFormat;
pub(crate) use owner::{OwnerArguments, OwnerCommand, ReplaceArguments};
pub(crate) use parameters::{
    BootstrapArguments, ParametersArguments, ParametersCommand, RegisterArguments, ShowArguments, StorageSecurity,
    TpmUse,
};
pub(crate) use recovery_key::{
    CreateRecoveryKeyArguments, RecoveryKeyArguments, RecoveryKeyCommand, ShowRecoveryKeyArguments,
    VerifyRecoveryKeyArguments,
};
pub(crate) use unlock::UnlockArguments;

use crate::local::LocalCommand;

/// A cluster manager for machines that come and go.
#[derive(Debug, Parser)]
#[command(
    name = "polis",
    version = polis_version::text(),
    about = "Polis turns machines into a cluster that survives what happens to machines",
    long_about = "Polis turns machines into a cluster that survives what happens to machines: kills, power cuts, new \
                  addresses, lost disks. One binary is the node and the commands to look after it.",
    after_help = "Examples:\n  \
                  polis dev up                      a cluster on this machine\n  \
                  polis node list                   the nodes of a cluster, and how they are\n  \
                  polis cluster health              what is wrong with it\n  \
                  polis node status --root DIR      what a node says about itself\n  \
                  polis parameters bootstrap -h     tell a machine to create a cluster\n\n\
                  Exit codes: 0 done; 1 failed; 2 wrong usage, or something is missing (the message\n\
                  says how to get it); 3 refused, because it would endanger the cluster.",
    arg_required_else_help = true,
    subcommand_required = true
)]
struct Arguments {
    #[command(subcommand)]
    command: TopCommand,
}

#[derive(Debug, Subcommand)]
enum TopCommand {
    /// Run a node, ask the one that runs on this machine, or look after the nodes of a cluster
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Examples:\n  \
            polis node status --root /var/lib/polis --wait Running\n  \
            polis node list --endpoints 192.0.2.10"
    )]
    Node(NodeCommand),
    /// Look after a cluster
    Cluster(ClusterArguments),
    /// The members that keep the state of a cluster
    Consensus(ConsensusArguments),
    /// Make or read the file that tells a machine which cluster it belongs to
    Parameters(ParametersArguments),
    /// The key of the cluster's owner
    Owner(OwnerArguments),
    RecoveryKey(RecoveryKeyArguments),
    Unlock(UnlockArguments),
    /// The owner's certificate, for other programs
    Certificate(CertificateArguments),
    Dev(DevArguments),
    /// Make disk images of machines, and put them on disks
    Image(ImageArguments),
    /// Print the completion script for a shell
    Completion(CompletionArguments),
    /// Write the manual pages
    #[command(hide = true)]
    Man(ManualArguments),
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// `polis node run`: be a node until told to stop.
    RunNode(NodeRunOptions),
    /// Anything else, for [`crate::run`].
    Command(Command),
}

/// A command that is not `node run`.
#[derive(Debug)]
pub struct Command {
    pub(crate) action: Action,
}

#[derive(Debug)]
pub(crate) enum Action {
    NodeStatus(NodeStatusArguments),
    Local(LocalCommand),
    Fleet(FleetCommand),
    Cluster(ClusterArguments),
    Consensus(ConsensusArguments),
    Certificate(CertificateArguments),
    Parameters(ParametersArguments),
    Owner(OwnerArguments),
    RecoveryKey(RecoveryKeyArguments),
    Unlock(UnlockArguments),
    Dev(DevArguments),
    Image(ImageArguments),
    Completion(CompletionArguments),
    Manual(ManualArguments),
}

impl Invocation {
    /// Parses the command line of this process. Help and version are shown and wrong usage is reported (exit code 2)
    /// right here, without coming back.
    #[must_use]
    pub fn parse() -> Self {
        Arguments::parse().into()
    }
}

impl From<Arguments> for Invocation {
    fn from(arguments: Arguments) -> Self {
        let action = match arguments.command {
            TopCommand::Node(NodeCommand::Run(options)) => return Self::RunNode(options),
            TopCommand::Node(NodeCommand::Status(arguments)) => Action::NodeStatus(arguments),
            TopCommand::Node(NodeCommand::Local(command)) => Action::Local(command),
            TopCommand::Node(NodeCommand::Fleet(command)) => Action::Fleet(command),
            TopCommand::Cluster(arguments) => Action::Cluster(arguments),
            TopCommand::Consensus(arguments) => Action::Consensus(arguments),
            TopCommand::Certificate(arguments) => Action::Certificate(arguments),
            TopCommand::Parameters(arguments) => Action::Parameters(arguments),
            TopCommand::Owner(arguments) => Action::Owner(arguments),
            TopCommand::RecoveryKey(arguments) => Action::RecoveryKey(arguments),
            TopCommand::Unlock(arguments) => Action::Unlock(arguments),
            TopCommand::Dev(arguments) => Action::Dev(arguments),
            TopCommand::Image(arguments) => Action::Image(arguments),
            TopCommand::Completion(arguments) => Action::Completion(arguments),
            TopCommand::Man(arguments) => Action::Manual(arguments),
        };
        Self::Command(Command { action })
    }
}

/// The whole command line as a value, for completions, manual pages and tests.
pub(crate) fn definition() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a line asks for.
    pub(crate) fn parse(line: &str) -> Action {
        match Arguments::try_parse_from(line.split_ascii_whitespace()).map(Invocation::from).unwrap() {
            Invocation::Command(command) => command.action,
            Invocation::RunNode(_) => unreachable!("{line} is another command"),
        }
    }

    /// The arguments of a line `polis node delete ...`.
    pub(crate) fn delete(line: &str) -> DeleteArguments {
        let Action::Fleet(FleetCommand::Delete(arguments)) = parse(line) else {
            unreachable!("{line} is another command")
        };
        arguments
    }

    /// The arguments of a line `polis node logs ...`.
    pub(crate) fn logs(line: &str) -> FleetLogsArguments {
        let Action::Fleet(FleetCommand::Logs(arguments)) = parse(line) else {
            unreachable!("{line} is another command")
        };
        arguments
    }

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }

    #[test]
    fn every_level_has_help_with_an_example() {
        fn check(command: &mut clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{path} has no example");
            assert!(help.contains("polis "), "the example of {path} cannot be pasted");
            assert!(command.get_about().is_some(), "{path} says nothing about itself");
            // The built-in `help` shows the help of the others.
            let own = |command: &&mut clap::Command| !command.is_hide_set() && command.get_name() != "help";
            for subcommand in command.get_subcommands_mut().filter(own) {
                check(subcommand, &path);
            }
        }
        check(&mut definition(), "");
    }

    #[test]
    fn the_name_dashboard_stays_free() {
        assert!(definition().get_subcommands().all(|command| command.get_name() != "dashboard"));
    }

    #[test]
    fn node_run_leads_to_the_node_and_the_rest_to_commands() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).map(Invocation::from);
        let run = parse(
            "polis node run --root /r --parameters p --address 127.1.2.3 --etcd e --etcd-unsafe-version --log json",
        );
        match run.unwrap() {
            Invocation::RunNode(options) => {
                assert_eq!(options.root, std::path::Path::new("/r"));
                assert_eq!(options.address, Some([127, 1, 2, 3].into()));
                assert_eq!(options.log, LogFormat::Json);
                assert!(options.etcd_unsafe_version);
            }
            Invocation::Command(_) => unreachable!("node run is no other command"),
        }
        assert!(matches!(parse("polis dev down --purge").unwrap(), Invocation::Command(_)));
    }
}
