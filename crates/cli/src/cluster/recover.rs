//! `polis cluster recover`.

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use polis_control::{NodeFiles, NodeFilesError, RecoverError, RecoverFound, RecoverReport, RecoverRequest};
use serde_json::json;

use crate::arguments::{OutputFormat, RecoverArguments};
use crate::failure::Failure;
use crate::recovery_key::read_words;
use crate::shell;
use crate::view::{Progress, print, print_value, safe};

pub(super) fn run(arguments: &RecoverArguments, files: &dyn NodeFiles) -> Result<ExitCode, Failure> {
    let RecoverArguments { root, data_device, snapshot, recovery, others_are_gone, etcd, yes, output } = arguments;
    let recovery_key = recovery.as_deref().map(read_words).transpose()?;
    let request = RecoverRequest {
        root: root.clone(),
        etcd: etcd.clone(),
        snapshot: snapshot.clone(),
        data_device: data_device.clone(),
        recovery_key,
        others_are_gone: *others_are_gone,
    };
    let recovery = files.recover(&request).map_err(|error| failure(&error))?;
    let found = recovery.found().clone();
    let described = safe(&describe(&found)).into_owned();
    match output {
        OutputFormat::Table | OutputFormat::Wide => print(&described)?,
        OutputFormat::Json | OutputFormat::Yaml => {}
    }
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "nothing was done: there is nobody to ask, as the standard input is no terminal",
            )
            .hint("add --yes to the same command"));
        }
        let shown = match output {
            OutputFormat::Table | OutputFormat::Wide => "",
            // Whoever answers sees it, and the document is alone where it goes.
            OutputFormat::Json | OutputFormat::Yaml => &described,
        };
        if !confirmed(shown, &mut io::stdin().lock(), &mut io::stderr())? {
            return Err(Failure::failed("nothing was done"));
        }
    }
    let progress = Progress::start();
    let report = recovery.run(&|step| progress.line(step)).map_err(|error| failure(&error))?;
    print_value(*output, &document(&found, &report), |_| done(&report, &shell::quote(root)))?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: &RecoverError) -> Failure {
    let of = |error: &NodeFilesError| {
        let failure = Failure::of(error);
        match &error.hint {
            Some(hint) => failure.hint(hint.clone()),
            None => failure,
        }
    };
    match error {
        RecoverError::Refused(error) => of(error).refused(),
        RecoverError::Missing(error) => of(error).missing(),
        RecoverError::Failed(error) => of(error),
    }
}

