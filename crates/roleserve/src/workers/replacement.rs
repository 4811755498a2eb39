//! Asks the cluster to replace the consensus member of this node when etcd cannot read its data.
//!
//! Nothing is put away for it here: only when the others, who have the quorum, have removed the member does its role go, and with the
//! role what it has on the disk, which is kept (`polis_consensus::set_aside`). Without a quorum there is nobody to ask, and all stays
//! as it is.

use std::convert::Infallible;
use std::sync::Arc;

use polis_consensus::Consensus;
use polis_proto::enrolment::ReplaceMemberRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::ClusterClient;
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;

use super::never;
use crate::pause::Pause;
use crate::shared::{CALL, Shared, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut member = shared.settings.control_plane.member();
    let ask = async {
        loop {
            let said = damaged(&mut member).await;
            tracing::warn!(
                "etcd cannot read the data of this node's consensus member ({said}); the cluster is asked to replace it"
            );
            tokio::select! {
                never = ask_for_another(&cluster, said) => match never {},
                // It was taken away, and what comes after it is another one, which works. Not even the answer is waited for: a call
                // that is made once more would have the new one removed.
                () = changed(&mut member) => {}
            }
        }
    };
    never(context.unless_cancelled(ask).await?)
}

/// Asks for as long as it is awaited: what was asked for may have been given up again.
async fn ask_for_another(cluster: &ClusterClient, said: String) -> Infallible {
    let mut pause = Pause::default();
    let mut last = String::new();
    loop {
        let request = ReplaceMemberRequest { reason: said.clone() };
        let asked = cluster.call(CALL, |channel| {
            let request = request.clone();
            async move { EnrolmentClient::new(channel).replace_member(request).await }
        });
        if let Err(error) = asked.await {
            let reason = error.to_string();
            if reason != last {
                tracing::warn!("the consensus member of this node is not replaced yet: {reason}");
                last = reason;
            }
        }
        pause.wait().await;
    }
}

/// Waits until there is a member that cannot read its data, and returns what its etcd has said. From then on a change of `member` says
/// that it is that one no more.
async fn damaged(member: &mut watch::Receiver<Option<Consensus>>) -> String {
    loop {
        let running = member.borrow_and_update().clone();
        let Some(running) = running else {
            changed(member).await;
            continue;
        };
        let mut status = running.status();
        let said = async {
            let found = status.wait_for(|status| status.damage.is_some()).await;
            found.ok().and_then(|status| status.damage.clone())
        };
        tokio::select! {
            said = said => match said {
                Some(said) => return said,
                // Its end; there may be another.
                None => changed(member).await,
            },
            () = changed(member) => {}
        }
    }
}
