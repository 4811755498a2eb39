//! What everybody may know of the Manager: its state and what it has come to, watched and waited for.

use std::fmt;
use std::sync::Arc;

use polis_identity::{ClusterId, NodeId, PublicKey};
use polis_roleserve::Identity;
use polis_storage::Journal;
use polis_storage::data::Description;
use polis_storage::journal::{Phase, SealKind};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::node::Node;
use crate::state::State;
use crate::unlock::{ColdStart, cold_start};

/// A moment in the life of the Manager.
#[derive(Clone)]
pub struct Progress {
    /// Where it stands.
    pub state: State,
    /// Why it failed; only in the state Failed.
    pub failure: Option<Arc<Failure>>,
    /// Who this node is, once its intent is durable.
    pub node_id: Option<NodeId>,
    /// Which cluster it belongs to, or asks for admission.
    pub cluster_id: Option<ClusterId>,
    /// How far the journal has come; absent while there is no journal.
    pub phase: Option<Phase>,
    /// The backend of the data partition; absent until it is chosen.
    pub data: Option<Description>,
    /// How the journal is sealed; absent while there is none.
    pub seal: Option<SealKind>,
    /// How the node opens its data at its next start; absent until that is decided.
    pub cold_start: Option<ColdStart>,
    /// What the node proves itself with to its cluster, as soon as it has that, which is before it runs.
    pub identity: Option<Arc<Identity>>,
    /// The node, once it runs.
    pub node: Option<Arc<Node>>,
}

/// All but the keys of the identity.
impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, failure, node_id, cluster_id, phase, data, seal, cold_start, identity: _, node } = self;
        formatter
            .debug_struct("Progress")
            .field("state", state)
            .field("failure", failure)
            .field("node_id", node_id)
            .field("cluster_id", cluster_id)
            .field("phase", phase)
            .field("data", data)
            .field("seal", seal)
            .field("cold_start", cold_start)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

/// How the enrolment ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The node runs.
    Running(Arc<Node>),
    /// It does not, for this reason.
    Failed(Arc<Failure>),
}

/// Publishes [`Progress`] and moves the state along the table of transitions, and only along it.
pub(crate) struct Publisher {
    progress: watch::Sender<Progress>,
    /// The identity alone, for those whom nothing else is to wake.
    identity: watch::Sender<Option<Arc<Identity>>>,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        let progress = watch::Sender::new(Progress {
            state: State::New,
            failure: None,
            node_id: None,
            cluster_id: None,
            phase: None,
            data: None,
            seal: None,
            cold_start: None,
            identity: None,
            node: None,
        });
        Self { progress, identity: watch::Sender::new(None) }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn identity(&self) -> watch::Receiver<Option<Arc<Identity>>> {
        self.identity.subscribe()
    }

    /// Says who this node is in its cluster, once and for all: it is the same in every life of the Manager.
    pub(crate) fn identify(&self, identity: Identity) {
        let identity = Arc::new(identity);
        for_the_first_time(&self.identity, |published| published, &identity);
        for_the_first_time(&self.progress, |progress| &mut progress.identity, &identity);
    }

    /// Whether the journal says that the cluster has removed the node.
    pub(crate) fn has_recorded_removal(&self) -> bool {
        matches!(self.progress.borrow().phase, Some(Phase::Removed { .. }))
    }

    pub(crate) fn state(&self) -> State {
        self.progress.borrow().state
    }

    /// Goes to a state that is not final. A transition that is not in the table ends in Failed, with both names.
    pub(crate) fn enter(&self, next: State) -> Result<(), Arc<Failure>> {
        self.transition(next, |_| {})
    }

    /// Goes to Running with what the node has become.
    pub(crate) fn run(&self, node: Arc<Node>) -> Result<(), Arc<Failure>> {
        self.transition(State::Running, |progress| progress.node = Some(node))
    }

    /// Goes to Failed. A node that has failed already keeps its first reason.
    pub(crate) fn fail(&self, failure: Failure) {
        let failure = Arc::new(failure);
        self.progress.send_if_modified(|progress| {
            let changed = progress.state != State::Failed;
            if changed {
                tracing::error!(from = %progress.state, reason = %failure, "the node has failed");
                progress.state = State::Failed;
                progress.failure = Some(failure);
                progress.node = None;
            }
            changed
        });
    }

    /// Records which backend the data partition has.
    pub(crate) fn choose(&self, data: Description) {
        self.progress.send_if_modified(|progress| progress.data.replace(data) != Some(data));
    }

    /// Records how far the journal has come, whom it names, and how it is sealed.
    pub(crate) fn record(&self, journal: &Journal, seal: Option<SealKind>) {
        let node_id = PublicKey::new(journal.node_public_key).ok().as_ref().map(NodeId::of);
        let cluster_id = journal.cluster_id.as_ref().and_then(|id| id.parse().ok());
        self.progress.send_modify(|progress| {
            (progress.node_id, progress.cluster_id) = (node_id, cluster_id);
            progress.phase = Some(journal.phase().clone());
            (progress.seal, progress.cold_start) = (seal, cold_start(journal));
        });
    }