fn confirmed(shown: &str, input: &mut impl BufRead, output: &mut impl Write) -> Result<bool, Failure> {
    let failed = |error: io::Error| Failure::failed("nothing was done: your answer could not be read").because(&error);
    write!(output, "{shown}Make this node a cluster of its own? [y/N] ")
        .and_then(|()| output.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn describe(found: &RecoverFound) -> String {
    let RecoverFound { node_id, cluster_id, members, asked, age, bytes, revision, snapshot } = found;
    let mut text = format!("The node {node_id} of the cluster {cluster_id} will be its only consensus member.\n");
    match snapshot {
        Some(file) => {
            text.push_str(&format!("  state     the snapshot {}, {} MiB", file.display(), bytes.div_ceil(1 << 20)))
        }
        None => text.push_str(&format!("  state     what its own member has, {} MiB", bytes.div_ceil(1 << 20))),
    }
    match age {
        Some(age) => text.push_str(&format!(", written last {} ago\n", rough(*age))),
        None => text.push_str(", written last in the future of this machine's clock\n"),
    }
    text.push_str(&match (revision, snapshot) {
        (Some(revision), Some(_)) => format!("  revision  {revision}\n"),
        (Some(revision), None) => format!("  revision  {revision}, or what little its log has beyond that\n"),
        (None, _) => "  revision  cannot be read\n".to_owned(),
    });
    if members.is_empty() {
        text.push_str("  members   not known here\n");
    }
    for member in members {
        let what = if member == node_id { "stays" } else { "is no member any more; it may join again as a node" };
        text.push_str(&format!("  member    {member}: {what}\n"));
    }
    for (address, outcome) in asked {
        text.push_str(&format!("  asked     {address}: {outcome}\n"));
    }
    text.push_str(
        "What was acknowledged after this state was written is gone. Members that have a quorum among themselves, out of reach from \
         here, go on as a second cluster, and do not follow this one when they reach it again.\n",
    );
    text
}

/// A time that nobody needs to the second.
fn rough(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn done(report: &RecoverReport, root: &str) -> String {
    let RecoverReport { revision, others, with_keys, incarnation, kept } = report;
    let mut text = format!(
        "Recovered: a cluster of one, as of revision {revision} of the state, incarnation {incarnation}. What was acknowledged after that revision \
         is lost.\n"
    );
    if let Some(kept) = kept {
        text.push_str(&format!("The data of before are kept in {}.\n", kept.display()));
    }
    text.push_str(&format!("Next: start the node again (polis node run --root {root}).\n"));
    if !others.is_empty() {
        text.push_str(
            "These nodes were members and are not any more. One that is left becomes a node of this cluster again by itself; give it the \
             role back, or delete it if it is gone:\n",
        );
        for node in others {
            text.push_str(&format!(
                "  polis node add role ConsensusMember {node}\n  polis node delete {node} --bypass-not-decommissioned\n"
            ));
        }
    }
    if !with_keys.is_empty() {
        text.push_str(
            "These nodes have encrypted data, and the state has their keys as of that revision. Whether one has changed its key since then \
             is known to that node alone: it sends the new one by itself when it is open. One that needs its key from the cluster gets the \
             one that is here; where that is too old, the recovery key opens it (polis unlock --recovery -):\n",
        );
        for (node, reported) in with_keys {
            let reported = match reported {
                Some(time) => format!("its last report that is known here is of {}", rfc3339(*time)),
                None => "no report of it is known here".to_owned(),
            };
            text.push_str(&format!("  {node}: {reported}\n"));
        }
    }
    text
}

/// A time as text, in UTC.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "a time that no calendar has".to_owned(), |time| time.to_string())
}

/// What was found, and what was done, for programs.
fn document(found: &RecoverFound, report: &RecoverReport) -> serde_json::Value {
    let asked = found.asked.iter().map(|(address, outcome)| json!({"address": address, "outcome": outcome}));
    let with_keys = report.with_keys.iter();
    let with_keys =
        with_keys.map(|(node, time)| json!({"node_id": node.to_string(), "last_report": time.map(rfc3339)}));
    json!({
        "node_id": found.node_id.to_string(),
        "cluster_id": found.cluster_id,
        "found": {
            "members": found.members.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "asked": asked.collect::<Vec<_>>(),
            "age_seconds": found.age.map(|age| age.as_secs()),
            "bytes": found.bytes,
            "revision": found.revision,
            "snapshot": found.snapshot,
        },
        "recovered": {
            "revision": report.revision,
            "incarnation": report.incarnation,
            "members_before": report.others.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "nodes_with_keys": with_keys.collect::<Vec<_>>(),
            "data_before": report.kept,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use polis_identity::{NodeId, NodeKey};

    use super::*;

    fn nodes() -> [NodeId; 2] {
        [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()))
    }

    #[test]
    fn what_will_be_done_is_said_with_what_is_known() {
        let [own, other] = nodes();
        let found = RecoverFound {
            node_id: own,
            cluster_id: "c".into(),
            members: vec![own, other],
            asked: vec![("10.0.0.2".into(), "connection refused".into())],
            age: Some(Duration::from_secs(7200)),
            bytes: 1,
            revision: Some(41),
            snapshot: None,
        };
        let text = describe(&found);
        for part in [
            format!("{own}: stays"),
            format!("{other}: is no member any more"),
            "10.0.0.2: connection refused".into(),
            "1 MiB, written last 2 h ago".into(),
            "revision  41, or".into(),
            "second cluster".into(),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        let found = RecoverFound { members: vec![], age: None, snapshot: Some("/s".into()), ..found };
        assert!(describe(&found).contains("revision  41\n"));
        let found = RecoverFound { revision: None, ..found };
        let text = describe(&found);
        assert!(text.contains("revision  cannot be read"), "{text}");
        assert!(text.contains("the snapshot /s") && text.contains("not known here"), "{text}");
    }

    #[test]
    fn what_was_done_is_said_with_what_is_next() {
        let [other, worker] = nodes();
        let with_keys = vec![(other, None), (worker, Some(UNIX_EPOCH + Duration::from_secs(1_000_000_000)))];
        let report =
            RecoverReport { revision: 42, others: vec![other], with_keys, incarnation: 2, kept: Some("/k".into()) };
        let text = done(&report, "/r");
        for part in [
            "revision 42".to_owned(),
            "/k".to_owned(),
            "polis node run --root /r".to_owned(),
            format!("node add role ConsensusMember {other}"),
            format!("{other}: no report of it is known here"),
            format!("{worker}: its last report that is known here is of 2001-09-09T01:46:40Z"),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        let report = RecoverReport { with_keys: vec![], ..report };
        assert!(!done(&report, "/r").contains("encrypted"));
    }

    #[test]
    fn programs_are_told_the_same() {
        let [own, other] = nodes();
        let found = RecoverFound {
            node_id: own,
            cluster_id: "c".into(),
            members: vec![own],
            asked: vec![("10.0.0.2".into(), "closed".into())],
            age: None,
            bytes: 1,
            revision: Some(41),
            snapshot: None,
        };
        let with_keys = vec![(other, Some(UNIX_EPOCH))];
        let report = RecoverReport { revision: 42, others: vec![other], with_keys, incarnation: 2, kept: None };
        let [own, other] = [own, other].map(|id| id.to_string());
        let expected = json!({
            "node_id": own,
            "cluster_id": "c",
            "found": {
                "members": [own],
                "asked": [{"address": "10.0.0.2", "outcome": "closed"}],
                "age_seconds": null,
                "bytes": 1,
                "revision": 41,
                "snapshot": null,
            },
            "recovered": {
                "revision": 42,
                "incarnation": 2,
                "members_before": [other],
                "nodes_with_keys": [{"node_id": other, "last_report": "1970-01-01T00:00:00Z"}],
                "data_before": null,
            },
        });
        assert_eq!(document(&found, &report), expected);
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, expected) in [("y\n", true), ("YES\n", true), ("\n", false), ("no\n", false), ("", false)] {
            assert_eq!(confirmed("", &mut answer.as_bytes(), &mut Vec::new()).unwrap(), expected, "{answer:?}");
        }
    }

    #[test]
    fn times_are_rough() {
        for (seconds, text) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (400_000, "4 days")] {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
