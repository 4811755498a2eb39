//! Nodes that are opened, and strangers that are not told anything.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use polis_identity::{ClusterId, JoinKey, NodeId, NodeKey};
use polis_proto::unlock::get_lock_response::State;
use polis_proto::unlock::unlock_server::{Unlock, UnlockServer};
use polis_proto::unlock::{
    Counts, GetLockRequest, GetLockResponse, RecoverRequest, RecoverResponse, UnlockRequest, UnlockResponse,
};
use polis_recovery::node::{NodeState, Recovered, answer, offer};
use polis_recovery::{Blob, BlobContent, BlobSubject, ContentKey, Fingerprint, RecoveryKey};
use polis_rpc::testing::{TestKeyServer, test_listener};
use polis_rpc::{KeyIdentity, Limits};
use tokio::runtime::Runtime;
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};

use crate::fake::{Outcome, run};

/// A node that waits to be opened, which decides as a real one does.
struct FakeNode {
    state: NodeState,
    blob: Option<Blob>,
    /// What it was opened with.
    recovered: Arc<Mutex<Option<Recovered>>>,
    /// It opens, and does not answer.
    dies: bool,
}

#[async_trait]
impl Unlock for FakeNode {
    async fn unlock(&self, _: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        Err(Status::unimplemented("no member is here"))
    }

    async fn get_lock(&self, _: Request<GetLockRequest>) -> Result<Response<GetLockResponse>, Status> {
        let offered = offer(&self.state, self.blob.as_ref());
        let state = match self.state {
            NodeState::Open => State::Open,
            NodeState::Locked(_) => State::Locked,
            NodeState::Sealed { .. } => State::Sealed,
        };
        Ok(Response::new(GetLockResponse {
            state: state.into(),
            reason: "no answer from the others".into(),
            counts: Some(Counts { have: 1, need: 2 }),
            node_id: "metropolis-open".into(),
            no_recovery: offered.as_ref().err().map(ToString::to_string).unwrap_or_default(),
            recovery_blob: offered.map(Blob::to_bytes).unwrap_or_default(),
            ..GetLockResponse::default()
        }))
    }

    async fn recover(&self, request: Request<RecoverRequest>) -> Result<Response<RecoverResponse>, Status> {
        let RecoverRequest { content_key, blob_sha256 } = request.into_inner();
        assert_eq!(
            Some(&blob_sha256[..]),
            self.blob.as_ref().map(|blob| blob.digest()).as_ref().map(|digest| &digest[..])
        );
        let key = ContentKey::from_secret(content_key[..].try_into().unwrap());
        let recovered = answer(&self.state, self.blob.as_ref(), &key)
            .map_err(|error| Status::permission_denied(error.to_string()))?;
        *self.recovered.lock().unwrap() = Some(recovered);
        if self.dies {
            return Err(Status::internal("its data partition is another's"));
        }
        Ok(Response::new(RecoverResponse { done: "its data are open".into() }))
    }
}

/// A server with some node behind it.
struct Place {
    runtime: Runtime,
    servers: Vec<TestKeyServer>,
    directory: tempfile::TempDir,
    key: RecoveryKey,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = RecoveryKey::generate();
        let place = Self { runtime: Runtime::new().unwrap(), servers: Vec::new(), directory, key };
        place.write_words("words", &place.key);
        place
    }

    fn write_words(&self, name: &str, key: &RecoveryKey) {
        let words: Vec<_> = key.to_words().expose().collect();
        std::fs::write(self.directory.path().join(name), words.join(" ")).unwrap();
    }

    fn subject(join_key: &JoinKey) -> BlobSubject {
        BlobSubject {
            cluster: ClusterId::from_bytes([3; 16]),
            node: NodeId::of(&NodeKey::generate().public()),
            join_key: join_key.public(),
        }
    }

    fn blob(&self, subject: BlobSubject) -> Blob {
        Blob::seal(&self.key.public(), subject, &content()).unwrap()
    }

    /// Serves a node that shows itself with `shown`. Gives where, and what it will have been opened with.
    fn serve(&mut self, shown: &JoinKey, state: NodeState, blob: Option<Blob>) -> Served {
        self.serve_one(shown, state, blob, false)
    }

    fn serve_one(&mut self, shown: &JoinKey, state: NodeState, blob: Option<Blob>, dies: bool) -> Served {
        let recovered = Arc::new(Mutex::new(None));
        let node = FakeNode { state, blob, recovered: Arc::clone(&recovered), dies };
        let _guard = self.runtime.enter();
        let routes = Routes::new(UnlockServer::new(node));
        let server = TestKeyServer::start_at(test_listener(), &KeyIdentity::new(shown), Limits::default(), routes);
        let address = server.address;
        self.servers.push(server);
        Served { address, recovered }
    }

    fn unlock(&self, nodes: &[&Served], more: &str) -> Outcome {
        let endpoints: String = nodes.iter().map(|node| format!(" --endpoints {}", node.address)).collect();
        let words = self.directory.path().join("words");
        run(&format!("polis unlock{endpoints} --recovery {} {more}", words.display()))
    }

    fn finish(self) {
        self.runtime.block_on(futures::future::join_all(self.servers.into_iter().map(TestKeyServer::finish)));
    }
}

struct Served {
    address: SocketAddr,
    recovered: Arc<Mutex<Option<Recovered>>>,
}

impl Served {
    fn recovered(&self) -> Option<Recovered> {
        self.recovered.lock().unwrap().take()
    }
}

