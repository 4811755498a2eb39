//! A member that nobody reaches: to read, copy and change the data of a member while no node runs on them.
//!
//! etcd runs on a directory that is a copy or newly made, with sockets in a directory of its own for clients and for peers: no other
//! member is reached by it or reaches it, whoever they are and whatever they believe. For the repair of a cluster that has lost its
//! quorum (`cold-start.md`, "Recovery key").

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polis_supervisor::{Cancelled, Context, ExitStatus, OutputSink, Process, ProcessSpec, SpawnError};
use tokio::time::{sleep, timeout};

use crate::arguments::QUOTA_BYTES;
use crate::binary::{EtcdBinary, EtcdBinaryError};
use crate::client::{Connection, KvError, Namespaced, SnapshotStream};
use crate::log_line::{Hint, classify, complaint};
use crate::membership::{Membership, MembershipError};
use crate::status::Member;

/// Names of the sockets; etcd wants a port behind them.
const SOCKETS: [&str; 2] = ["client.sock:0", "peer.sock:0"];

/// How long it may take until it answers: it reads its log and its database first, 2 GiB on a disk that spins.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// Pause between two questions whether it answers.
const PAUSE: Duration = Duration::from_millis(10);

/// Raft's timing: it elects nobody but itself.
const TIMING: [&str; 2] = ["--heartbeat-interval=10", "--election-timeout=50"];

/// Complaints that are kept.
const KEPT_COMPLAINTS: usize = 3;

/// How the data are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfflineStart {
    /// As they are: those of a cluster of one.
    AsTheyAre,
    /// As those of a cluster of this member alone, whoever else is a member. It keeps its ids, so its data must never be started where
    /// the others could reach it.
    ForceAlone,
}

/// A member that nobody reaches. It ends when it is dropped, and in order with [`OfflineMember::stop`].
pub struct OfflineMember {
    process: Process,
    connection: Connection,
}

/// It does not work.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// There is no etcd that may be used.
    #[error(transparent)]
    Etcd(#[from] EtcdBinaryError),
    /// etcd cannot be started.
    #[error("etcd cannot be started")]
    Start(#[from] SpawnError),
    /// etcd has ended.
    #[error("etcd cannot work with the data in {directory} ({status}). It has said: {}", said.join(" | "))]
    Ended {
        /// Where they are.
        directory: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last complaints.
        said: Vec<String>,
    },
    /// It does not answer.
    #[error("etcd does not answer within {} s", START_DEADLINE.as_secs())]
    Silent,
    /// The work was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl OfflineMember {
    /// Starts it on the data in `directory`, with `work`, which must exist, for its sockets. Returns once it answers.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn start(
        context: &Context,
        etcd: &EtcdBinary,
        directory: &Path,
        work: &Path,
        start: OfflineStart,
    ) -> Result<Self, OfflineError> {
        etcd.verify().await?;
        let [client, peer] = SOCKETS.map(|name| format!("unix://{name}"));
        let mut spec = ProcessSpec::new(etcd.path()).arguments([
            format!("--data-dir={}", directory.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            "--enable-grpc-gateway=false".to_owned(),
            format!("--quota-backend-bytes={QUOTA_BYTES}"),
            "--logger=zap".to_owned(),
            "--log-outputs=stderr".to_owned(),
        ]);
        spec = spec.arguments(TIMING);
        match start {
            OfflineStart::AsTheyAre => {}
            OfflineStart::ForceAlone => spec = spec.arguments(["--force-new-cluster"]),
        }
        if cfg!(target_arch = "aarch64") {
            spec = spec.variable("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        spec.working_directory = Some(work.to_owned());
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&complaints);
        spec.standard_output = OutputSink::Discard;
        spec.standard_error = OutputSink::lines(move |line| match classify(line) {
            Hint::Complaint | Hint::NoSpace | Hint::Damaged => {
                let mut complaints = heard.lock().unwrap_or_else(PoisonError::into_inner);
                if complaints.len() == KEPT_COMPLAINTS {
                    complaints.remove(0);
                }
                complaints.push(complaint(line));
            }
            Hint::Serving
            | Hint::ServingPeers
            | Hint::Elected
            | Hint::Electing
            | Hint::Changed
            | Hint::Removed
            | Hint::Nothing => {}
        });
        let process = context.process(spec).await?;
        let member = Self { process, connection: Connection::new(work.join(SOCKETS[0])) };
        let answers = async {
            let mut kv = member.connection.kv();
            while kv.get("\0", None).await.is_err() {
                sleep(PAUSE).await;
            }
        };
        let ready = async {
            tokio::select! {
                answered = timeout(START_DEADLINE, answers) => answered.map_err(|_| OfflineError::Silent),
                status = member.process.wait() => Err(OfflineError::Ended {
                    directory: directory.display().to_string(),
                    status,
                    said: complaints.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                }),
            }
        };
        match context.unless_cancelled(ready).await {
            Ok(Ok(())) => Ok(member),
            Ok(Err(error)) => {
                member.stop().await;
                Err(error)
            }
            Err(cancelled) => {
                member.stop().await;
                Err(cancelled.into())
            }
        }
    }

    /// A client for the whole key space.
    #[must_use]
    pub fn kv_root(&self) -> Namespaced {
        Namespaced::root(self.connection.clone())
    }

    /// A copy of the whole state.
    ///
    /// # Errors
    ///
    /// When etcd does not give it.
    pub async fn snapshot(&self) -> Result<SnapshotStream, KvError> {
        SnapshotStream::open(&self.connection).await
    }

    /// The members, as the data have them.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn members(&self) -> Result<Vec<Member>, MembershipError> {
        Membership::new(self.connection.clone()).members().await
    }

    /// Stops it in order.
    pub async fn stop(&self) {
        self.process.stop().await;
    }
}
