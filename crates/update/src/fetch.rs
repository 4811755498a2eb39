//! [`Fetch`]: gets an image, whole and checked, or says why not.
//!
//! Nothing of it touches a disk: an image is at most some tens of mebibytes, and until every byte has been checked there is nothing that
//! a machine should have kept. What is interrupted is resumed where it was, as far as the server can.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_RANGE, HOST, LOCATION, RANGE, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::digest::Digest;
use crate::fetch_error::{FetchError, Passing};
use crate::manifest::{LONGEST_MANIFEST, MANIFEST_TYPE, Manifest};
use crate::reference::ImageReference;
use crate::transport::Transport;

/// What is told to the server.
const AGENT: &str = "polis";
/// Most redirections of one request. Registries send to a store of files, and that at times to another.
const MOST_REDIRECTIONS: usize = 5;
/// Longest time between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How much is taken, and how long it may last.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// For all together, with all repetitions.
    pub budget: Duration,
    /// How long a server may send nothing before the connection is given up and the request repeated.
    pub silence: Duration,
    /// Pause before the first repetition; each later one is twice as long, up to half a minute.
    pub pause: Duration,
    /// Longest image in bytes.
    pub longest_image: u64,
}

impl Default for FetchLimits {
    /// What a machine uses: a quarter of an hour in all (metropolis.md J.3), which fetches 48 MiB at 430 kbit/s.
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(15 * 60),
            silence: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            longest_image: polis_image::LONGEST_IMAGE,
        }
    }
}

/// An image that was fetched and is what its reference says.
#[derive(Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Version of the Polis in it, as whoever published it says; may be empty.
    pub version: String,
    /// Digest of the image itself.
    pub digest: Digest,
    /// The unified kernel image.
    pub image: Vec<u8>,
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Fetched({}, {} bytes, version {:?})", self.digest, self.image.len(), self.version)
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes of the image are there.
    Received {
        /// Bytes.
        bytes: u64,
        /// Of how many.
        of: u64,
    },
    /// A try has failed and is repeated.
    Repeating {
        /// Why, with causes.
        reason: String,
    },
}

/// One try that failed.
enum Failed {
    Passing(Passing),
    Final(FetchError),
}

impl<E: Into<Passing>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Passing(error.into())
    }
}

/// Fetches images.
#[derive(Clone)]
pub struct Fetch {
    limits: FetchLimits,
    transport: Transport,
}

impl Fetch {
    /// One with these limits, which believes `roots` for https, or the usual authorities of the web.
    #[must_use]
    pub fn new(limits: FetchLimits, roots: Option<RootCertStore>) -> Self {
        Self { limits, transport: Transport::new(roots) }
    }

    /// Fetches an image. May be dropped at any time.
    ///
    /// # Errors
    ///
    /// When it is not there, is not what the digest says, or does not come within the time.
    pub async fn fetch(
        &self,
        reference: &ImageReference,
        mut progress: impl FnMut(Progress),
    ) -> Result<Fetched, FetchError> {
        let deadline = Instant::now() + self.limits.budget;
        let url = reference.manifest_url();
        let wanted = Wanted { url: &url, digest: reference.digest(), size: None, limit: LONGEST_MANIFEST, deadline };
        let quiet = |step| match step {
            Progress::Received { .. } => {}
            repeating @ Progress::Repeating { .. } => progress(repeating),
        };
        let bytes = self.get(&wanted, quiet).await?;
        let manifest = Manifest::parse(&bytes).map_err(|source| FetchError::Manifest { url: url.clone(), source })?;
        let Manifest { version, kernel, size } = manifest;
        let url = reference.blob_url(kernel);
        if size > self.limits.longest_image {
            return Err(FetchError::TooLong { url, limit: self.limits.longest_image });
        }
        let wanted = Wanted { url: &url, digest: kernel, size: Some(size), limit: size, deadline };
        let image = self.get(&wanted, progress).await?;
        Ok(Fetched { version, digest: kernel, image })
    }