fn content() -> BlobContent {
    BlobContent {
        record: zeroize::Zeroizing::new(b"a record".to_vec()),
        cluster_unlock_key: [7; 32][..].try_into().unwrap(),
        pending_cluster_unlock_key: None,
    }
}

#[test]
fn a_node_that_waits_for_others_is_known_by_its_own_key() {
    let mut place = Place::new();
    let join_key = JoinKey::generate();
    let subject = Place::subject(&join_key);
    let blob = place.blob(subject);
    let node = place.serve(&join_key, NodeState::Locked(subject), Some(blob));
    let outcome = place.unlock(&[&node], "");
    let shown = outcome.succeeds();
    for part in [&subject.node.to_string(), "no answer from the others", "1 of 2", "its data are open"] {
        assert!(shown.contains(part), "{part} is missing in:\n{shown}");
    }
    assert!(node.recovered() == Some(Recovered::Keys(content())));
    place.finish();
}

#[test]
fn a_node_with_a_fresh_key_needs_its_fingerprint() {
    let mut place = Place::new();
    let fresh = JoinKey::generate();
    let subject = Place::subject(&JoinKey::generate());
    let blob = place.blob(subject);
    let node = place.serve(&fresh, NodeState::Sealed { node: Some(subject.node) }, Some(blob));
    place.unlock(&[&node], "").fails(1, &["another key", "on the node's own console", "--fingerprint"]);
    let other = Fingerprint::of_fresh_key(&JoinKey::generate().public());
    place.unlock(&[&node], &format!("--fingerprint {other}")).fails(1, &["neither", "a node that starts anew"]);
    place.unlock(&[&node], "--fingerprint 12:34").fails(2, &["32 lower case hexadecimal digits"]);
    assert!(node.recovered().is_none());

    let fingerprint = Fingerprint::of_fresh_key(&fresh.public());
    // Who looks at our output must not find there what is to be read on the node.
    assert!(!format!("{:?}", place.unlock(&[&node], "")).contains(&fingerprint.to_string()));
    let outcome = place.unlock(&[&node], &format!("--fingerprint {other},{fingerprint}"));
    assert!(outcome.succeeds().contains("its data are open"));
    assert!(node.recovered() == Some(Recovered::Record(content())));
    place.finish();
}

#[test]
fn a_stranger_with_somebodys_blob_is_told_nothing() {
    let mut place = Place::new();
    let subject = Place::subject(&JoinKey::generate());
    let blob = place.blob(subject);
    // Whatever it says of itself: it does not have the key that the blob names.
    let stranger = JoinKey::generate();
    let node = place.serve(&stranger, NodeState::Locked(subject), Some(blob));
    place.unlock(&[&node], "").fails(1, &["it is a stranger"]);
    assert!(node.recovered().is_none());
    place.finish();
}

#[test]
fn the_words_of_another_cluster_are_told_by_name_and_not_sent() {
    let mut place = Place::new();
    let join_key = JoinKey::generate();
    let subject = Place::subject(&join_key);
    let blob = place.blob(subject);
    let node = place.serve(&join_key, NodeState::Locked(subject), Some(blob));
    let other = RecoveryKey::generate();
    place.write_words("words", &other);
    let (found, expected) = (other.fingerprint().to_string(), place.key.fingerprint().to_string());
    place.unlock(&[&node], "").fails(1, &["the words do not open it", &found, &expected]);
    std::fs::write(place.directory.path().join("words"), "one word").unwrap();
    place.unlock(&[&node], "").fails(1, &["a recovery key has 24 words, and here are 2"]);
    std::fs::remove_file(place.directory.path().join("words")).unwrap();
    place.unlock(&[&node], "").fails(1, &["could not be read"]);
    assert!(node.recovered().is_none());
    place.finish();
}

#[test]
fn what_needs_no_words_is_not_asked_for_them() {
    let mut place = Place::new();
    std::fs::remove_file(place.directory.path().join("words")).unwrap();
    let join_key = JoinKey::generate();
    let subject = Place::subject(&join_key);
    let open = place.serve(&join_key, NodeState::Open, None);
    assert!(place.unlock(&[&open], "").succeeds().contains("metropolis-open"));
    let without = place.serve(&join_key, NodeState::Locked(subject), None);
    place.unlock(&[&without], "").fails(1, &["it has no recovery blob", "polis cluster recover"]);
    let damaged = place.serve(&join_key, NodeState::Locked(subject), Some(place.blob(Place::subject(&join_key))));
    place.unlock(&[&damaged], "").fails(1, &["it has no recovery blob", "is another's"]);
    place.finish();
}

#[test]
fn one_node_that_fails_does_not_keep_the_others_closed() {
    let mut place = Place::new();
    let [first, second] = [(); 2].map(|()| JoinKey::generate());
    let subject = Place::subject(&first);
    let blob = place.blob(subject);
    let good = place.serve(&first, NodeState::Locked(subject), Some(blob));
    let subject = Place::subject(&second);
    let blob = place.blob(subject);
    let bad = place.serve_one(&second, NodeState::Locked(subject), Some(blob), true);
    let gone = Served { address: "127.1.0.1:1".parse().unwrap(), recovered: Arc::default() };
    let outcome = place.unlock(&[&bad, &gone, &good], "--timeout 20s");
    outcome.fails(1, &["refused: its data partition is another's", "127.1.0.1:1: it cannot be reached", "port 7836"]);
    assert!(outcome.stdout.contains("its data are open"));
    assert!(good.recovered().is_some() && bad.recovered().is_some());
    place.finish();
}
