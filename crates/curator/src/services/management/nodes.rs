//! GetNodes: the nodes, as operators see them.
//!
//! They are read and filtered at once and sent afterwards, so that a client that reads slowly holds nothing but its own answer.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_proto::api::Node;
use tokio::task::yield_now;
use tokio::time::Instant;
use tonic::Status;

use crate::services::core::Core;
use crate::services::filter::{Filter, FilterError};
use crate::{Heartbeats, LeaderState, NodeRecord, Versioned};

/// How long a filter may be evaluated in all. A thousand nodes take a few milliseconds with one that is meant well.
const FILTER_PATIENCE: Duration = Duration::from_secs(2);

/// How long others wait at most while nodes are looked at.
const TURN: Duration = Duration::from_millis(2);

/// The nodes for which the filter is true.
pub(super) async fn nodes(
    core: &Core,
    leader: &LeaderState,
    filter: &str,
) -> Result<BoxStream<'static, Result<Node, Status>>, Status> {
    let filter = Filter::new(filter).map_err(refused)?;
    let records = leader.nodes().await?;
    let now = Instant::now();
    let mut turn = now;
    let mut admitted = Vec::new();
    for Versioned { value: record, revision: _ } in records {
        if filter.is_empty() || filter.admits(&Arc::new(public(&core.heartbeats, &record, now))).map_err(refused)? {
            admitted.push(record);
        }
        if now.elapsed() > FILTER_PATIENCE {
            return Err(refused(FilterError::TooCostly));
        }
        if turn.elapsed() > TURN {
            yield_now().await;
            turn = Instant::now();
        }
    }
    // Records are shared with everybody; each becomes a message when its turn comes to be sent.
    let heartbeats = core.heartbeats.clone();
    let nodes = admitted.into_iter().map(move |record| Ok(public(&heartbeats, &record, now)));
    Ok(stream::iter(nodes).boxed())
}

/// A node, as operators see it.
fn public(heartbeats: &Heartbeats, record: &NodeRecord, now: Instant) -> Node {
    let time_since_heartbeat = heartbeats.age(&record.id, now).and_then(|age| age.try_into().ok());
    Node {
        pubkey: record.public_key.as_bytes().to_vec(),
        id: record.id.to_string(),
        state: record.state.into(),
        status: record.status.clone(),
        roles: Some(record.roles.clone()),
        health: heartbeats.health(record.state, &record.id, now).into(),
        time_since_heartbeat,
        tpm_usage: record.tpm_usage.into(),
        labels: Some(record.labels.to_wire()),
    }
}

fn refused(error: FilterError) -> Status {
    let message = error.to_string();
    match error {
        FilterError::NoThread(_) => Status::unavailable(message),
        FilterError::TooLong(_)
        | FilterError::TooManyOperators
        | FilterError::TooDeep
        | FilterError::Syntax(_)
        | FilterError::Name { .. }
        | FilterError::TooCostly
        | FilterError::Evaluation(_)
        | FilterError::NotBoolean(_) => Status::invalid_argument(message),
    }
}
