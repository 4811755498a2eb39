//! Whether the image that runs has proven itself: a runnable.

use std::time::Duration;

use polis_condition::Severity;
use polis_control::{EnrolmentPhase, NodeState, Status};
use polis_image::slots::Standing;
use polis_supervisor::{Context, RunnableResult, with_causes};
use polis_update::{BootSlots, Facts, Verdict, verdict};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{MachineSlots, OrderError};

/// Name of the condition that the image that runs is on trial.
const ON_TRIAL: &str = "image-on-trial";

/// Name of the condition that it cannot be told or written down which image is good.
const SLOTS_UNCLEAR: &str = "boot-slots-unclear";

/// Pause before slots that could not be read or written are looked at again.
const PAUSE: Duration = Duration::from_secs(30);

/// Conditions that are no fault of the image: that the cluster is not there, and our own.
const NO_FAULT: &[&str] =
    &["cluster-unreachable", "cluster-not-ready", "no-contact-with-leader", "waiting-for-unlock", SLOTS_UNCLEAR];

/// What the trial of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// It is good.
    Over,
    /// It has to prove itself.
    UnderWay,
    /// The machine was started by something else than our boot loader.
    NotOurs,
}

/// Looks after the trial of the image that runs, if it is on trial, and marks it as good once it has proven itself.
pub(crate) async fn keep(context: Context, machine: MachineSlots, status: watch::Receiver<Status>) -> RunnableResult {
    context.healthy();
    loop {
        let trial = match look(&context, &machine).await {
            Ok(Trial::Over) => break,
            Ok(Trial::NotOurs) => {
                context.conditions().raise(
                    SLOTS_UNCLEAR,
                    Severity::Warning,
                    "this machine was not started by an entry of its boot slots, so it cannot be updated",
                    "if it was started from another medium, start it from its own disk",
                );
                break;
            }
            Ok(Trial::UnderWay) => prove(&context, &machine, status.clone()).await,
            Err(error) => Err(error),
        };
        match trial {
            Ok(()) => {}
            Err(OrderError::Busy) => {}
            Err(error) => context.conditions().raise(
                SLOTS_UNCLEAR,
                Severity::Error,
                format!("it cannot be seen to that the image that runs is started again: {}", with_causes(&error)),
                "look at the EFI system partition; until then a restart may go back to the image before",
            ),
        }
        if trial_is_over(&context, &machine).await {
            context.conditions().clear(SLOTS_UNCLEAR);
            break;
        }
        context.unless_cancelled(sleep(PAUSE)).await?;
    }
    context.conditions().clear(ON_TRIAL);
    Err(context.cancelled().await.into())
}

async fn trial_is_over(context: &Context, machine: &MachineSlots) -> bool {
    matches!(look(context, machine).await, Ok(Trial::Over))
}

async fn look(context: &Context, machine: &MachineSlots) -> Result<Trial, OrderError> {
    let slots = machine.0.slots.clone();
    let slots = context.blocking(move || slots.read()).await.map_err(OrderError::Slots)?;
    for damaged in slots.damaged() {
        tracing::warn!(
            "the entry {} of the boot loader is damaged and counts for nothing: {}",
            damaged.name,
            damaged.error
        );
    }
    let selected = machine.selected()?;
    let running = selected.0.as_deref().and_then(|name| slots.running(name));
    Ok(match running.map(|entry| entry.standing) {
        Some(Standing::Good) => Trial::Over,
        Some(Standing::OnTrial { .. } | Standing::Spent { .. }) => Trial::UnderWay,
        None => Trial::NotOurs,
    })
}

/// Waits until the image has proven itself, and writes that down.
async fn prove(
    context: &Context,
    machine: &MachineSlots,
    mut status: watch::Receiver<Status>,
) -> Result<(), OrderError> {
    context.conditions().raise(
        ON_TRIAL,
        Severity::Info,
        "the image that runs is new and has not proven itself yet: a restart now goes back to the one before",
        "nothing needs to be done: it is kept once the node has been in its cluster for a while, or is sound without it",
    );
    let (mut joined_since, mut sound_since) = (None, None);
    let reason = loop {
        let facts = facts(&status.borrow_and_update());
        let now = Instant::now();
        let lasting = |since: &mut Option<Instant>, holds: bool| {
            *since = if holds { Some(since.unwrap_or(now)) } else { None };
            since.map(|since| now - since)
        };
        let joined_for = lasting(&mut joined_since, facts.joined);
        let sound_for = lasting(&mut sound_since, facts.is_sound());
        let wait = match verdict(&facts, joined_for, sound_for) {
            Verdict::Joined => break "the node is in its cluster",
            Verdict::SoundAlone => break "nothing but the cluster is missing",
            Verdict::LookAgain(wait) => Some(wait),
            Verdict::NotYet => None,
        };
        let later = async {
            match wait {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = context.cancelled() => return Ok(()),
            changed = status.changed() => if changed.is_err() { return Ok(()) },
            () = later => {}
        }
    };
    let turn = machine.turn()?;
    machine.change(context, turn, BootSlots::mark_good).await?;
    tracing::info!("the image that runs is good from now on: {reason}");
    Ok(())
}

fn facts(status: &Status) -> Facts {
    Facts {
        failed: status.state == NodeState::Failed,
        joined: status.state == NodeState::Running && status.contact.as_ref().is_some_and(|contact| contact.in_contact),
        keys_open: status.phase == EnrolmentPhase::Enrolled && status.node_id.is_some(),
        has_address: status.address.is_some(),
        own_fault: status
            .conditions
            .iter()
            .any(|condition| condition.severity == Severity::Error && !NO_FAULT.contains(&condition.name.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_the_status() {
        let with = |state: &str, in_contact: bool, conditions: &[(&str, &str)]| -> Facts {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(name, severity)| {
                    serde_json::json!({
                        "name": name, "severity": severity, "since": "2026-01-01T00:00:00Z", "message": "m", "hint": "h",
                    })
                })
                .collect();
            let status = serde_json::json!({
                "state": state, "node_id": "metropolis-00", "phase": "enrolled", "address": "192.0.2.1", "roles": [],
                "contact": { "in_contact": in_contact }, "conditions": conditions, "running": true,
            });
            facts(&serde_json::from_value(status).unwrap())
        };
        let sound = Facts { failed: false, joined: false, keys_open: true, has_address: true, own_fault: false };
        assert_eq!(with("Running", true, &[]), Facts { joined: true, ..sound });
        assert_eq!(with("Running", false, &[("no-contact-with-leader", "error")]), sound);
        assert_eq!(with("Joining", false, &[("waiting-for-unlock", "error"), ("clock", "warning")]), sound);
        assert_eq!(with("Joining", false, &[("data-keys-wrong", "error")]), Facts { own_fault: true, ..sound });
        assert_eq!(with("Failed", false, &[]), Facts { failed: true, ..sound });
    }
}
