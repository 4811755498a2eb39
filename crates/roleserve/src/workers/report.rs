//! Tells the cluster what only this node knows of itself: its share key, and which member list it holds durably.

use std::sync::Arc;

use polis_proto::enrolment::ReportNodeRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::CallError;
use polis_supervisor::{Context, RunnableResult};
use polis_unlock::Epoch;

use super::never;
use crate::pause::Pause;
use crate::shared::{CALL, Shared, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut durable = shared.durable_epoch.subscribe();
    let report = async {
        let mut pause = Pause::default();
        let mut told: Option<Option<Epoch>> = None;
        loop {
            let epoch = *durable.borrow_and_update();
            if told != Some(epoch) {
                let request = ReportNodeRequest {
                    share_key: identity.share_public.as_bytes().to_vec(),
                    members_epoch: epoch.map(Into::into),
                    ..ReportNodeRequest::default()
                };
                let reported = cluster.call(CALL, |channel| {
                    let request = request.clone();
                    async move { EnrolmentClient::new(channel).report_node(request).await }
                });
                match reported.await {
                    Ok(_) => {
                        told = Some(epoch);
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
            changed(&mut durable).await;
        }
    };
    never(context.unless_cancelled(report).await?)
}
