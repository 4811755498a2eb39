//! The asking end of the control socket.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::socket::ShortPath;
use crate::{MAX_LINE_LENGTH, PROTOCOL_VERSION, Request, SOCKET_DIRECTORY, SOCKET_NAME, Status};

/// A connection to a running node.
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
    /// The answer is not a status.
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
        let request = Request { version: PROTOCOL_VERSION, follow };
        let mut line = serde_json::to_vec(&request).map_err(|source| ClientError::Protocol { socket, source })?;
        line.push(b'\n');
        client.stream.get_mut().write_all(&line).await.map_err(|source| client.broken(source))?;
        Ok(client)
    }

    /// The next status.
    ///
    /// # Errors
    ///
    /// When the node goes away or speaks another version.
    pub async fn next(&mut self) -> Result<Status, ClientError> {
        let mut line = Vec::new();
        let limit = u64::try_from(MAX_LINE_LENGTH).unwrap_or(u64::MAX);
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut line).await;
        match read.map_err(|source| self.broken(source))? {
            0 => Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
            _ => serde_json::from_slice(&line)
                .map_err(|source| ClientError::Protocol { socket: self.socket.clone(), source }),
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
        assert_eq!(serde_json::from_str::<Request>(&request).unwrap(), Request { version: 1, follow: true });
        drop(accepted);
        assert!(matches!(client.unwrap().next().await.unwrap_err(), ClientError::Broken { .. }));
    }
}
