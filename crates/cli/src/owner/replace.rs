//! `polis owner replace`.

use std::process::ExitCode;

use polis_control::{Client, ClientError, OwnerProposed};

use super::{failure, read_key};
use crate::arguments::ReplaceArguments;
use crate::failure::Failure;
use crate::local::{AskFailure, within_timeout};
use crate::node_status::runtime;
use crate::shell;
use crate::view::print;

pub(super) fn run(arguments: &ReplaceArguments) -> Result<ExitCode, Failure> {
    let key = read_key(&arguments.owner_key).map_err(|error| failure(&error, &arguments.owner_key))?;
    let root = &arguments.root;
    let proposed = runtime()?.block_on(within_timeout(Client::propose_owner(root, &key.to_string())));
    let proposed = proposed.map_err(|failure| match failure {
        AskFailure::Client(error @ ClientError::NotRunning { .. }) => {
            Failure::failed(format!("the node at {} did not propose the new owner", root.display()))
                .because(&error)
                .hint("a proposal is made by a consensus member that runs; start it, or run this on another one")
        }
        AskFailure::Client(_) | AskFailure::TimedOut => failure.into(),
    })?;
    let directory = arguments.owner_key.parent().filter(|parent| !parent.as_os_str().is_empty());
    let config = directory.map(|directory| format!(" --config {}", shell::quote(directory))).unwrap_or_default();
    print(&text(&proposed, &key.to_string(), &config))?;
    Ok(ExitCode::SUCCESS)
}

fn text(proposed: &OwnerProposed, key: &str, config: &str) -> String {
    if proposed.replaced {
        return format!(
            "the cluster belongs to the key {key} now; get its certificate: polis cluster takeownership{config} --endpoints \
             ADDR\n"
        );
    }
    format!(
        "{} of {} consensus members have proposed the key {key}; run the same command on another consensus member\n",
        proposed.proposals, proposed.needed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_to_be_done() {
        let one = OwnerProposed { proposals: 1, needed: 2, replaced: false };
        assert_eq!(
            text(&one, "KEY", ""),
            "1 of 2 consensus members have proposed the key KEY; run the same command on another consensus member\n"
        );
        let two = OwnerProposed { proposals: 2, needed: 2, replaced: true };
        assert!(text(&two, "KEY", " --config D").contains("polis cluster takeownership --config D --endpoints ADDR"));
    }
}
