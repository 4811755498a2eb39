//! What tests of servers and clients need: the credentials of a cluster that nobody will miss, and servers in the process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use polis_identity::{
    AuthorityCertificate, CLUSTER_AUTHORITY_NAME, Certificate, CertificateAuthority, NodeId, NodeKey, OwnerKey,
};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, RunnableResult, runnable};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::{
    ClientIdentity, KeyIdentity, KeyServerSettings, KnownKeys, Limits, News, ServerIdentity, ServerSettings, Trust,
    listen, serve, serve_by_key,
};

/// Where test servers listen. Ports are the system's choice, so that servers never meet.
const TEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// A cluster that is nothing but its CA.
#[derive(Debug)]
pub struct TestCluster {
    /// Its CA.
    pub authority: CertificateAuthority,
}

/// A node of a [`TestCluster`].
#[derive(Clone, Debug)]
pub struct TestNode {
    /// Its id.
    pub id: NodeId,
    /// Its key.
    pub key: NodeKey,
    /// Its certificate.
    pub certificate: Certificate,
    /// Both and the CA, for servers; [`ServerIdentity::client_identity`] is for clients.
    pub identity: ServerIdentity,
}

/// A user of a [`TestCluster`].
#[derive(Clone, Debug)]
pub struct TestUser {
    /// Their key.
    pub key: OwnerKey,
    /// Their certificate.
    pub certificate: Certificate,
    /// Both, for clients.
    pub identity: ClientIdentity,
}

impl Default for TestCluster {
    fn default() -> Self {
        Self { authority: CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME) }
    }
}

impl TestCluster {
    /// The certificate of its CA.
    #[must_use]
    pub fn authority_certificate(&self) -> AuthorityCertificate {
        self.authority.certificate().clone()
    }

    /// A new node.
    ///
    /// # Panics
    ///
    /// Never, as long as what a CA issues is what is expected of it.
    #[must_use]
    pub fn node(&self) -> TestNode {
        let key = NodeKey::generate();
        let certificate = self.authority.issue_node(&key.public());
        let identity = ServerIdentity::new(&key, certificate.clone(), self.authority_certificate());
        let identity = identity.expect("the certificate is one of this cluster");
        TestNode { id: identity.node_id(), key, certificate, identity }
    }

    /// A new user of this name; `owner` may do everything.
    ///
    /// # Panics
    ///
    /// When no user can have this name.
    #[must_use]
    pub fn user(&self, name: &str) -> TestUser {
        let key = OwnerKey::generate();
        let certificate = self.authority.issue_user(name, &key.public()).expect("a name that a user can have");
        let identity = ClientIdentity::user(&key, &certificate).expect("the certificate is for this key");
        TestUser { key, certificate, identity }
    }
}

/// The trust of a node that nobody has left and that would know.
#[must_use]
pub fn full_trust() -> Trust {
    Trust { news: News::UpToDate, ..Trust::default() }
}

/// A listener on a loopback address, at a port that nobody else has.
///
/// # Panics
///
/// When the system has none.
#[must_use]
pub fn test_listener() -> TcpListener {
    listen(SocketAddr::new(TEST_ADDRESS.into(), 0)).expect("a free port")
}

/// A server in this process. A test ends it with [`TestServer::finish`].
pub struct TestServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it knows of whom the cluster has let go; [`full_trust`] at first.
    pub trust: watch::Sender<Arc<Trust>>,
    harness: Harness,
}

impl TestServer {
    /// Serves with the default limits.
    ///
    /// # Panics
    ///
    /// When the system has no port.
    #[must_use]
    pub fn start(identity: &ServerIdentity, routes: Routes) -> Self {
        Self::start_at(test_listener(), identity, Limits::default(), routes)
    }

    /// Serves what comes to this listener, with these limits.
    ///
    /// # Panics
    ///
    /// When the listener has no address.
    #[must_use]
    pub fn start_at(listener: TcpListener, identity: &ServerIdentity, limits: Limits, routes: Routes) -> Self {
        let address = listener.local_addr().expect("a listener has an address");
        let trust = watch::Sender::new(Arc::new(full_trust()));
        let settings = ServerSettings { name: "test", identity: identity.clone(), trust: trust.subscribe(), limits };
        let harness = serve_once(listener, settings, routes, serve);
        Self { address, trust, harness }
    }

    /// The supervisor that the server runs under, with its log.
    #[must_use]
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Stops the server.
    ///
    /// # Panics
    ///
    /// When it died before or does not stop in order.
    pub async fn finish(self) {
        self.harness.finish().await;
    }
}

/// A server in this process that knows its callers by their keys. A test ends it with [`TestKeyServer::finish`].
pub struct TestKeyServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whom it knows; nobody at first.
    pub known: watch::Sender<Arc<KnownKeys>>,
    harness: Harness,
}

impl TestKeyServer {
    /// Serves what comes to this listener, with these limits.
    ///
    /// # Panics
    ///
    /// When the listener has no address.
    #[must_use]
    pub fn start_at(listener: TcpListener, identity: &KeyIdentity, limits: Limits, routes: Routes) -> Self {
        let address = listener.local_addr().expect("a listener has an address");
        let known = watch::Sender::new(Arc::default());
        let settings = KeyServerSettings { name: "test", identity: identity.clone(), known: known.subscribe(), limits };
        Self { address, known, harness: serve_once(listener, settings, routes, serve_by_key) }
    }

    /// Stops the server.
    ///
    /// # Panics
    ///
    /// When it died before or does not stop in order.
    pub async fn finish(self) {
        self.harness.finish().await;
    }
}

/// Serves under a supervisor. It is served once: a server that dies is a test that fails.
fn serve_once<S, F>(
    listener: TcpListener,
    settings: S,
    routes: Routes,
    serve: fn(Context, TcpListener, S, Routes) -> F,
) -> Harness
where
    S: Send + 'static,
    F: Future<Output = RunnableResult> + Send + 'static,
{
    let parts = Mutex::new(Some((listener, settings, routes)));
    Harness::start(runnable(move |context| {
        let parts = parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            let (listener, settings, routes) = parts.ok_or("the server has died before")?;
            context.healthy();
            serve(context, listener, settings, routes).await
        }
    }))
}
