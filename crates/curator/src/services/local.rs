//! CuratorLocal: what every node with a consensus member tells anybody (metropolis.md, G.3).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_proto::curator_api::curator_local_server::CuratorLocal;
use polis_proto::curator_api::{
    GetCaCertificateRequest, GetCaCertificateResponse, GetCurrentLeaderRequest, GetCurrentLeaderResponse,
};
use polis_rpc::CURATOR_PORT;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::core::Core;
use super::leader::no_leader;
use crate::leadership::Leadership;

/// How long a caller who follows the leader is left in silence while there is none. A change of the leader takes less as a rule,
/// and whoever stays is told of the new one at once.
const UNSETTLED_PATIENCE: Duration = Duration::from_secs(2);

/// CuratorLocal.
pub(super) struct CuratorLocalService(pub(super) Arc<Core>);

/// One caller who follows the leader.
struct Follow {
    core: Arc<Core>,
    leadership: watch::Receiver<Leadership>,
    /// What was told last.
    told: Option<GetCurrentLeaderResponse>,
}

#[tonic::async_trait]
impl CuratorLocal for CuratorLocalService {
    type GetCurrentLeaderStream = BoxStream<'static, Result<GetCurrentLeaderResponse, Status>>;

    async fn get_current_leader(
        &self,
        _: Request<GetCurrentLeaderRequest>,
    ) -> Result<Response<Self::GetCurrentLeaderStream>, Status> {
        let leadership = self.0.leadership();
        let follow = Follow { core: Arc::clone(&self.0), leadership, told: None };
        let answers = stream::unfold(Some(follow), async |follow| {
            let mut follow = follow?;
            let answer = follow.next().await;
            let follow = answer.is_ok().then_some(follow);
            Some((answer, follow))
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn get_ca_certificate(
        &self,
        _: Request<GetCaCertificateRequest>,
    ) -> Result<Response<GetCaCertificateResponse>, Status> {
        let identity_ca_certificate = self.0.identity.authority().der().to_vec();
        Ok(Response::new(GetCaCertificateResponse { identity_ca_certificate }))
    }
}

impl Follow {
    /// The next leader, once it is another than the one told last, or is elsewhere.
    async fn next(&mut self) -> Result<GetCurrentLeaderResponse, Status> {
        loop {
            let present = self.leadership.borrow_and_update().clone();
            match self.answer(&present) {
                Ok(answer) if self.told.as_ref() != Some(&answer) => {
                    self.told = Some(answer.clone());
                    return Ok(answer);
                }
                Ok(_) => self.changed().await?,
                // Whoever begins to ask is told at once, and asks another node.
                Err(status) if self.told.is_none() => return Err(status),
                Err(status) => match timeout(UNSETTLED_PATIENCE, self.changed()).await {
                    Ok(changed) => changed?,
                    Err(_) => return Err(status),
                },
            }
        }
    }

    async fn changed(&mut self) -> Result<(), Status> {
        self.leadership.changed().await.map_err(|_| Status::unavailable("this node is stopping"))
    }

    fn answer(&self, leadership: &Leadership) -> Result<GetCurrentLeaderResponse, Status> {
        let this_node_id = self.core.identity.node_id();
        let (leader, address) = match leadership {
            Leadership::Unsettled => return Err(no_leader(leadership)),
            // Without an address the answer would be of no use (metropolis.md, G.3).
            Leadership::Follower { leader: _, address: None } => return Err(no_leader(leadership)),
            Leadership::Follower { leader, address: Some(address) } => (*leader, Some(*address)),
            Leadership::Leader(_) => (this_node_id, self.core.address()),
        };
        Ok(GetCurrentLeaderResponse {
            leader_node_id: leader.to_string(),
            leader_host: address.map(|address| address.to_string()).unwrap_or_default(),
            leader_port: CURATOR_PORT.into(),
            this_node_id: this_node_id.to_string(),
        })
    }
}
