//! Calls with the credentials of a node, as somebody makes them who has copied its disk; each call is made once.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use polis_identity::{AuthorityCertificate, Certificate, NodeKey, PrivateKey, verify_certificate_authority};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_proto::curator_api::{GetCurrentLeaderRequest, GetCurrentLeaderResponse, UpdateNodeStatusRequest};
use polis_proto::node_api::GetStatusRequest;
use polis_proto::node_api::node_client::NodeClient;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer, NODE_MANAGEMENT_PORT, is_transport_failure};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::node_data::NodeData;

/// Longest time that a call may take; longer, and it counts as lost.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a node shows of itself, and the cluster that it believes.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    identity: ClientIdentity,
    authority: AuthorityCertificate,
}

/// Connections to one node, with a thread's own runtime. They are of the host whose thread makes the calls.
#[derive(Debug)]
pub struct NodeCaller {
    runtime: Runtime,
    leader: CuratorLocalClient<Channel>,
    status: NodeClient<Channel>,
    change: CuratorClient<Channel>,
}

/// A stream that a node has begun to answer.
#[derive(Debug)]
pub struct OpenStream(Streaming<GetCurrentLeaderResponse>);

/// What has come of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Whoever asked was allowed to.
    Served,
    /// The node does not know at the moment whom the cluster has let go.
    NoContact,
    /// The cluster has let the node go whose credentials were shown.
    LetGo,
    /// There was no answer, or another one, for this reason.
    Lost(String),
}

impl NodeCredentials {
    /// Those of the node with this root, which runs.
    ///
    /// # Panics
    ///
    /// When it has none yet.
    #[must_use]
    pub fn of_running(root: &Path) -> Self {
        let stored =
            NodeData::of_running(root).layout().data.node.credentials.load().expect("the credentials are whole");
        let stored = stored.expect("the node has credentials");
        let key: NodeKey = PrivateKey::from_secret(stored.node_key);
        let certificate = |der| Certificate::from_der(der).expect("it is a certificate");
        let identity = ClientIdentity::node(&key, &certificate(stored.node_certificate)).expect("they belong together");
        let authority = verify_certificate_authority(certificate(stored.ca_certificate)).expect("it is that of a CA");
        Self { identity, authority }
    }

    /// Somebody who shows them to the node at this address.
    ///
    /// # Panics
    ///
    /// When this process can have no runtime.
    #[must_use]
    pub fn caller(&self, node: IpAddr) -> NodeCaller {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connector = Connector::new(&self.identity, ExpectedServer::Cluster(self.authority.clone()));
        let channel = |port| {
            let _guard = runtime.enter();
            connector.channel(SocketAddr::new(node, port))
        };
        let (curator, management) = (channel(CURATOR_PORT), channel(NODE_MANAGEMENT_PORT));
        NodeCaller {
            leader: CuratorLocalClient::new(curator),
            status: NodeClient::new(management.clone()),
            change: CuratorClient::new(management),
            runtime,
        }
    }
}

impl NodeCaller {
    /// A call that only reads: the node's status.
    pub fn read(&mut self) -> Answer {
        let (runtime, client) = (&self.runtime, &mut self.status);
        limited(runtime, async { client.get_status(GetStatusRequest {}).await.map(drop) })
    }

    /// A call that would change something of the caller's own. It is made at a port where nobody serves it, so that whoever is allowed
    /// to make it changes nothing either: permission is looked at first.
    pub fn change(&mut self) -> Answer {
        let (runtime, client) = (&self.runtime, &mut self.change);
        limited(runtime, async { client.update_node_status(UpdateNodeStatusRequest::default()).await.map(drop) })
    }

    /// Opens a stream at the node's curator, which tells who leads, and waits for what comes first.
    ///
    /// # Errors
    ///
    /// What came instead.
    pub fn open(&mut self) -> Result<OpenStream, Answer> {
        let (runtime, client) = (&self.runtime, &mut self.leader);
        let mut opened = None;
        let answer = limited(runtime, async {
            let mut stream = client.get_current_leader(GetCurrentLeaderRequest {}).await?.into_inner();
            stream.message().await?;
            opened = Some(OpenStream(stream));
            Ok(())
        });
        opened.ok_or(answer)
    }

    /// Reads a stream to its end, which has to come within `patience`, and tells what ended it.
    pub fn end_of(&self, mut stream: OpenStream, patience: Duration) -> Answer {
        let end = async {
            loop {
                match stream.0.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Answer::Served,
                    Err(status) => return judge(&status),
                }
            }
        };
        let end = self.runtime.block_on(async { tokio::time::timeout(patience, end).await });
        end.unwrap_or_else(|_| Answer::Lost(format!("the stream goes on after {patience:?}")))
    }
}

fn limited(runtime: &Runtime, call: impl Future<Output = Result<(), Status>>) -> Answer {
    match runtime.block_on(async { tokio::time::timeout(TIMEOUT, call).await }) {
        Ok(Ok(())) => Answer::Served,
        Ok(Err(status)) => judge(&status),
        Err(_) => Answer::Lost(format!("no answer within {TIMEOUT:?}")),
    }
}

/// What an error means for whoever asked.
fn judge(status: &Status) -> Answer {
    let code = status.code();
    if code == Code::Unauthenticated {
        Answer::LetGo
    } else if code == Code::Unimplemented {
        // The permission was there, and nobody who serves the call.
        Answer::Served
    } else if code == Code::Unavailable && !is_transport_failure(status) {
        Answer::NoContact
    } else {
        Answer::Lost(format!("{status:?}"))
    }
}
