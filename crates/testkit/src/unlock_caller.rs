//! Calls to the unlock port of a node, as one of its members or as somebody whom nobody knows.

use std::net::{IpAddr, SocketAddr};
use std::ops::Add;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_identity::{JoinKey, NodeId, PublicKey};
use polis_proto::unlock::UnlockRequest;
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_proto::unlock::unlock_request::Want;
use polis_proto::unlock::unlock_response::Answer;
use polis_rpc::{Connector, ExpectedServer, KeyIdentity, UNLOCK_PORT};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;

use crate::node_data::journal;

/// Longest time that a call may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Who calls, and for whose key. Its calls are of the host whose thread makes them.
#[derive(Clone)]
pub struct UnlockCaller {
    connector: Connector,
    owner: String,
    to: SocketAddr,
}

/// What has come of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// The key itself.
    Key,
    /// A share, or a word on the member list.
    Else,
    /// Nothing, as nobody knows the caller, or as it calls too often.
    Refused,
    /// The connection was not there, or it was taken away.
    Lost,
}

/// What has come of a flood of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flood {
    /// Calls that were refused.
    pub refused: usize,
    /// Calls whose connection was not there, or was taken away.
    pub lost: usize,
    /// Calls that were answered in any other way.
    pub answered: usize,
}

impl UnlockCaller {
    /// Somebody with a fresh key, who says that it is the node with the root `owner`.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    #[must_use]
    pub fn stranger(owner: &Path, to: IpAddr) -> Self {
        Self::with(&JoinKey::generate(), owner, to)
    }

    /// The node with this root, which goes on running.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    #[must_use]
    pub fn node(root: &Path, to: IpAddr) -> Self {
        let journal = journal(root).expect("the node has a journal");
        Self::with(&JoinKey::from_secret(journal.join_key), root, to)
    }

    fn with(key: &JoinKey, owner: &Path, to: IpAddr) -> Self {
        let journal = journal(owner).expect("the node has a journal");
        let key_of_owner = PublicKey::try_from(journal.node_public_key.as_slice()).expect("it is a key");
        Self {
            connector: Connector::new(&KeyIdentity::new(key).client_identity(), ExpectedServer::Anybody),
            owner: NodeId::of(&key_of_owner).to_string(),
            to: SocketAddr::new(to, UNLOCK_PORT),
        }
    }

    /// Makes a connection and asks on it for whatever opens the data. Returns the answer, and how long that took.
    ///
    /// # Panics
    ///
    /// When there is no runtime to be had.
    #[must_use]
    pub fn ask(&self) -> (Called, Duration) {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let began = Instant::now();
            let called = self.ask_on(&mut UnlockClient::new(self.connector.channel(self.to))).await;
            (called, began.elapsed())
        })
    }

    /// Calls without a pause, on so many connections at a time, each for so many calls, until it is over.
    ///
    /// # Panics
    ///
    /// When there is no runtime to be had.
    #[must_use]
    pub fn flood(&self, connections: usize, calls: usize, is_over: &AtomicBool) -> Flood {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let one = || async {
            let mut flood = Flood::default();
            while !is_over.load(Ordering::Relaxed) {
                let mut client = UnlockClient::new(self.connector.channel(self.to));
                for _ in 0..calls {
                    match self.ask_on(&mut client).await {
                        Called::Refused => flood.refused += 1,
                        Called::Key | Called::Else => flood.answered += 1,
                        Called::Lost => {
                            flood.lost += 1;
                            break;
                        }
                    }
                }
            }
            flood
        };
        let all = runtime.block_on(join_all((0..connections).map(|_| one())));
        all.into_iter().fold(Flood::default(), |sum, flood| sum + flood)
    }

    /// Asks for whatever opens the data.
    async fn ask_on(&self, client: &mut UnlockClient<Channel>) -> Called {
        let request = UnlockRequest { owner: self.owner.clone(), want: Want::Any.into(), ..UnlockRequest::default() };
        let answer = match timeout(TIMEOUT, client.unlock(request)).await {
            Ok(Ok(response)) => response.into_inner().answer,
            Ok(Err(status)) if status.code() == Code::ResourceExhausted => return Called::Refused,
            Ok(Err(_)) | Err(_) => return Called::Lost,
        };
        match answer {
            Some(Answer::Full(_)) => Called::Key,
            Some(Answer::Refused(_)) => Called::Refused,
            Some(Answer::Share(_) | Answer::NewerMembers(_) | Answer::OlderMembers(_)) | None => Called::Else,
        }
    }
}

impl Add for Flood {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            refused: self.refused + other.refused,
            lost: self.lost + other.lost,
            answered: self.answered + other.answered,
        }
    }
}
