//! The connection to the node's own etcd, and the one way on which calls go through it.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, WatchClient};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::error::{Effect, KvError, classify};
use crate::http;

/// How long a call may take. etcd itself gives up after 5 s and two election timeouts, 7 s with network timing, and then
/// says why; only an etcd that hangs makes a caller wait for longer than that.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Largest answer that is taken. etcd limits a request to 1.5 MiB but no answer: listing every node record of a large
/// cluster, or a watch that catches up, is well over the 4 MiB that gRPC allows by default.
const MAX_ANSWER: usize = 64 << 20;

/// Longest path of a unix socket that the kernel takes, without the zero byte at its end.
const MAX_SOCKET_PATH: usize = 107;

/// A connection to the node's own etcd. It may be made before etcd exists, and is made again by the next call after etcd
/// was restarted.
///
/// There is no HTTP/2 keepalive: the other end is a process on this machine, so a connection cannot half-die. A process
/// that hangs is noticed by the status check, and pings would wake an idle node for ever.
#[derive(Clone)]
pub(crate) struct Connection {
    with_leader: Client,
    local: Client,
    socket: Arc<PathBuf>,
}

impl Connection {
    /// Prepares a connection to `socket`. Call it within a tokio runtime.
    pub(crate) fn new(socket: PathBuf) -> Self {
        let socket = Arc::new(socket);
        let path = Arc::clone(&socket);
        // The address is not used: the connector knows where to go.
        let channel =
            Endpoint::from_static("http://etcd.local").connect_with_connector_lazy(tower::service_fn(move |_| {
                let socket = Arc::clone(&path);
                async move { connect(&socket).await.map(TokioIo::new) }
            }));
        let client = |require_leader| {
            let options = ConnectOptions::new().with_require_leader(require_leader);
            Client::from_channel(Channel::Tonic(channel.clone()), Some(options))
                .now_or_never()
                .and_then(Result::ok)
                .expect("without a user there is nobody to log in, so nothing is asked and nothing can fail")
        };
        Self { with_leader: client(true), local: client(false), socket }
    }

    /// What etcd answers over HTTP, at most `limit` bytes of it.
    pub(crate) async fn get(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        let asked = async { http::get(connect(&self.socket).await?, path, limit).await };
        timeout(CALL_DEADLINE, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Everything, for calls that need a quorum: refused at once while the cluster has no leader.
    pub(crate) fn client(&self) -> Client {
        self.with_leader.clone()
    }

    /// Everything, for what this member alone can answer, also without a leader.
    pub(crate) fn local(&self) -> Client {
        self.local.clone()
    }

    /// Key-value calls that need a quorum.
    pub(crate) fn kv(&self) -> KvClient {
        self.with_leader.kv_client().max_decoding_message_size(MAX_ANSWER)
    }

    /// Key-value calls that this member answers from what it has.
    pub(crate) fn local_kv(&self) -> KvClient {
        self.local.kv_client().max_decoding_message_size(MAX_ANSWER)
    }

    /// Watches.
    pub(crate) fn watches(&self) -> WatchClient {
        self.with_leader.watch_client().max_decoding_message_size(MAX_ANSWER)
    }
}

/// A call that only reads, with its deadline.
///
/// Calls are boxed: a call of a gRPC client is a future of tens of kilobytes, which would be a part of every future around it.
pub(crate) fn read<'a, T: Send + 'a>(
    call: impl Future<Output = Result<T, etcd_client::Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, KvError>> {
    within_deadline(call, CALL_DEADLINE, Effect::Read).boxed()
}

/// A call that changes something: the only way to one in Polis, so that every change has a fault point before and after
/// it, named by its call site.
pub(crate) fn change<'a, T: Send + 'a>(
    site: &'static str,
    call: impl Future<Output = Result<T, etcd_client::Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, KvError>> {
    change_within(site, CALL_DEADLINE, call)
}

/// The same for a call that may take longer.
pub(crate) fn change_within<'a, T: Send + 'a>(
    site: &'static str,
    deadline: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, KvError>> {
    async move {
        polis_fault::point(site, "before");
        let outcome = within_deadline(call, deadline, Effect::Change).await;
        polis_fault::point(site, "after");
        outcome
    }
    .boxed()
}

async fn within_deadline<T>(
    call: impl Future<Output = Result<T, etcd_client::Error>>,
    deadline: Duration,
    effect: Effect,
) -> Result<T, KvError> {
    match timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(classify(error, effect)),
        Err(elapsed) => Err(match effect {
            Effect::Read => KvError::Unavailable { source: elapsed.into() },
            Effect::Change => KvError::OutcomeUnknown { source: elapsed.into() },
        }),
    }
}

/// Connects to a unix socket whatever the length of its path.
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().as_bytes().len() <= MAX_SOCKET_PATH {
        return UnixStream::connect(socket).await;
    }
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // A longer path is reached through its directory, opened.
    let directory = File::open(directory)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)).await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixListener;

    use super::*;
    use crate::client::Namespaced;

    #[tokio::test]
    async fn a_socket_is_reached_whatever_the_length_of_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        for directory in [directory.path(), &deep] {
            let socket = directory.join("client.sock:0");
            let error = connect(&socket).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{socket:?}");
            let short = File::open(directory).unwrap();
            let listen = format!("/proc/self/fd/{}/client.sock:0", short.as_raw_fd());
            let _listener = std::os::unix::net::UnixListener::bind(listen).unwrap();
            connect(&socket).await.unwrap();
        }
    }

    /// What the server of a test waits for before it hangs up: bytes that stand in the body of the request as they are.
    const MARK: &str = "a mark that no header has";

    /// Takes one connection, and hangs up once the whole of a request with [`MARK`] in it was received.
    async fn hang_up_on_the_request(listener: UnixListener) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        while !received.windows(MARK.len()).any(|part| part == MARK.as_bytes()) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "the client hung up first");
        }
    }

    #[tokio::test]
    async fn what_silence_means_depends_on_what_was_asked_and_on_whether_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let listen = |name: &str| {
            let socket = directory.path().join(name);
            (UnixListener::bind(&socket).unwrap(), Namespaced::root(Connection::new(socket)))
        };
        let (listener, kv) = listen("change");
        let (outcome, ()) = tokio::join!(kv.put("test/put", "key", MARK), hang_up_on_the_request(listener));
        assert!(matches!(outcome, Err(KvError::OutcomeUnknown { .. })), "{outcome:?}");

        let (listener, kv) = listen("read");
        let (outcome, ()) = tokio::join!(kv.get(MARK), hang_up_on_the_request(listener));
        assert!(matches!(outcome, Err(KvError::Unavailable { .. })), "{outcome:?}");

        // A change that could not be sent was not made.
        let (listener, kv) = listen("nobody");
        drop(listener);
        let outcome = kv.put("test/put", "key", MARK).await;
        assert!(matches!(outcome, Err(KvError::Unavailable { .. })), "{outcome:?}");
    }
}
