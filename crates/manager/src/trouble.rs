//! What kind of trouble an error is, and what is done about each kind.
//!
//! There are two. What can pass or be cured while the node stays up is retried for ever and shown as a condition. What only a
//! human can decide ends the Manager; whatever is on the disk then stays as it is.

use std::error::Error;
use std::future::Future;

use polis_condition::Severity;
use polis_consensus::PeerPkiError;
use polis_curator::{BirthError, StoreError as ClusterStoreError};
use polis_roleserve::StoredMemberError;
use polis_storage::data::DataError;
use polis_storage::journal::{SealError, SealTrouble};
use polis_storage::{DataUnavailable, DiskError, JournalError, LoadError, StoreError, TwoGenerationsError};
use polis_supervisor::{Cancelled, Context, with_causes};

use crate::failure::Failure;
use crate::pace::{Pace, Pauses};

/// What an error means for the node.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It can pass or be cured: shown as a condition, and retried.
    Curable(Curable),
    /// Nothing can be done without a human.
    Final(Failure),
}

/// Trouble that can pass or be cured.
#[derive(Debug)]
pub(crate) struct Curable {
    /// Name of the condition.
    pub(crate) condition: &'static str,
    /// How bad it is.
    pub(crate) severity: Severity,
    /// What is wrong, where and why.
    pub(crate) message: String,
    /// What would cure it.
    pub(crate) hint: String,
    /// When it is tried again.
    pub(crate) pace: Pace,
}

impl Trouble {
    /// Something that does not work now and may work at any moment.
    pub(crate) fn curable(condition: &'static str, message: String, hint: &str) -> Self {
        let (severity, pace) = (Severity::Error, Pace::Soon);
        Self::Curable(Curable { condition, severity, message, hint: hint.to_owned(), pace })
    }

    /// The trouble with a record in two generations; `what` is said when no disk is at fault.
    pub(crate) fn of_generations(error: TwoGenerationsError, what: &'static str) -> Self {
        of_disk_or_final(error, TwoGenerationsError::disk_error, what)
    }
}

/// Why the work of the Manager ended before Running.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The node is being stopped.
    Cancelled,
    /// The node has failed.
    Failed(Failure),
}

