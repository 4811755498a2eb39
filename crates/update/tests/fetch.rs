//! The promise: an image comes whole and as its digest says, over connections as they are, or it is told why not.

mod server;

use std::time::Duration;

use polis_update::{Digest, Fetch, FetchError, FetchLimits, Fetched, ImageLayout, ImageReference, Progress};
use server::{Answer, Server};

/// Limits that a test can wait for.
const LIMITS: FetchLimits = FetchLimits {
    budget: Duration::from_secs(20),
    silence: Duration::from_millis(200),
    pause: Duration::from_millis(1),
    longest_image: 1024 * 1024,
};

struct Published {
    server: Server,
    reference: ImageReference,
    image: Vec<u8>,
    _place: tempfile::TempDir,
}

fn published() -> Published {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("artifact");
    let image: Vec<u8> = b"MZ".iter().copied().chain((0..300_000_u32).map(|number| (number % 251) as u8)).collect();
    let layout = ImageLayout { image: &image, version: "1.2.3", repository: "machines/polis" };
    let digest = layout.write(&directory).unwrap();
    let server = Server::start(directory);
    let reference = format!("http://{}/machines/polis:v1@{digest}", server.address).parse().unwrap();
    Published { server, reference, image, _place: place }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn fetch(reference: &ImageReference, limits: FetchLimits) -> (Result<Fetched, FetchError>, Vec<Progress>) {
    let mut progress = Vec::new();
    let fetched = block_on(Fetch::new(limits, None).fetch(reference, |step| progress.push(step)));
    (fetched, progress)
}

fn repetitions(progress: &[Progress]) -> Vec<&str> {
    progress
        .iter()
        .filter_map(|step| match step {
            Progress::Repeating { reason } => Some(reason.as_str()),
            Progress::Received { .. } => None,
        })
        .collect()
}

#[test]
fn an_image_comes_with_its_version_and_progress() {
    let published = published();
    let (fetched, progress) = fetch(&published.reference, LIMITS);
    let fetched = fetched.unwrap();
    assert_eq!((fetched.version.as_str(), &fetched.image), ("1.2.3", &published.image));
    assert_eq!(fetched.digest, Digest::of(&published.image));
    let size = published.image.len() as u64;
    assert_eq!(progress.last(), Some(&Progress::Received { bytes: size, of: size }));
    assert_eq!(published.server.requests().len(), 2);
}

#[test]
fn what_is_interrupted_goes_on_where_it_was() {
    let published = published();
    published.server.answer([
        Answer::CutAfter(1000),
        Answer::Hangup,
        Answer::Status(503, String::new()),
        Answer::Status(429, String::new()),
        Answer::SilentAfter(500),
        Answer::CutAfter(0),
    ]);
    let (fetched, progress) = fetch(&published.reference, LIMITS);
    assert_eq!(fetched.unwrap().image, published.image);
    let ranges: Vec<_> = published.server.requests()[1..]
        .iter()
        .map(|request| request.split_once(" from ").map(|(_, from)| from.to_owned()))
        .collect();
    let from = |bytes: &str| Some(bytes.to_owned());
    assert_eq!(ranges, [None, from("1000"), from("1000"), from("1000"), from("1000"), from("1500"), from("1500")]);
    let reasons = repetitions(&progress);
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    assert!(reasons[2].contains("503") && reasons[3].contains("429"), "{reasons:?}");
    assert!(reasons[4].contains("sent nothing"), "{reasons:?}");
}

#[test]
fn a_server_without_ranges_begins_anew() {
    for answer in [
        Answer::WithoutRanges,
        // What claims to be a part from elsewhere is not put behind what is there.
        Answer::WrongRange,
        Answer::Status(416, String::new()),
    ] {
        let published = published();
        published.server.answer([Answer::CutAfter(1000), answer.clone()]);
        let (fetched, _) = fetch(&published.reference, LIMITS);
        assert_eq!(fetched.unwrap().image, published.image, "{answer:?}");
    }
}

#[test]
fn other_content_is_refused_and_not_asked_for_again() {
    let published = published();
    let mut other = published.image.clone();
    other[1234] ^= 1;
    published.server.answer([Answer::Content(other)]);
    let (fetched, _) = fetch(&published.reference, LIMITS);
    assert!(matches!(fetched, Err(FetchError::OtherContent { .. })), "{fetched:?}");
    assert_eq!(published.server.requests().len(), 2);

    published.server.answer([Answer::Content(vec![0; published.image.len() + 1])]);
    let (fetched, _) = fetch(&published.reference, LIMITS);
    assert!(matches!(fetched, Err(FetchError::TooLong { .. })), "{fetched:?}");
}

#[test]
fn an_image_that_is_too_long_is_not_even_asked_for() {
    let published = published();
    let limits = FetchLimits { longest_image: published.image.len() as u64 - 1, ..LIMITS };
    let (fetched, _) = fetch(&published.reference, limits);
    assert!(matches!(fetched, Err(FetchError::TooLong { limit, .. }) if limit == limits.longest_image), "{fetched:?}");
    assert_eq!(published.server.requests().len(), 1);
}

#[test]
fn what_is_not_there_is_told_at_once() {
    let published = published();
    let absent =
        ImageReference::new("http", published.reference.host(), "machines/polis", "", &Digest::of(b"").to_string());
    let (fetched, progress) = fetch(&absent.unwrap(), LIMITS);
    let text = fetched.unwrap_err().to_string();
    assert!(text.contains("404") && text.contains("look at host"), "{text}");
    assert_eq!(progress, []);
    published.server.answer([Answer::Status(401, String::new())]);
    let text = fetch(&published.reference, LIMITS).0.unwrap_err().to_string();
    assert!(text.contains("401") && text.contains("wants to know who asks"), "{text}");
}

#[test]
fn redirections_are_followed_but_not_for_ever_and_not_to_anywhere() {
    let published = published();
    let target = published.server.address;
    let kernel = Digest::of(&published.image);
    let location = |place: &str| Answer::Status(307, format!("Location: {place}\r\n"));
    let path = format!("/v2/machines/polis/blobs/{kernel}");
    published.server.answer([location(&path), location(&format!("http://{target}{path}"))]);
    assert_eq!(fetch(&published.reference, LIMITS).0.unwrap().image, published.image);
    published.server.answer((0..10).map(|_| location(&path)));
    let fetched = fetch(&published.reference, LIMITS).0;
    assert!(matches!(fetched, Err(FetchError::Redirection { .. })), "{fetched:?}");
    for place in ["ftp://h/", "relative", ""] {
        let other = self::published();
        other.server.answer([location(place)]);
        let fetched = fetch(&other.reference, LIMITS).0;
        assert!(matches!(fetched, Err(FetchError::Redirection { .. })), "{place:?} {fetched:?}");
    }
}

#[test]
fn the_time_for_all_is_limited_and_the_last_reason_told() {
    let published = published();
    published.server.answer((0..10_000).map(|_| Answer::Status(500, String::new())));
    let limits = FetchLimits { budget: Duration::from_millis(300), ..LIMITS };
    let (fetched, progress) = fetch(&published.reference, limits);
    let error = fetched.unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(matches!(error, FetchError::OutOfTime { .. }) && cause.contains("500"), "{error} {cause}");
    assert!(!repetitions(&progress).is_empty());

    // Nobody is there.
    let address = published.server.address;
    drop(published);
    let reference = format!("http://{address}/r@{}", Digest::of(b"")).parse().unwrap();
    let error = fetch(&reference, limits).0.unwrap_err();
    assert!(matches!(error, FetchError::OutOfTime { last: Some(_), .. }), "{error:?}");
}

#[test]
fn tls_is_with_those_who_are_believed() {
    use std::sync::Arc;

    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["127.1.60.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let image = b"MZ image".to_vec();
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("artifact");
    let digest = ImageLayout { image: &image, version: "1", repository: "polis" }.write(&directory).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let configuration = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(configuration));
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.1.60.1:0").await.unwrap();
        let reference = format!("https://{}/polis@{digest}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
                while !head.ends_with(b"\r\n\r\n") {
                    let count = stream.read(&mut buffer).await.unwrap();
                    head.extend_from_slice(&buffer[..count]);
                }
                let head = String::from_utf8(head).unwrap();
                let content = std::fs::read(directory.join(head.split(' ').nth(1).unwrap().trim_start_matches('/')));
                let content = content.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.write_all(&content).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let limits = FetchLimits { budget: Duration::from_secs(5), ..LIMITS };
        let (believing, doubting) = (
            Fetch::new(LIMITS, Some(roots)),
            Fetch::new(FetchLimits { budget: Duration::from_millis(500), ..limits }, None),
        );
        let check = async {
            assert_eq!(believing.fetch(&reference, drop).await.unwrap().image, image);
            let error = doubting.fetch(&reference, drop).await.unwrap_err();
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            assert!(cause.is_some_and(|cause| cause.contains("trusted")), "{error:?}");
        };
        tokio::select! {
            () = check => {}
            () = serve => {}
        }
    });
}
