//! `polis node reset`.

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polis_control::{EnrolmentPhase, NodeFiles, ResetPlan};

use super::arguments::ResetArguments;
use super::files_failure;
use crate::failure::Failure;
use crate::shell;
use crate::view::{print, safe};

pub(super) fn run(arguments: &ResetArguments, files: &dyn NodeFiles) -> Result<ExitCode, Failure> {
    let ResetArguments { root, yes } = arguments;
    let reset = files.reset(root).map_err(|error| files_failure(&error))?;
    let plan = reset.plan().clone();
    print(&safe(&describe(root, &plan)))?;
    if plan.items.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "nothing was deleted: there is nobody to ask, as the standard input is no terminal",
            )
            .hint(format!("add --yes: polis node reset --root {} --yes", shell::quote(root))));
        }
        if !confirmed(&mut io::stdin().lock(), &mut io::stderr())? {
            return Err(Failure::failed("nothing was deleted"));
        }
    }
    let outcome = reset.run().map_err(|error| files_failure(&error))?;
    print(&safe(&done(root, &plan, &outcome.stays)))?;
    Ok(ExitCode::SUCCESS)
}

fn confirmed(input: &mut impl BufRead, output: &mut impl Write) -> Result<bool, Failure> {
    let failed =
        |error: io::Error| Failure::failed("nothing was deleted: your answer could not be read").because(&error);
    write!(output, "Delete all of this? It cannot be undone. [y/N] ").and_then(|()| output.flush()).map_err(failed)?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn describe(root: &Path, plan: &ResetPlan) -> String {
    let root = root.display();
    if plan.items.is_empty() {
        let mut text = format!("There is nothing of a node at {root}.\n");
        text.push_str(&stays(&plan.stays));
        return text;
    }
    let mut text = match (&plan.node_id, plan.phase) {
        (Some(node), Some(phase)) => format!("The node {node} at {root} will be deleted. {}\n", standing(plan, phase)),
        (Some(node), None) => format!("The node {node} at {root} will be deleted.\n"),
        (None, _) => format!("The node at {root} will be deleted. It cannot be told which node it is.\n"),
    };
    if let Some(problem) = &plan.journal_problem {
        text.push_str(&format!("Its journal cannot be read: {problem}\n"));
    }
    if plan.consensus_member {
        text.push_str(
            "It has a copy of its cluster's state. If the cluster still counts it as a consensus member, it is one less for the \
             quorum:\ntake the role away first, where the cluster can be asked (`polis node remove role ConsensusMember`).\n",
        );
    }
    text.push('\n');
    let column = plan.items.iter().map(|item| item.path.display().to_string().chars().count()).max().unwrap_or(0);
    for item in &plan.items {
        text.push_str(&format!("  delete  {:column$}  {}\n", item.path.display(), item.what));
    }
    text.push_str(&stays(&plan.stays));
    text.push('\n');
    text
}

fn standing(plan: &ResetPlan, phase: EnrolmentPhase) -> String {
    match (phase, &plan.cluster_id) {
        (EnrolmentPhase::Enrolled, Some(cluster)) => format!("It is a member of the cluster {cluster}."),
        (EnrolmentPhase::Enrolled, None) => "It is a member of a cluster.".into(),
        (EnrolmentPhase::Removed, _) => "Its cluster has removed it, or an earlier reset was cut off.".into(),
        (EnrolmentPhase::None | EnrolmentPhase::Formattable | EnrolmentPhase::Formatted, _) => {
            "It is not yet a member of a cluster.".into()
        }
    }
}

fn stays(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("  stays   {}, as it is not the node's\n", path.display())).collect()
}

fn done(root: &Path, plan: &ResetPlan, left: &[PathBuf]) -> String {
    let mut text = format!("Deleted. The next start at {} is that of a new node", root.display());
    text.push_str(match left.iter().any(|path| path.ends_with("esp/polis/parameters.pb")) {
        true => ", by the parameters that are still there.\n",
        false => ".\n",
    });
    let was_member = plan.phase == Some(EnrolmentPhase::Enrolled);
    if let Some(node) = plan.node_id.filter(|_| was_member) {
        text.push_str(&format!(
            "Its cluster still lists it. Where the cluster can be asked:\n  polis node delete {node} --bypass-has-roles --bypass-not-decommissioned\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use polis_control::ResetItem;

    use super::*;

    fn plan() -> ResetPlan {
        ResetPlan {
            node_id: Some("metropolis-00112233445566778899aabbccddeeff".parse().unwrap()),
            cluster_id: Some("21fe31dfa154a261626bf854046fd227".into()),
            phase: Some(EnrolmentPhase::Enrolled),
            journal_problem: None,
            consensus_member: false,
            items: vec![
                ResetItem { path: "/n/data/partition".into(), what: "the marker" },
                ResetItem { path: "/n/esp/polis/journal.0".into(), what: "the journal" },
            ],
            stays: vec!["/n/notes.txt".into()],
        }
    }

    #[test]
    fn all_that_goes_and_all_that_stays_is_shown() {
        assert_eq!(
            describe(Path::new("/n"), &plan()),
            "\
The node metropolis-00112233445566778899aabbccddeeff at /n will be deleted. It is a member of the cluster 21fe31dfa154a261626bf854046fd227.

  delete  /n/data/partition       the marker
  delete  /n/esp/polis/journal.0  the journal
  stays   /n/notes.txt, as it is not the node's

"
        );
        let member = describe(Path::new("/n"), &ResetPlan { consensus_member: true, ..plan() });
        assert!(member.contains("one less for the quorum"), "{member}");
        let unknown = ResetPlan {
            node_id: None,
            cluster_id: None,
            phase: None,
            journal_problem: Some("both are torn".into()),
            ..plan()
        };
        let unknown = describe(Path::new("/n"), &unknown);
        assert!(unknown.contains("cannot be told which node it is") && unknown.contains("both are torn"), "{unknown}");
        let nothing = ResetPlan { items: vec![], ..plan() };
        assert!(describe(Path::new("/n"), &nothing).starts_with("There is nothing of a node at /n.\n"));
    }

    #[test]
    fn afterwards_the_next_step_is_named() {
        let text = done(Path::new("/n"), &plan(), &[]);
        assert!(text.contains("polis node delete metropolis-00112233445566778899aabbccddeeff --bypass"), "{text}");
        let new = ResetPlan { phase: Some(EnrolmentPhase::Formatted), ..plan() };
        let text = done(Path::new("/n"), &new, &["/n/esp/polis/parameters.pb".into()]);
        assert_eq!(
            text,
            "Deleted. The next start at /n is that of a new node, by the parameters that are still there.\n"
        );
    }

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, expect) in
            [("y\n", true), ("Yes\n", true), ("\n", false), ("n\n", false), ("", false), ("ye\n", false)]
        {
            assert_eq!(confirmed(&mut answer.as_bytes(), &mut Vec::new()).unwrap(), expect, "{answer:?}");
        }
    }
}