impl From<Cancelled> for Ended {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Repeats `operation` until it succeeds, with a growing pause. While it fails for a reason that can be cured, a condition says
/// so.
///
/// # Errors
///
/// When its trouble is final, or the node is being stopped.
pub(crate) async fn until_cured<T, F>(context: &Context, mut operation: impl FnMut() -> F) -> Result<T, Ended>
where
    F: Future<Output = Result<T, Trouble>>,
{
    let mut pauses = Pauses::default();
    let mut raised: Option<&'static str> = None;
    loop {
        let outcome = context.unless_cancelled(operation()).await?;
        let now = match &outcome {
            Err(Trouble::Curable(Curable { condition, severity, message, hint, pace: _ })) => {
                context.conditions().raise(condition, *severity, message.clone(), hint.clone());
                Some(*condition)
            }
            Err(Trouble::Final(_)) | Ok(_) => None,
        };
        if let Some(old) = raised
            && now != Some(old)
        {
            context.conditions().clear(old);
        }
        raised = now;
        match outcome {
            Ok(value) => return Ok(value),
            Err(Trouble::Final(failure)) => return Err(Ended::Failed(failure)),
            Err(Trouble::Curable(Curable { pace, .. })) => {
                let pause = pauses.next(pace, rand::random());
                context.unless_cancelled(tokio::time::sleep(pause)).await?;
            }
        }
    }
}

/// The trouble of an error that has a failed disk operation at its root, or is final.
fn of_disk_or_final<E>(error: E, disk: impl FnOnce(&E) -> Option<&DiskError>, what: &'static str) -> Trouble
where
    E: Error + Send + Sync + 'static,
{
    let Some(disk) = disk(&error) else {
        return Trouble::Final(Failure::Disk { what, source: error.into() });
    };
    let (condition, hint) = if disk.is_full() {
        ("disk-full", "make room on this file system; the node goes on by itself")
    } else if disk.is_forbidden() {
        ("storage-not-writable", "give the node's user write permission there; the node goes on by itself")
    } else {
        ("storage-failing", "see to the disk; the node goes on by itself once it works")
    };
    Trouble::curable(condition, with_causes(&error), hint)
}

impl From<DiskError> for Trouble {
    fn from(error: DiskError) -> Self {
        of_disk_or_final(error, |error| Some(error), "the disk cannot be used")
    }
}

/// The trouble of a seal. All but one kind of it is cured by somebody, and the node waits for that, whatever it is about to do (window
/// W16): it never formats, and never takes another kind of seal instead.
pub(crate) fn of_seal(error: &SealError) -> Trouble {
    let (condition, hint) = match error.trouble {
        SealTrouble::NoDevice => (
            "seal-no-tpm",
            "the keys of this node are sealed by a TPM: switch it on in the firmware, or put the disk back into its machine",
        ),
        SealTrouble::NotAnswering => (
            "seal-tpm-not-answering",
            "the TPM may be busy; if it stays so, switch the machine off and on, and see whether another program holds the TPM; a new \
             node of a cluster that does not require TPMs can do without it, once it is switched off in the firmware",
        ),
        SealTrouble::OtherDevice => (
            "seal-other-tpm",
            "the keys of this node were sealed by another TPM, or this one was cleared: put the disk back into its machine; if the TPM \
             was cleared, this node cannot come back: delete it and let it in anew with a root of its own",
        ),
        SealTrouble::OtherBootState => (
            "seal-other-boot-state",
            "Secure Boot or its keys are not as they were when the keys of this node were sealed: bring that state back; then change \
             what you have to, and renew the seal before the next start with `polis node reseal`",
        ),
        SealTrouble::HelperMissing => (
            "seal-helper-missing",
            "install the program polis-tpm beside polis, or in PATH; the node goes on by itself",
        ),
        SealTrouble::NotPermitted => (
            "seal-tpm-forbidden",
            "let the user of the node use the TPM: add it to the group of the device file (tss on Debian), and start the node again",
        ),
        SealTrouble::Damaged => {
            return Trouble::Final(Failure::Disk {
                what: "the seal of the enrolment journal is damaged",
                source: with_causes(error).into(),
            });
        }
    };
    Trouble::curable(condition, with_causes(error), hint)
}

impl From<SealError> for Trouble {
    fn from(error: SealError) -> Self {
        of_seal(&error)
    }
}

impl From<DataUnavailable> for Trouble {
    fn from(error: DataUnavailable) -> Self {
        let hint = format!("{}; the node goes on by itself once it is there", error.remedy);
        Self::curable("storage-not-available", error.to_string(), &hint)
    }
}

impl From<JournalError> for Trouble {
    fn from(error: JournalError) -> Self {
        if let JournalError::Unseal { source, .. } | JournalError::Seal { source, .. } = &error {
            return match of_seal(source) {
                // With the file that it is about.
                Self::Curable(curable) => Self::Curable(Curable { message: with_causes(&error), ..curable }),
                Self::Final(_) => {
                    Self::Final(Failure::Disk { what: "the enrolment journal cannot be used", source: error.into() })
                }
            };
        }
        of_disk_or_final(error, JournalError::disk_error, "the enrolment journal cannot be used")
    }
}

impl From<TwoGenerationsError> for Trouble {
    fn from(error: TwoGenerationsError) -> Self {
        Self::of_generations(error, "the roles of this node cannot be used")
    }
}

impl From<LoadError> for Trouble {
    fn from(error: LoadError) -> Self {
        of_disk_or_final(error, LoadError::disk_error, "a file of this node cannot be used")
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        of_disk_or_final(error, StoreError::disk_error, "a file of this node cannot be written")
    }
}

impl From<DataError> for Trouble {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Unavailable { source, .. } => return source.into(),
            DataError::Tool { .. } => {
                return Self::curable(
                    "storage-failing",
                    with_causes(&error),
                    "see what the message says about the tool, and to the disk; the node goes on by itself once it works",
                );
            }
            DataError::WrongKeys { .. } => {
                return Self::curable(
                    "data-keys-wrong",
                    with_causes(&error),
                    "put back what belongs together; the node goes on by itself",
                );
            }
            DataError::Disk(_)
            | DataError::OtherNode { .. }
            | DataError::OtherBackend { .. }
            | DataError::ForeignContent { .. }
            | DataError::NotFormatted { .. }
            | DataError::Marker { .. }
            | DataError::Finish { .. }
            | DataError::Damaged { .. }
            | DataError::NotSupported { .. }
            | DataError::Stopped { .. } => {}
        }
        of_disk_or_final(error, DataError::disk_error, "the data partition cannot be used")
    }
}

impl From<PeerPkiError> for Trouble {
    fn from(error: PeerPkiError) -> Self {
        of_disk_or_final(error, peer_pki_disk_error, "the credentials of the consensus member cannot be used")
    }
}

impl From<StoredMemberError> for Trouble {
    fn from(error: StoredMemberError) -> Self {
        match error {
            StoredMemberError::Credentials(error) => error.into(),
            StoredMemberError::Joining(error) => error.into(),
            StoredMemberError::Record(error) => error.into(),
            StoredMemberError::Look(error) | StoredMemberError::Clear(error) => error.into(),
        }
    }
}

const fn peer_pki_disk_error(error: &PeerPkiError) -> Option<&DiskError> {
    match error {
        PeerPkiError::Load { source } => source.disk_error(),
        PeerPkiError::Store { source } => source.disk_error(),
        PeerPkiError::Invalid { .. } | PeerPkiError::OtherNode { .. } => None,
    }
}

impl From<ClusterStoreError> for Trouble {
    fn from(error: ClusterStoreError) -> Self {
        Self::curable(
            "cluster-state-unavailable",
            with_causes(&error),
            "see the conditions of the consensus member; the node goes on by itself once it answers",
        )
    }
}

