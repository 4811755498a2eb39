//! Pages for monitoring.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use polis_rpc::testing::{TestCluster, full_trust, test_listener};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, Limits, News, ServerSettings, Trust, serve_pages};
use polis_supervisor::runnable;
use polis_supervisor::testing::Harness;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tower::ServiceExt as _;

use crate::forged;

/// What comes back over a connection of its own on which these bytes are sent, until the server closes it.
async fn exchange(address: SocketAddr, config: &rustls::ClientConfig, sent: &[u8]) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config.clone()));
    let mut stream = connector.connect(address.ip().into(), stream).await.unwrap();
    stream.write_all(sent).await.unwrap();
    let mut received = Vec::new();
    // A server that closes without a farewell has still said what it had to say.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut received)).await.unwrap();
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn clients_that_know_nothing_newer_than_http_1_get_pages_too() {
    let cluster = TestCluster::default();
    let trust = watch::Sender::new(Arc::new(full_trust()));
    let listener = test_listener();
    let address = listener.local_addr().unwrap();
    let settings = ServerSettings {
        name: "pages",
        identity: cluster.node().identity,
        trust: trust.subscribe(),
        limits: Limits::default(),
    };
    let parts = Mutex::new(Some((listener, settings)));
    let harness = Harness::start(runnable(move |context| {
        let (listener, settings) = parts.lock().unwrap().take().unwrap();
        serve_pages(context, listener, settings, |caller, request| async move {
            Response::new(format!("{} for {}", request.uri.path(), caller.peer))
        })
    }));
    let node = cluster.node();
    let shown = forged::certified(vec![CertificateDer::from(node.certificate.der().to_vec())], &node.key);
    // By name of the protocol, and without one.
    for protocols in [vec![b"http/1.1".to_vec()], vec![]] {
        let mut config = forged::client(Some(Arc::clone(&shown)));
        config.alpn_protocols = protocols;
        let two = b"GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answers = exchange(address, &config, two).await;
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
        for path in ["/one", "/two"] {
            assert!(answers.contains(&format!("{path} for node {}", node.id)), "{answers}");
        }
        let posted = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert!(exchange(address, &config, posted).await.starts_with("HTTP/1.1 405 "));
        let mut long = b"GET / HTTP/1.1\r\nX: ".to_vec();
        long.extend(std::iter::repeat_n(b'x', 100_000));
        assert!(exchange(address, &config, &long).await.starts_with("HTTP/1.1 431 "));
    }
    let mut config = forged::client(None);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let refused = exchange(address, &config, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    harness.finish().await;
}

#[tokio::test]
async fn pages_are_for_nodes_and_users() {
    let cluster = TestCluster::default();
    let revoked = cluster.user("owner");
    let revocations = cluster.authority.certificate_revocation_list(2, &[revoked.certificate.serial_number().clone()]);
    let trust = watch::Sender::new(Arc::new(Trust { revocations: Some(revocations), ..full_trust() }));
    let listener = test_listener();
    let address = listener.local_addr().unwrap();
    let settings = ServerSettings {
        name: "pages",
        identity: cluster.node().identity,
        trust: trust.subscribe(),
        limits: Limits::default(),
    };
    let parts = Mutex::new(Some((listener, settings)));
    let harness = Harness::start(runnable(move |context| {
        let (listener, settings) = parts.lock().unwrap().take().unwrap();
        serve_pages(context, listener, settings, |caller, request| async move {
            assert_ne!(request.uri.path(), "/panic", "the panic of a test");
            Response::new(format!("{} for {}", request.uri.path(), caller.peer))
        })
    }));
    let get = async |identity: &ClientIdentity, method: Method, path: &str| {
        let channel =
            Connector::new(identity, ExpectedServer::Cluster(cluster.authority_certificate())).channel(address);
        let request = Request::builder().method(method).uri(format!("https://{address}{path}"));
        let response = channel.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let code = response.status();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) =
            std::future::poll_fn(|context| http_body::Body::poll_frame(std::pin::Pin::new(&mut body), context)).await
        {
            text.extend_from_slice(frame.unwrap().data_ref().map_or(&b""[..], |data| data));
        }
        (code, String::from_utf8(text).unwrap())
    };
    let node = cluster.node();
    let identity = node.identity.client_identity();
    let (code, text) = get(&identity, Method::GET, "/metrics/core").await;
    assert_eq!((code, text), (StatusCode::OK, format!("/metrics/core for node {}", node.id)));
    let owner = cluster.user("owner").identity;
    assert_eq!(get(&owner, Method::GET, "/").await.0, StatusCode::OK);
    assert_eq!(get(&owner, Method::POST, "/").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let (code, text) = get(&owner, Method::GET, "/panic").await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!text.contains("of a test"), "{text}");
    // Until it is known whom the cluster has let go meanwhile, nodes wait.
    trust.send_modify(|trust| Arc::make_mut(trust).news = News::CatchingUp);
    assert_eq!(get(&identity, Method::GET, "/metrics/core").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&owner, Method::GET, "/").await.0, StatusCode::OK);
    trust.send_modify(|trust| Arc::make_mut(trust).news = News::UpToDate);
    let foreign = TestCluster::default().user("owner").identity;
    for stranger in [ClientIdentity::anonymous(), ClientIdentity::ephemeral(&node.key), revoked.identity, foreign] {
        let (code, text) = get(&stranger, Method::GET, "/metrics/core").await;
        assert_eq!(code, StatusCode::UNAUTHORIZED, "{text}");
        assert!(text.contains("certificate"), "{text}");
    }
    harness.finish().await;
}
