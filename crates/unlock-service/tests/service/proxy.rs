//! A way between two nodes that is cut.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::world::{PATIENCE, free_address};

/// Forwards connections to a node. The first ones are cut after so many bytes of the answer each, and later ones are not.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// What it forwards comes from this address.
    pub(crate) async fn start(from: IpAddr, to: SocketAddr, cuts: Vec<usize>) -> Self {
        let listener = TcpListener::bind(free_address([127, 11, 255, 3].into())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let limit = cuts.get(number).copied().unwrap_or(usize::MAX);
                tokio::spawn(forward(client, from, to, limit));
            }
        });
        Self { address, connections, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects from an address of the choice of a test.
pub(crate) async fn connect_from(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    tokio::time::timeout(PATIENCE, socket.connect(to)).await?
}

async fn forward(mut client: TcpStream, from: IpAddr, to: SocketAddr, mut limit: usize) {
    let Ok(mut server) = connect_from(from, to).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut from_server) = ([0; 4_096], [0; 4_096]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => match read {
                Ok(count) if count > 0 && server.write_all(&from_client[..count]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut from_server) => match read {
                Ok(count) if count > 0 => {
                    let allowed = count.min(limit);
                    limit -= allowed;
                    if client.write_all(&from_server[..allowed]).await.is_err() || limit == 0 {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
