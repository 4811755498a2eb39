//! Shows the leader that this node is alive, and knows by that whether there is contact.
//!
//! One stream to the leader; a message every [`HEARTBEAT_INTERVAL`], the first at once; each must be answered in time. When the
//! stream ends a new one is opened, after failures with a growing pause.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::SinkExt as _;
use futures::channel::mpsc;
use polis_condition::{Conditions, Severity};
use polis_curator::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT};
use polis_proto::curator_api::HeartbeatRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_rpc::{ClusterClient, Leader, Search, describe};
use polis_supervisor::{Context, RunnableResult};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status};

use super::follow::replaced;
use super::never;
use crate::pause::Pause;
use crate::shared::Shared;

/// Name of the condition that is raised while another process shows itself to the leader as this node.
pub const RUNS_TWICE: &str = "node-runs-twice";

/// How long an answer may take: until the leader would hold this node for silent if it had not heard it.
const ANSWER_DEADLINE: Duration = HEARTBEAT_TIMEOUT.saturating_sub(HEARTBEAT_INTERVAL);

// The next heartbeat is sent after the answer to the last, so it is never late because of it.
const _: () = assert!(ANSWER_DEADLINE.as_nanos() <= HEARTBEAT_INTERVAL.as_nanos());

/// Messages that wait to be sent: one, as the next is made only after the answer.
const QUEUE: usize = 1;

/// How long nobody may be found to lead before that counts as a failure of contact. A change of the leader is shorter.
const SEARCH_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let beat = async {
        let mut pause = Pause::default();
        loop {
            let leader = find(&shared, &cluster).await;
            let before = shared.contact.borrow().last_heartbeat;
            let status = tokio::select! {
                status = one_stream(&shared, context.conditions(), &leader) => status,
                status = replaced(&cluster, leader.node_id) => status,
            };
            shared.contact.send_if_modified(|contact| {
                contact.fail(format!("the leader {} at {}: {}", leader.node_id, leader.address, describe(&status)))
            });
            cluster.doubt(&leader, &status);
            shared.look_at_refusal(context.conditions(), &identity, &status).await;
            look_for_another(context.conditions(), &status);
            if shared.contact.borrow().last_heartbeat > before {
                pause.reset();
            }
            pause.wait().await;
        }
    };
    never(context.unless_cancelled(beat).await?)
}

/// Waits for a leader, and says that there is none if that takes long.
async fn find(shared: &Shared, cluster: &ClusterClient) -> Leader {
    let mut found = std::pin::pin!(cluster.leader());
    loop {
        if let Ok(leader) = timeout(SEARCH_PATIENCE, &mut found).await {
            return leader;
        }
        let reason = match &*cluster.search().borrow() {
            Search::Found(_) => continue,
            Search::Searching { failures, .. } if failures.is_empty() => {
                "no node is known to lead, and nobody is known who could be asked".to_owned()
            }
            Search::Searching { failures, .. } => {
                let failures = failures.iter().map(|(address, failure)| failure.at(*address));
                format!("no node is known to lead: {}", failures.collect::<Vec<_>>().join("; "))
            }
        };
        shared.contact.send_if_modified(|contact| contact.fail(reason));
    }
}

/// Sends and hears until the stream ends, and tells how it ended.
async fn one_stream(shared: &Shared, conditions: &Conditions, leader: &Leader) -> Status {
    let (mut sender, receiver) = mpsc::channel(QUEUE);
    let mut client = CuratorClient::new(leader.channel.clone());
    let mut sent = Instant::now();
    // It fits, as the queue is empty. Some servers answer only after the first message.
    let _ = sender.send(HeartbeatRequest {}).await;
    let mut answers = match in_time(client.heartbeat(receiver)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    loop {
        match in_time(answers.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::unavailable("the leader has ended the heartbeats"),
            Err(status) => return status,
        }
        shared.contact.send_if_modified(|contact| contact.succeed(Some(leader.node_id), Instant::now()));
        conditions.clear(RUNS_TWICE);
        // Between heartbeats nothing is to come but the end.
        tokio::select! {
            ended = answers.message() => return match ended {
                Ok(Some(_)) => Status::internal("the leader answered what was not asked"),
                Ok(None) => Status::unavailable("the leader has ended the heartbeats"),
                Err(status) => status,
            },
            () = sleep_until(sent + HEARTBEAT_INTERVAL) => {}
        }
        sent = Instant::now();
        if sender.send(HeartbeatRequest {}).await.is_err() {
            return Status::unavailable("the leader takes no more heartbeats");
        }
    }
}

/// Says so when the leader refuses this process because another one has the key of this node.
fn look_for_another(conditions: &Conditions, status: &Status) {
    if status.code() == Code::AlreadyExists {
        conditions.raise(
            RUNS_TWICE,
            Severity::Error,
            status.message(),
            "stop one of the two at once: as members of the consensus they could together damage the state of the cluster. If this \
             one is the copy, delete its root directory; a machine that is to be another node starts with an empty one",
        );
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded(format!("no answer to a heartbeat within {} s", ANSWER_DEADLINE.as_secs()));
    timeout(ANSWER_DEADLINE, answer).await.unwrap_or_else(|_| Err(late()))
}