impl From<BirthError> for Trouble {
    fn from(error: BirthError) -> Self {
        match error {
            BirthError::Store(error) => error.into(),
            error @ (BirthError::AnotherCluster { .. } | BirthError::Lost { .. } | BirthError::Damaged { .. }) => {
                Self::Final(Failure::Disk { what: "the cluster's state cannot be used", source: error.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use polis_identity::{NodeId, NodeKey};
    use polis_storage::data::KeyOperation;
    use polis_storage::journal::StorageSecurity;
    use polis_storage::simulation::{Failure as DiskFailure, SimulatedDisk};
    use polis_storage::{Disk as _, DiskPath, FILE_MODE};
    use polis_supervisor::testing::Harness;
    use polis_supervisor::{State, runnable};

    use super::*;

    fn disk_error(failure: DiskFailure) -> DiskError {
        let disk = SimulatedDisk::default();
        disk.fail_once(0, failure);
        disk.create_exclusive(&DiskPath::parse("file").unwrap(), FILE_MODE, b"").unwrap_err()
    }

    /// The name of the condition, or nothing when the trouble is final.
    fn condition(trouble: impl Into<Trouble>) -> Option<&'static str> {
        match trouble.into() {
            Trouble::Curable(Curable { condition, message, hint, .. }) => {
                assert!(!message.is_empty() && !hint.is_empty());
                Some(condition)
            }
            Trouble::Final(_) => None,
        }
    }

    #[test]
    fn what_may_pass_is_a_condition_and_what_may_not_is_final() {
        let lost = || ClusterStoreError { operation: "a read", source: io::Error::other("the reply was lost").into() };
        let node = NodeId::of(&NodeKey::generate().public());
        let seal = |trouble| JournalError::Unseal {
            path: "journal.0".into(),
            source: SealError::new(trouble, "it does not open"),
        };
        let unavailable = || DataUnavailable {
            security: StorageSecurity::Encrypted,
            reason: "there is no device mapper".into(),
            remedy: "load it".into(),
        };
        let table = [
            (condition(JournalError::Disk(disk_error(DiskFailure::Full))), Some("disk-full")),
            (condition(JournalError::Disk(disk_error(DiskFailure::Forbidden))), Some("storage-not-writable")),
            (condition(DataError::Disk(disk_error(DiskFailure::Medium))), Some("storage-failing")),
            (condition(seal(SealTrouble::NoDevice)), Some("seal-no-tpm")),
            (condition(seal(SealTrouble::NotAnswering)), Some("seal-tpm-not-answering")),
            (condition(seal(SealTrouble::OtherDevice)), Some("seal-other-tpm")),
            (condition(seal(SealTrouble::OtherBootState)), Some("seal-other-boot-state")),
            (condition(seal(SealTrouble::HelperMissing)), Some("seal-helper-missing")),
            (condition(seal(SealTrouble::NotPermitted)), Some("seal-tpm-forbidden")),
            (condition(seal(SealTrouble::Damaged)), None),
            (condition(JournalError::UnknownSeal { path: "journal.0".into(), found: 9 }), None),
            (condition(unavailable()), Some("storage-not-available")),
            (
                condition(DataError::Unavailable { path: "data".into(), backend: "gocryptfs", source: unavailable() }),
                Some("storage-not-available"),
            ),
            (condition(DataError::WrongKeys { path: "data".into(), backend: "luks" }), Some("data-keys-wrong")),
            (condition(DataError::Damaged { path: "data".into(), backend: "luks", problem: "no header".into() }), None),
            (condition(lost()), Some("cluster-state-unavailable")),
            (condition(BirthError::Store(lost())), Some("cluster-state-unavailable")),
            (condition(BirthError::AnotherCluster { node }), None),
            (condition(BirthError::Lost { node }), None),
            (condition(DataError::NotSupported { operation: KeyOperation::AddKey, backend: "plain" }), None),
            (condition(DataError::NotFormatted { path: "data".into() }), None),
        ];
        for (number, (found, expect)) in table.into_iter().enumerate() {
            assert_eq!(found, expect, "line {number}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_lasts_as_long_as_its_trouble() {
        let causes = ["first", "first", "second"];
        let seen = Arc::new(std::sync::Mutex::new(Vec::<Vec<String>>::new()));
        let harness = Harness::start({
            let seen = seen.clone();
            runnable(move |context: Context| {
                let seen = seen.clone();
                async move {
                    let mut tries = 0;
                    let operation = || {
                        let names =
                            context.conditions().snapshot().into_iter().map(|condition| condition.name).collect();
                        seen.lock().unwrap().push(names);
                        let outcome = causes
                            .get(tries)
                            .map_or(Ok(()), |condition| Err(Trouble::curable(condition, "it fails".into(), "wait")));
                        tries += 1;
                        std::future::ready(outcome)
                    };
                    assert!(until_cured(&context, operation).await.is_ok());
                    assert_eq!(context.conditions().snapshot(), []);
                    context.healthy();
                    context.done();
                    Ok(())
                }
            })
        });
        harness.wait_for("root", State::Done, Duration::from_secs(60)).await;
        harness.finish().await;
        let expect: [&[&str]; 4] = [&[], &["first"], &["first"], &["second"]];
        assert_eq!(
            *seen.lock().unwrap(),
            expect.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>())
        );
    }
}
