//! `polis node peers set`.

use std::process::ExitCode;

use polis_control::{Client, ClientError, MAX_PEERS, NodeFiles, Peer};

use super::arguments::{PeersCommand, SetPeersArguments};
use super::{AskFailure, files_failure, within_timeout};
use crate::failure::Failure;
use crate::node_status::runtime;
use crate::view::{print, safe};

pub(super) fn run(PeersCommand::Set(arguments): &PeersCommand, files: &dyn NodeFiles) -> Result<ExitCode, Failure> {
    let SetPeersArguments { root, peers, none: _ } = arguments;
    if peers.len() > MAX_PEERS {
        return Err(Failure::usage(format!("{} peers were given, and a node takes {MAX_PEERS} at most", peers.len()))
            .hint("give those that run consensus members; from them it learns of the others"));
    }
    let told = runtime()?.block_on(within_timeout(Client::set_peers(root, peers.clone())));
    let (peers, when) = match told {
        Ok(peers) => (peers, "from now on"),
        Err(AskFailure::Client(ClientError::NotRunning { .. })) => {
            files.set_peers(root, peers).map_err(|error| files_failure(&error))?;
            (peers.clone(), "from its next start on, as it does not run")
        }
        Err(failure) => return Err(failure.into()),
    };
    print(&safe(&describe(&peers, when)))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(peers: &[Peer], when: &str) -> String {
    if peers.is_empty() {
        return format!("The node looks for others without a hint, {when}.\n");
    }
    let mut text = format!("The node looks for others here too, {when}:\n");
    for peer in peers {
        text.push_str(&format!("  {}  {}\n", peer.node_id, peer.address));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said() {
        assert_eq!(describe(&[], "from now on"), "The node looks for others without a hint, from now on.\n");
        let peer = "metropolis-00112233445566778899aabbccddeeff=192.0.2.1".parse().unwrap();
        assert_eq!(
            describe(&[peer], "from now on"),
            "The node looks for others here too, from now on:\n  metropolis-00112233445566778899aabbccddeeff  192.0.2.1\n"
        );
    }
}
