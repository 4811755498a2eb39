//! The asking end of the control socket.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use serde::de::DeserializeOwned;

use crate::socket::ShortPath;
use crate::{
    Answer, MAX_LINE_LENGTH, MAX_REPORT_LENGTH, OwnerProposed, Peer, Refusal, Report, Request, SOCKET_DIRECTORY,
    SOCKET_NAME, Status,
};

/// A connection to a running node, over which it tells its status. Other questions have a function each, and a connection of
/// their own.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why a running node could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens: the node does not run, or has not come that far.
    #[error("no node answers at {}; is it running?", socket.display())]
    NotRunning {
        /// The socket that was tried.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// This user may not ask.
    #[error("{} belongs to another user; ask as that user or as root", socket.display())]
    NotAllowed {
        /// The socket that was tried.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("the node at {} went away while it was asked", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The node refused.
    #[error("the node at {} did not do it", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Why not, and what to do next.
        #[source]
        refusal: Refusal,
    },
    /// The answer is not what was asked for.
    #[error("what answers at {} speaks another version; use the `polis` that runs the node", socket.display())]
    Protocol {
        /// The socket.
        socket: PathBuf,
        /// What could not be read.
        #[source]
        source: serde_json::Error,
    },
}

impl Client {
    /// Connects to the node with the root directory `root` and asks for its status, once or again after every change.
    ///
    /// # Errors
    ///
    /// When nobody listens there, or this user may not ask.
    pub async fn connect(root: &Path, follow: bool) -> Result<Self, ClientError> {
        Self::send(root, &Request::Status { follow }).await
    }

    /// The next status.
    ///
    /// # Errors
    ///
    /// When the node goes away or speaks another version.
    pub async fn next(&mut self) -> Result<Status, ClientError> {
        self.answer(MAX_LINE_LENGTH).await
    }

    /// Tells the node at `root` where other nodes are, instead of what it was told before. Returns what holds now.
    ///
    /// # Errors
    ///
    /// When nobody listens there, this user may not ask, or the node refuses.
    pub async fn set_peers(root: &Path, peers: Vec<Peer>) -> Result<Vec<Peer>, ClientError> {
        Self::send(root, &Request::SetPeers { peers }).await?.answer(MAX_LINE_LENGTH).await
    }

    /// Asks the node at `root` for everything that helps to see what is wrong with it.
    ///
    /// # Errors
    ///
    /// When nobody listens there, or this user may not ask.
    pub async fn report(root: &Path) -> Result<Report, ClientError> {
        Self::send(root, &Request::Report {}).await?.answer(MAX_REPORT_LENGTH).await
    }

    /// Has the node at `root` propose another owner of its cluster: `public_key` is an Ed25519 public key in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// When nobody listens there, this user may not ask, or the node refuses, as it does when it is not a consensus member.
    pub async fn propose_owner(root: &Path, public_key: &str) -> Result<OwnerProposed, ClientError> {
        let request = Request::ProposeOwner { public_key: public_key.to_owned() };
        Self::send(root, &request).await?.answer(MAX_LINE_LENGTH).await
    }

    async fn send(root: &Path, request: &Request) -> Result<Self, ClientError> {
        let socket = root.join(SOCKET_DIRECTORY).join(SOCKET_NAME);
        let refused = |source: io::Error| {
            let socket = socket.clone();
            if source.kind() == io::ErrorKind::PermissionDenied {
                ClientError::NotAllowed { socket, source }
            } else {
                ClientError::NotRunning { socket, source }
            }
        };
        let short = ShortPath::new(root).map_err(refused)?;
        let stream = UnixStream::connect(&short.path).await.map_err(refused)?;
        let mut client = Self { socket: socket.clone(), stream: BufReader::new(stream) };
        let line = request.to_line().map_err(|source| ClientError::Protocol { socket, source })?;
        client.stream.get_mut().write_all(&line).await.map_err(|source| client.broken(source))?;
        Ok(client)
    }

    async fn answer<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, ClientError> {
        let mut line = Vec::new();
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut line).await;
        if read.map_err(|source| self.broken(source))? == 0 {
            return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&line) {
            Ok(Answer::Answer(answer)) => Ok(answer),
            Ok(Answer::Refusal(refusal)) => Err(ClientError::Refused { socket: self.socket.clone(), refusal }),
            Err(source) => Err(ClientError::Protocol { socket: self.socket.clone(), source }),
        }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deep_root_is_no_obstacle_and_an_absent_node_is_named() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(200)).join("e".repeat(200));
        std::fs::create_dir_all(deep.join(SOCKET_DIRECTORY)).unwrap();
        let error = Client::connect(&deep, false).await.unwrap_err();
        assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");

        let listener = crate::bind(&deep).unwrap();
        let client = Client::connect(&deep, true);
        let (client, accepted) = tokio::join!(client, listener.accept());
        let mut request = String::new();
        let mut accepted = BufReader::new(accepted.unwrap().0);
        accepted.read_line(&mut request).await.unwrap();
        let (_, request) = Request::from_line(request.as_bytes()).unwrap();
        assert_eq!(request, Request::Status { follow: true });
        drop(accepted);
        assert!(matches!(client.unwrap().next().await.unwrap_err(), ClientError::Broken { .. }));
    }

    #[tokio::test]
    async fn what_the_node_answers_is_told_apart() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(SOCKET_DIRECTORY)).unwrap();
        let listener = crate::bind(root.path()).unwrap();
        let table = [
            (r#"{"answer":[]}"#, "done"),
            (r#"{"refusal":{"message":"no room"}}"#, "refused: no room"),
            (r#"{"error":"this node speaks version 1"}"#, "another version"),
            ("nonsense", "another version"),
        ];
        for (answer, expect) in table {
            let serve = async {
                let mut accepted = BufReader::new(listener.accept().await.unwrap().0);
                accepted.read_line(&mut String::new()).await.unwrap();
                accepted.get_mut().write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            };
            let (outcome, ()) = tokio::join!(Client::set_peers(root.path(), Vec::new()), serve);
            let outcome = match outcome {
                Ok(peers) => {
                    if peers.is_empty() {
                        "done".to_owned()
                    } else {
                        format!("{peers:?}")
                    }
                }
                Err(ClientError::Refused { refusal, .. }) => format!("refused: {refusal}"),
                Err(error @ ClientError::Protocol { .. }) if error.to_string().contains("another version") => {
                    "another version".to_owned()
                }
                Err(error) => format!("{error:?}"),
            };
            assert_eq!(outcome, expect);
        }
    }
}
