//! For tests: a cluster that is nothing but its CA, and servers of it in this process, on loopback and with real TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeKey, OwnerKey};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, News, ServerIdentity, ServerSettings, Trust, listen};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, RunnableResult};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Channel;

/// Where test servers listen. Ports are the system's choice, so that servers never meet.
const TEST_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 1, 0, 1));

/// A cluster that is nothing but its CA.
pub(crate) struct TestCluster(CertificateAuthority);

impl TestCluster {
    pub(crate) fn new() -> Self {
        Self(CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME))
    }

    /// A new node of it.
    pub(crate) fn node(&self) -> ServerIdentity {
        let key = NodeKey::generate();
        let certificate = self.0.issue_node(&key.public());
        ServerIdentity::new(&key, certificate, self.0.certificate().clone()).unwrap()
    }

    /// A user of it.
    pub(crate) fn user(&self, name: &str) -> ClientIdentity {
        let key = OwnerKey::generate();
        let certificate = self.0.issue_user(name, &key.public()).unwrap();
        ClientIdentity::user(&key, &certificate).unwrap()
    }

    /// A connection to a server of it.
    pub(crate) fn channel(&self, server: &TestServer, identity: ClientIdentity) -> Channel {
        let expected = ExpectedServer::Cluster(self.0.certificate().clone());
        Connector::new(&identity, expected).channel(server.address)
    }
}

/// A server in this process. A test ends it with [`TestServer::finish`].
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    /// Whom the cluster has let go, as the server knows it.
    pub(crate) trust: watch::Sender<Arc<Trust>>,
    harness: Harness,
}

impl TestServer {
    /// Runs `serve` as a node of `cluster`.
    pub(crate) fn start<F>(
        cluster: &TestCluster,
        serve: impl FnOnce(Context, TcpListener, ServerSettings) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = RunnableResult> + Send + 'static,
    {
        let listener = listen(SocketAddr::new(TEST_ADDRESS, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let trust = watch::Sender::new(Arc::new(Trust { news: News::UpToDate, ..Trust::default() }));
        let settings = ServerSettings {
            name: "test",
            identity: cluster.node(),
            trust: trust.subscribe(),
            limits: crate::serving::LIMITS,
        };
        let once = Mutex::new(Some((serve, listener, settings)));
        let harness = Harness::start(move |context: Context| {
            let (serve, listener, settings) = once.lock().unwrap().take().expect("a server does not die");
            context.healthy();
            serve(context, listener, settings)
        });
        Self { address, trust, harness }
    }

    pub(crate) async fn finish(self) {
        self.harness.finish().await;
    }
}
