//! A cluster that is nothing but its CA, and a server in this process with credentials of it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use polis_identity::{
    AuthorityCertificate, CLUSTER_AUTHORITY_NAME, Certificate, CertificateAuthority, NodeId, NodeKey,
};
use polis_rpc::{Limits, ServerIdentity, ServerSettings, Trust, listen, serve};
use polis_supervisor::runnable;
use polis_supervisor::testing::Harness;
use tokio::sync::watch;
use tonic::service::Routes;

/// The CA of a cluster.
pub(crate) struct TestCluster {
    pub(crate) authority: CertificateAuthority,
}

/// The credentials of a node of it.
#[derive(Clone)]
pub(crate) struct TestNode {
    pub(crate) id: NodeId,
    pub(crate) key: NodeKey,
    pub(crate) certificate: Certificate,
    identity: ServerIdentity,
}

impl Default for TestCluster {
    fn default() -> Self {
        Self { authority: CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME) }
    }
}

impl TestCluster {
    pub(crate) fn authority_certificate(&self) -> AuthorityCertificate {
        self.authority.certificate().clone()
    }

    /// A new node.
    pub(crate) fn node(&self) -> TestNode {
        let key = NodeKey::generate();
        let certificate = self.authority.issue_node(&key.public());
        let identity = ServerIdentity::new(&key, certificate.clone(), self.authority_certificate()).unwrap();
        TestNode { id: identity.node_id(), key, certificate, identity }
    }
}

/// Serves at this address until the harness is finished, for a node that knows of nobody whom the cluster has let go.
pub(crate) fn start_server(node: &TestNode, address: SocketAddr, routes: Routes) -> Harness {
    let trust = Trust { in_contact: true, ..Trust::default() };
    let settings = ServerSettings {
        name: "test",
        identity: node.identity.clone(),
        trust: watch::Sender::new(Arc::new(trust)).subscribe(),
        limits: Limits::default(),
    };
    let parts = Mutex::new(Some((listen(address).unwrap(), settings, routes)));
    Harness::start(runnable(move |context| {
        let parts = parts.lock().unwrap().take();
        async move {
            // It is served once: a server that dies is a test that fails.
            let (listener, settings, routes) = parts.ok_or("the server has died before")?;
            context.healthy();
            serve(context, listener, settings, routes).await
        }
    }))
}
