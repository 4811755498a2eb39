use std::sync::Arc;

use http::Method;
use http_body_util::BodyExt as _;
use polis_identity::NodeKey;
use polis_rpc::{ClientIdentity, serve_pages};
use tower::ServiceExt as _;

use super::text::tests::full;
use super::*;
use crate::loopback::{TestCluster, TestServer};

struct Fake {
    etcd: bool,
    nodes: Vec<Discovered>,
}

#[tonic::async_trait]
impl Measured for Fake {
    async fn snapshot(&self) -> Snapshot {
        full()
    }

    async fn etcd(&self) -> io::Result<Vec<u8>> {
        if self.etcd { Ok(b"etcd_metric 1\n".to_vec()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    async fn discover(&self) -> Vec<Discovered> {
        self.nodes.clone()
    }
}

#[tokio::test]
async fn each_path_has_its_page() {
    let node = Discovered {
        node_id: "metropolis-a".into(),
        address: "192.0.2.1".into(),
        consensus_member: true,
        kubernetes_controller: false,
        kubernetes_worker: false,
    };
    let (without, with) = (Fake { etcd: false, nodes: vec![] }, Fake { etcd: true, nodes: vec![node] });
    let table = [
        (&with, "/metrics", 200, "polis_curator_leads 1"),
        (&with, "/metrics/node", 200, "polis_curator_leads 1"),
        (&with, "/metrics/core", 200, "polis_curator_leads 1"),
        (&with, "/metrics/etcd", 200, "etcd_metric 1"),
        (&without, "/metrics/etcd", 502, "refused"),
        (&with, "/discovery", 200, r#"[{"targets":["192.0.2.1"]"#),
        (&without, "/discovery", 503, "ask a consensus member"),
        (&with, "/", 404, "there is /metrics"),
        (&with, "/metrics/", 404, "there is /metrics"),
        (&with, "/metrics/kubernetes-apiserver", 404, "there is /metrics"),
    ];
    for (measured, path, status, text) in table {
        let response = page(path, measured).await;
        assert_eq!(response.status(), status, "{path}");
        assert!(response.body().contains(text), "{path}: {}", response.body());
        assert!(response.headers().contains_key(header::CONTENT_TYPE), "{path}");
    }
}

#[tokio::test]
async fn pages_are_for_nodes_and_users_of_the_cluster_over_tls() {
    let cluster = TestCluster::new();
    let measured = Arc::new(Fake { etcd: true, nodes: vec![] });
    let server = TestServer::start(&cluster, |context, listener, settings| {
        serve_pages(context, listener, settings, move |_, request: http::request::Parts| {
            let measured = Arc::clone(&measured);
            async move { page(request.uri.path(), &*measured).await }
        })
    });
    let get = async |identity: ClientIdentity, method: Method, path: &str| {
        let uri = format!("https://{}{path}", server.address);
        let request = http::Request::builder().method(method).uri(uri).body(tonic::body::Body::empty()).unwrap();
        let response = cluster.channel(&server, identity).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let (owner, node) = (cluster.user("owner"), cluster.node().client_identity());
    let (status, text) = get(owner.clone(), Method::GET, "/metrics").await;
    assert!(status == 200 && text.ends_with("# EOF\n"), "{status} {text}");
    assert_eq!(get(node, Method::GET, "/metrics/etcd?x=y").await, (200, "etcd_metric 1\n".into()));
    assert_eq!(get(owner.clone(), Method::GET, "/discovery").await.0, 503);
    assert_eq!(get(owner, Method::POST, "/metrics").await.0, 405);
    assert_eq!(get(ClientIdentity::anonymous(), Method::GET, "/metrics").await.0, 401);
    let ephemeral = ClientIdentity::ephemeral(&NodeKey::generate());
    assert_eq!(get(ephemeral, Method::GET, "/metrics").await.0, 401);
    assert_eq!(get(TestCluster::new().user("owner"), Method::GET, "/metrics").await.0, 401);
    server.finish().await;
}