    fn transition(&self, next: State, and: impl FnOnce(&mut Progress)) -> Result<(), Arc<Failure>> {
        let mut illegal = None;
        self.progress.send_modify(|progress| {
            let from = progress.state;
            if from.may_become(next) {
                tracing::info!(from = %from, to = %next, "state changes");
                progress.state = next;
                and(progress);
            } else {
                let failure = Arc::new(Failure::IllegalTransition { from, to: next });
                tracing::error!(from = %from, to = %next, "this transition is not in the table; the node has failed");
                // Failed itself has no way out and keeps its first reason.
                if from != State::Failed {
                    progress.state = State::Failed;
                    progress.failure = Some(failure.clone());
                    progress.node = None;
                }
                illegal = Some(failure);
            }
        });
        illegal.map_or(Ok(()), Err)
    }
}

/// Publishes an identity where there is none yet.
fn for_the_first_time<T>(
    published: &watch::Sender<T>,
    place: impl FnOnce(&mut T) -> &mut Option<Arc<Identity>>,
    identity: &Arc<Identity>,
) {
    published.send_if_modified(|value| {
        let place = place(value);
        let first = place.is_none();
        place.get_or_insert_with(|| identity.clone());
        first
    });
}

/// Waits until the state is Running or Failed; returns at once when it is.
pub(crate) async fn wait_finished(mut progress: watch::Receiver<Progress>) -> Outcome {
    loop {
        {
            let now = progress.borrow_and_update();
            match (&now.node, &now.failure) {
                (_, Some(failure)) => return Outcome::Failed(failure.clone()),
                (Some(node), None) => return Outcome::Running(node.clone()),
                (None, None) => {}
            }
        }
        if progress.changed().await.is_err() {
            return Outcome::Failed(Arc::new(Failure::Gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt as _};

    use super::*;

    /// A publisher in any state, also one that it could not have come to like this.
    fn in_state(state: State) -> Publisher {
        let publisher = Publisher::new();
        publisher.progress.send_modify(|progress| {
            progress.state = state;
            progress.failure = (state == State::Failed).then(|| Arc::new(Failure::Gone));
        });
        publisher
    }

    /// Keeps the fields of all events.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<String>>);

    impl Visit for Log {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.lock().unwrap().push_str(&format!("{field}={value:?} "));
        }
    }

    impl<S: tracing::Subscriber> Layer<S> for Log {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            event.record(&mut self.clone());
        }
    }

    #[test]
    fn every_pair_of_states_is_in_the_table_or_ends_in_failed_with_both_names() {
        for from in State::ALL {
            for to in State::ALL {
                let (publisher, log) = (in_state(from), Log::default());
                let subscriber = tracing_subscriber::registry().with(log.clone());
                let outcome = tracing::subscriber::with_default(subscriber, || publisher.enter(to));
                let log = log.0.lock().unwrap();
                assert!(
                    log.contains(&format!("from={from} ")) && log.contains(&format!("to={to} ")),
                    "{from} to {to}: {log}"
                );
                if from.may_become(to) {
                    assert_eq!((outcome.is_ok(), publisher.state()), (true, to), "{from} to {to}");
                } else {
                    assert_eq!((outcome.is_ok(), publisher.state()), (false, State::Failed), "{from} to {to}");
                    let failure = publisher.watch().borrow().failure.clone().unwrap();
                    let expected = if from == State::Failed {
                        Failure::Gone.to_string()
                    } else {
                        Failure::IllegalTransition { from, to }.to_string()
                    };
                    assert_eq!(failure.to_string(), expected, "{from} to {to}");
                }
            }
        }
    }

    #[test]
    fn a_failure_is_final_and_keeps_its_first_reason() {
        for state in State::ALL {
            let publisher = in_state(state);
            publisher.fail(Failure::Removed { reason: "first".into() });
            publisher.fail(Failure::Removed { reason: "second".into() });
            assert_eq!(publisher.state(), State::Failed);
            let reason = publisher.watch().borrow().failure.clone().unwrap().to_string();
            assert!(!reason.contains("second"), "{state}: {reason}");
            assert_eq!(reason.contains("first"), state != State::Failed, "{state}: {reason}");
        }
    }

    #[tokio::test]
    async fn a_waiter_whose_manager_is_gone_is_told() {
        let publisher = Publisher::new();
        let waiting = tokio::spawn(wait_finished(publisher.watch()));
        drop(publisher);
        assert!(matches!(waiting.await.unwrap(), Outcome::Failed(failure) if matches!(*failure, Failure::Gone)));
    }
}
