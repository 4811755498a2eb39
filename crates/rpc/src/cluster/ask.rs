//! Asking one address who leads, again and again, for as long as somebody wants to know.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_proto::curator_api::GetCurrentLeaderRequest;
use polis_proto::curator_api::GetCurrentLeaderResponse;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::pace::Pace;
use super::{Claim, EndpointFailure, Judge};
use crate::{Connector, detail, is_transport_failure};

/// What comes of asking. Who listens no more has dropped the future.
#[derive(Debug)]
pub(super) enum Event {
    /// The node at this address says that this one leads.
    Named { by: SocketAddr, claim: Claim },
    /// It says nothing of use.
    Failed { by: SocketAddr, failure: EndpointFailure },
    /// This node leads and says so itself.
    Leads { claim: Claim, channel: Channel },
    /// This node does not say so, or no more.
    LeadsNot { claim: Claim, failure: EndpointFailure },
}

/// Whom to ask, and how to tell.
pub(super) struct Asking {
    pub(super) connector: Connector,
    pub(super) address: SocketAddr,
    /// Has a say in whom to follow.
    pub(super) judge: Option<Arc<dyn Judge>>,
    pub(super) events: mpsc::Sender<Event>,
    /// Beginning of the search.
    pub(super) since: Instant,
}

impl Asking {
    /// Asks whoever is at the address who leads.
    pub(super) async fn who_leads(self, delay: Duration) {
        sleep(delay).await;
        let by = self.address;
        self.ask(
            |answer, _| match Claim::read(
                &answer.leader_node_id,
                &answer.leader_host,
                answer.leader_port,
                own(&answer, by),
            ) {
                Some(claim) => Event::Named { by, claim },
                None => Event::Failed { by, failure: EndpointFailure::now("knows no leader, or not where it is") },
            },
            |failure, hint| match hint {
                Some(claim) => Event::Named { by, claim },
                None => Event::Failed { by, failure },
            },
        )
        .await;
    }

    /// Asks the node that is said to lead whether it does.
    pub(super) async fn does_it_lead(self, claim: Claim) {
        self.ask(
            |answer, channel| {
                let id = claim.node_id.to_string();
                if answer.this_node_id == id && answer.leader_node_id == id {
                    return Event::Leads { claim, channel: channel.clone() };
                }
                let failure = match answer.leader_node_id.parse::<polis_identity::NodeId>() {
                    Ok(other) => EndpointFailure::now(format!("it does not lead, and names {other}")),
                    Err(_) => EndpointFailure::now("it does not lead, and knows no leader"),
                };
                Event::LeadsNot { claim, failure }
            },
            |failure, _| Event::LeadsNot { claim, failure },
        )
        .await;
    }

    async fn ask(
        &self,
        answered: impl Fn(GetCurrentLeaderResponse, &Channel) -> Event,
        failed: impl Fn(EndpointFailure, Option<Claim>) -> Event,
    ) {
        let mut pace = Pace::new();
        loop {
            let channel = match self.connector.connect(self.address).await {
                Ok(channel) => channel,
                Err(error) => {
                    self.tell(failed(EndpointFailure::of_connecting(&error), None)).await;
                    sleep(pace.after_silence(rand::random())).await;
                    continue;
                }
            };
            // As long as the node answers, there is no need for another connection.
            loop {
                let status = self.listen(&channel, &answered).await;
                let hint = detail::leader(&status).as_ref().and_then(Claim::of_hint);
                self.tell(failed(EndpointFailure::of_call(&status), hint)).await;
                if is_transport_failure(&status) {
                    sleep(pace.after_silence(rand::random())).await;
                    break;
                }
                sleep(pace.after_answer(self.since.elapsed(), rand::random())).await;
            }
        }
    }

    /// Follows one stream to its end.
    async fn listen(
        &self,
        channel: &Channel,
        answered: &impl Fn(GetCurrentLeaderResponse, &Channel) -> Event,
    ) -> Status {
        let mut client = CuratorLocalClient::new(channel.clone());
        let mut stream: Streaming<GetCurrentLeaderResponse> =
            match client.get_current_leader(GetCurrentLeaderRequest {}).await {
                Ok(response) => response.into_inner(),
                Err(status) => return status,
            };
        loop {
            match stream.message().await {
                Ok(Some(answer)) => {
                    let event = answered(answer, channel);
                    if let (Event::Leads { claim, .. }, Some(judge)) = (&event, &self.judge)
                        && let Err(refusal) = judge.judge(claim.node_id, channel, self.since).await
                    {
                        return refusal;
                    }
                    self.tell(event).await;
                }
                Ok(None) => return Status::unavailable("it ended its answer"),
                Err(status) => return status,
            }
        }
    }

    async fn tell(&self, event: Event) {
        // Without a listener this future is about to be dropped.
        let _ = self.events.send(event).await;
    }
}

/// The address that the leader has if it does not say where it is: that of the answer, if it speaks of itself.
fn own(answer: &GetCurrentLeaderResponse, address: SocketAddr) -> Option<SocketAddr> {
    (answer.this_node_id == answer.leader_node_id).then_some(address)
}
