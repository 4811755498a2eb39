//! The socket's place in the file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::{SOCKET_DIRECTORY, SOCKET_NAME};

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the control socket {} could not be made; `polis node status` would find nobody", path.display())]
pub struct SocketError {
    /// Where it should have been.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// A path to a name in an opened directory that fits a socket address whatever the length of the directory's own path:
/// a socket address holds 108 bytes (unix(7)), and the root of a node may be deep.
pub(crate) struct ShortPath {
    /// Keeps the descriptor that `path` goes through open.
    _directory: File,
    pub(crate) path: PathBuf,
}

impl ShortPath {
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(flags.bits()).unwrap_or_default())
            .open(root.join(SOCKET_DIRECTORY))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd()));
        Ok(Self { _directory: directory, path })
    }
}

/// Makes the socket below `root`, readable and writable for the node's own user only. Its directory belongs to this node alone,
/// so a socket that is there is what an earlier listener of this node has left: the kernel does not remove it.
///
/// # Errors
///
/// When the system refuses.
pub fn bind(root: &Path) -> Result<UnixListener, SocketError> {
    let make = || {
        let short = ShortPath::new(root)?;
        match std::fs::remove_file(&short.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&short.path)?;
        std::fs::set_permissions(&short.path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    make().map_err(|source| SocketError { path: root.join(SOCKET_DIRECTORY).join(SOCKET_NAME), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_that_died_does_not_keep_the_next_one_from_listening() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(SOCKET_DIRECTORY)).unwrap();
        drop(bind(root.path()).unwrap());
        let listener = bind(root.path()).unwrap();
        let socket = root.path().join(SOCKET_DIRECTORY).join(SOCKET_NAME);
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(&socket), listener.accept());
        connected.unwrap();
        accepted.unwrap();
    }
}
