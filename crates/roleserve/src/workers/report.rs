//! Tells the cluster what only this node knows of itself: its share key, which member list it holds durably, and how it has split its
//! cluster unlock key.
//!
//! A node that has not split its key says that it can: the leader then waits for it before it gives or takes a vote. Whether there is a
//! key to be split the cluster knows itself.

use std::sync::Arc;

use polis_proto::curator_state::SplitReport;
use polis_proto::enrolment::ReportNodeRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::CallError;
use polis_supervisor::{Context, RunnableResult};
use polis_unlock::Epoch;

use super::never;
use crate::pause::Pause;
use crate::shared::{CALL, Shared, changed};
use crate::split_state::SplitState;

/// What is told. What was told before is told again when the node starts, and whenever something else is to be told.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    members: Option<Epoch>,
    split: SplitReport,
}

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut members = shared.members.subscribe();
    let mut split = shared.settings.split.clone();
    let report = async {
        let mut pause = Pause::default();
        let mut told: Option<Told> = None;
        loop {
            let now = Told {
                members: members.borrow_and_update().as_ref().map(|members| members.list().epoch()),
                split: split.borrow_and_update().as_ref().map(SplitState::report).unwrap_or_default(),
            };
            if told.as_ref() != Some(&now) {
                let request = ReportNodeRequest {
                    share_key: identity.share_public.as_bytes().to_vec(),
                    members_epoch: now.members.map(Into::into),
                    split: Some(now.split.clone()),
                    ..ReportNodeRequest::default()
                };
                let reported = cluster.call(CALL, |channel| {
                    let request = request.clone();
                    async move { EnrolmentClient::new(channel).report_node(request).await }
                });
                match reported.await {
                    Ok(_) => {
                        tracing::debug!(?now, "reported the keys and the member list of this node");
                        told = Some(now);
                        pause.reset();
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot report the keys and the member list of this node; it is tried again");
                        if let CallError::Refused { status, .. } = &error {
                            shared.look_at_refusal(context.conditions(), &identity, status).await;
                        }
                        pause.wait().await;
                        continue;
                    }
                }
            }
            tokio::select! {
                () = changed(&mut members) => {}
                () = changed(&mut split) => {}
            }
        }
    };
    never(context.unless_cancelled(report).await?)
}