    /// Tries until it is there, the time is over, or nothing would help.
    async fn get(&self, wanted: &Wanted<'_>, mut progress: impl FnMut(Progress)) -> Result<Vec<u8>, FetchError> {
        let mut content = Content { bytes: Vec::new(), hash: Sha256::new() };
        let mut pause = self.limits.pause;
        let mut last = None;
        loop {
            let before = content.bytes.len();
            match timeout_at(wanted.deadline, self.try_once(wanted, &mut content, &mut progress)).await {
                Ok(Ok(())) => return content.checked(wanted),
                Ok(Err(Failed::Final(error))) => return Err(error),
                Ok(Err(Failed::Passing(reason))) => {
                    progress(Progress::Repeating { reason: with_causes(&reason) });
                    last = Some(reason);
                }
                Err(_) => return Err(self.out_of_time(wanted, last)),
            }
            if content.bytes.len() > before {
                pause = self.limits.pause;
            }
            if timeout_at(wanted.deadline, sleep(pause)).await.is_err() {
                return Err(self.out_of_time(wanted, last));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn out_of_time(&self, wanted: &Wanted<'_>, last: Option<Passing>) -> FetchError {
        FetchError::OutOfTime { url: wanted.url.to_owned(), budget: self.limits.budget, last }
    }

    async fn try_once(
        &self,
        wanted: &Wanted<'_>,
        content: &mut Content,
        progress: &mut impl FnMut(Progress),
    ) -> Result<(), Failed> {
        let final_answer = |status| Failed::Final(FetchError::Answer { url: wanted.url.to_owned(), status });
        let mut uri: Uri = wanted.url.parse().map_err(|_| final_answer(StatusCode::BAD_REQUEST))?;
        for _ in 0..=MOST_REDIRECTIONS {
            let from = content.bytes.len() as u64;
            let stream = self.transport.connect(&uri).await?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let exchange = async {
                let request = request(&uri, from);
                let answer = self.unless_silent(sender.send_request(request)).await??;
                let status = answer.status();
                if status.is_redirection() {
                    return redirection(wanted, &uri, &answer).map(Some).map_err(Failed::Final);
                }
                match status {
                    StatusCode::OK => content.restart(),
                    StatusCode::PARTIAL_CONTENT if begins_at(&answer, from) => {}
                    // The server has another idea of how much there is: from the beginning.
                    StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => {
                        content.restart();
                        return Err(Failed::Passing(Passing::Unwell(status)));
                    }
                    _ if status.is_server_error() || is_for_later(status) => {
                        return Err(Failed::Passing(Passing::Unwell(status)));
                    }
                    _ => return Err(final_answer(status)),
                }
                self.receive(wanted, answer.into_body(), content, progress).await.map(|()| None)
            };
            // The connection works only while it is polled, and ends with the exchange.
            let next = tokio::select! {
                next = exchange => next?,
                error = drive(connection) => return Err(Failed::Passing(error)),
            };
            match next {
                Some(location) => uri = location,
                None => return Ok(()),
            }
        }
        let location = uri.to_string();
        Err(Failed::Final(FetchError::Redirection { url: wanted.url.to_owned(), location }))
    }

    async fn receive(
        &self,
        wanted: &Wanted<'_>,
        mut body: Incoming,
        content: &mut Content,
        progress: &mut impl FnMut(Progress),
    ) -> Result<(), Failed> {
        while let Some(frame) = self.unless_silent(body.frame()).await? {
            let Ok(data) = frame?.into_data() else { continue };
            if content.bytes.len() as u64 + data.len() as u64 > wanted.limit {
                let url = wanted.url.to_owned();
                return Err(Failed::Final(FetchError::TooLong { url, limit: wanted.limit }));
            }
            content.take(&data);
            if let Some(of) = wanted.size {
                progress(Progress::Received { bytes: content.bytes.len() as u64, of });
            }
        }
        let received = content.bytes.len() as u64;
        match wanted.size {
            Some(expected) if received < expected => Err(Failed::Passing(Passing::Short { received, expected })),
            Some(_) | None => Ok(()),
        }
    }

    async fn unless_silent<T>(&self, future: impl Future<Output = T>) -> Result<T, Failed> {
        let silence = self.limits.silence;
        timeout(silence, future).await.map_err(|_| Failed::Passing(Passing::Silent(silence)))
    }
}

/// What is to be got.
struct Wanted<'a> {
    url: &'a str,
    digest: Digest,
    /// Its size in bytes, if it is known.
    size: Option<u64>,
    /// Most bytes.
    limit: u64,
    deadline: Instant,
}

/// What has come so far.
struct Content {
    bytes: Vec<u8>,
    hash: Sha256,
}

impl Content {
    fn restart(&mut self) {
        self.bytes.clear();
        self.hash = Sha256::new();
    }

    fn take(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        self.hash.update(data);
    }

    fn checked(self, wanted: &Wanted<'_>) -> Result<Vec<u8>, FetchError> {
        let found = Digest(self.hash.finalize().into());
        if found == wanted.digest {
            Ok(self.bytes)
        } else {
            Err(FetchError::OtherContent { url: wanted.url.to_owned(), found })
        }
    }
}

fn request(uri: &Uri, from: u64) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    let mut set = |name, value: &str| {
        // Nothing that a header cannot have comes this far: a URI has no such letters.
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    };
    set(HOST, uri.authority().map_or("", http::uri::Authority::as_str));
    set(USER_AGENT, AGENT);
    set(ACCEPT, &format!("{MANIFEST_TYPE}, application/octet-stream, */*"));
    if from > 0 {
        set(RANGE, &format!("bytes={from}-"));
    }
    request
}

/// Whether a part of the content begins where it was asked for.
fn begins_at(answer: &Response<Incoming>, from: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()) == Some(from)
}

/// Where a redirection leads. From TLS there is no way back to none.
fn redirection(wanted: &Wanted<'_>, from: &Uri, answer: &Response<Incoming>) -> Result<Uri, FetchError> {
    let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refused = || FetchError::Redirection { url: wanted.url.to_owned(), location: location.to_owned() };
    let target: Uri = location.parse().map_err(|_| refused())?;
    let mut parts = target.into_parts();
    if parts.authority.is_none() {
        if !location.starts_with('/') {
            return Err(refused());
        }
        parts.scheme = from.scheme().cloned();
        parts.authority = from.authority().cloned();
    }
    let uri = Uri::from_parts(parts).map_err(|_| refused())?;
    match (from.scheme_str(), uri.scheme_str()) {
        (Some("http"), Some("http" | "https")) | (_, Some("https")) => Ok(uri),
        (_, Some(_) | None) => Err(refused()),
    }
}

/// Answers that ask to come again.
fn is_for_later(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// Lets a connection work until it fails.
async fn drive(connection: impl Future<Output = hyper::Result<()>>) -> Passing {
    match connection.await {
        Err(error) => error.into(),
        // It has ended in order, and whoever waits for what came over it has it or fails by itself.
        Ok(()) => std::future::pending().await,
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
