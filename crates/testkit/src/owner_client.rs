//! The owner's calls to one node, each made once: whoever measures when a call was made and answered cannot use a client that
//! repeats them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use polis_identity::{AuthorityCertificate, Certificate, OwnerKey, verify_certificate_authority};
use polis_proto::api::delete_node_request::{SafetyBypassHasRoles, SafetyBypassNotDecommissioned};
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::update_node_labels_request::{Node, Pair};
use polis_proto::api::{DeleteNodeRequest, GetNodesRequest, UpdateNodeLabelsRequest, delete_node_request};
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer};
use tokio::runtime::{Builder, Runtime};
use tonic::Streaming;
use tonic::transport::Channel;

/// Labels that a node is filled with: nearly as many as it may have.
const MOST_LABELS: usize = 120;

/// A connection of the owner to one node, with a thread's own runtime.
#[derive(Debug)]
pub struct OwnerClient {
    runtime: Runtime,
    client: ManagementClient<Channel>,
    timeout: Duration,
}

/// Lists of all nodes that a node has begun to send and that nobody reads.
#[derive(Debug)]
pub struct UnreadLists {
    _lists: Vec<Streaming<polis_proto::api::Node>>,
}

/// Labels of nodes, by the ids of the nodes.
pub type LabelsOfNodes = BTreeMap<String, BTreeMap<String, String>>;

impl OwnerClient {
    /// A client with the owner's configuration directory. A call that takes longer than `timeout` counts as not answered.
    ///
    /// # Panics
    ///
    /// When the directory is not one of an owner who has taken ownership.
    #[must_use]
    pub fn new(configuration: &Path, node: IpAddr, timeout: Duration) -> Self {
        let text = |name: &str| {
            let path = configuration.join(name);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let certificate = |name: &str| Certificate::from_pem(&text(name)).expect("it is a certificate");
        let key = OwnerKey::from_pem(&text("owner-key.pem")).expect("it is the owner's key");
        let identity = ClientIdentity::user(&key, &certificate("owner.pem")).expect("it is the owner's certificate");
        let authority: AuthorityCertificate =
            verify_certificate_authority(certificate("ca.pem")).expect("it is that of a CA");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = {
            let _guard = runtime.enter();
            let connector = Connector::new(&identity, ExpectedServer::Cluster(authority));
            connector.channel(SocketAddr::new(node, CURATOR_PORT))
        };
        Self { client: ManagementClient::new(channel), runtime, timeout }
    }

    /// Sets a label of a node. Returns whether the node has answered that it is done; if not, it may be or not.
    pub fn set_label(&mut self, id: &str, key: &str, value: &str) -> bool {
        self.set_labels(id, vec![Pair { key: key.to_owned(), value: value.to_owned() }])
    }

    /// The same for several labels.
    pub fn set_labels(&mut self, id: &str, labels: Vec<Pair>) -> bool {
        let request =
            UpdateNodeLabelsRequest { node: Some(Node::Id(id.to_owned())), upsert: labels, delete: Vec::new() };
        let (client, timeout) = (&mut self.client, self.timeout);
        let call = async { tokio::time::timeout(timeout, client.update_node_labels(request)).await };
        matches!(self.runtime.block_on(call), Ok(Ok(_)))
    }

    /// Deletes a node, whatever roles it has and whether it is up or not.
    ///
    /// # Errors
    ///
    /// Why the node that was asked has not answered that it is done; it may be or not.
    pub fn delete(&mut self, id: &str) -> Result<(), String> {
        let request = DeleteNodeRequest {
            node: Some(delete_node_request::Node::Id(id.to_owned())),
            safety_bypass_has_roles: Some(SafetyBypassHasRoles {}),
            safety_bypass_not_decommissioned: Some(SafetyBypassNotDecommissioned {}),
        };
        let (client, timeout) = (&mut self.client, self.timeout);
        match self.runtime.block_on(async { tokio::time::timeout(timeout, client.delete_node(request)).await }) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(status.to_string()),
            Err(_) => Err(format!("there was no answer within {timeout:?}")),
        }
    }

    /// Gives a node as many labels as it may have, as long as they may be: some 47 KiB. Returns whether the node has answered that it is
    /// done.
    pub fn fill_with_labels(&mut self, id: &str) -> bool {
        const PART: usize = 63;
        let part = "x".repeat(PART);
        let prefix = format!("{part}.{part}.{part}.{}", &part[..PART - 2]);
        let label = |number| Pair { key: format!("{prefix}/{number:0PART$}"), value: part.clone() };
        self.set_labels(id, (0..MOST_LABELS).map(label).collect())
    }

    /// Asks `count` times for the list of all nodes, and reads none of the answers.
    ///
    /// # Panics
    ///
    /// When the node does not begin to answer.
    pub fn leave_unread(&mut self, count: usize) -> UnreadLists {
        let (client, timeout) = (&mut self.client, self.timeout);
        let open = async {
            let mut lists = Vec::new();
            for _ in 0..count {
                let list = client.get_nodes(GetNodesRequest { filter: String::new() }).await;
                lists.push(list.expect("the node begins to answer").into_inner());
            }
            lists
        };
        let lists = self.runtime.block_on(async { tokio::time::timeout(timeout, open).await });
        UnreadLists { _lists: lists.expect("the node begins to answer in time") }
    }

    /// The labels of all nodes; nothing when the node does not answer.
    pub fn labels(&mut self) -> Option<LabelsOfNodes> {
        let (client, timeout) = (&mut self.client, self.timeout);
        let call = async {
            let mut nodes = client.get_nodes(GetNodesRequest { filter: String::new() }).await.ok()?.into_inner();
            let mut found = LabelsOfNodes::new();
            while let Some(node) = nodes.message().await.ok()? {
                let labels = node.labels.unwrap_or_default().pairs.into_iter();
                found.insert(node.id, labels.map(|pair| (pair.key, pair.value)).collect());
            }
            Some(found)
        };
        self.runtime.block_on(async { tokio::time::timeout(timeout, call).await.ok().flatten() })
    }
}
