//! SaveSnapshot: a snapshot of the cluster's state, as a file for an operator. It leaves the node sealed to the recovery key, or by
//! express wish as it is.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write};
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{self, BoxStream, StreamExt as _};
use polis_curator::Curator;
use polis_identity::ClusterId;
use polis_proto::node_api::SaveSnapshotResponse;
use polis_recovery::RecoveryPublicKey;
use polis_recovery::snapshot::{ReadSnapshotError, SnapshotHeader, SnapshotMember, SnapshotReader, SnapshotWriter};
use polis_snapshots::{Checker, Fresh, OrderError, Snapshots};
use polis_supervisor::{BoxError, Context, with_causes};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;

/// Bytes of the file in one message: a sixteenth of what clients of gRPC take by default.
const MESSAGE_BYTES: usize = 256 << 10;

/// Snapshots that are handed out at a time. Each is read twice from the disk.
const AT_ONCE: usize = 2;

/// Hands out snapshots. Clones are the same.
#[derive(Clone)]
pub(crate) struct SnapshotFiles {
    snapshots: Snapshots,
    curator: watch::Receiver<Option<Curator>>,
    places: Arc<Semaphore>,
}

/// The answer to one call.
pub(super) type SnapshotStream = BoxStream<'static, Result<SaveSnapshotResponse, Status>>;

/// A file that is being handed out, a piece at a time.
struct Handout {
    from: File,
    writer: Option<SnapshotWriter<Sink>>,
    sink: Sink,
    digest: Sha256,
    /// Told in the first message.
    length: Option<u64>,
    /// Given back when the client has all, or is gone.
    _place: OwnedSemaphorePermit,
}

/// What was written and not handed out yet.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl SnapshotFiles {
    pub(crate) fn new(snapshots: Snapshots, curator: watch::Receiver<Option<Curator>>) -> Self {
        Self { snapshots, curator, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Takes a snapshot and begins to hand it out. The work is done under `context`.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION without a recovery key, UNAVAILABLE while the member of this node does not work, RESOURCE_EXHAUSTED when
    /// others have asked already.
    pub(super) async fn save(
        &self,
        context: &Context,
        cluster: ClusterId,
        plaintext: bool,
    ) -> Result<SnapshotStream, Status> {
        let curator = self.curator.borrow().clone().ok_or_else(|| refusal(&OrderError::NoMember))?;
        let orders = Arc::clone(&curator.nodes().orders().borrow());
        let recipient = recipient(&orders.recovery_public_key, plaintext)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| refusal(&OrderError::Busy))?;
        let members = orders
            .members
            .iter()
            .map(|member| SnapshotMember { node: member.node_id, address: member.addresses.first().copied() });
        let header = SnapshotHeader {
            cluster,
            revision: 0,
            members: members.collect(),
            taken_at_seconds: 0,
            polis_version: polis_version::text().to_owned(),
            etcd_version: curator
                .consensus()
                .status()
                .borrow()
                .version
                .map(|version| version.to_string())
                .unwrap_or_default(),
            content_length: 0,
            content_sha256: [0; 32],
        };
        let fresh = self.snapshots.take_now().await.map_err(|error| refusal(&error))?;
        let began = context.blocking(move || Handout::begin(fresh, header, recipient, place)).await;
        let handout = began.map_err(|error| Status::internal(with_causes(&*error)))?;
        let context = context.clone();
        let pieces = stream::unfold(Some(handout), move |handout| {
            let context = context.clone();
            async move {
                let handout = handout?;
                let next = context.blocking(move || handout.next()).await;
                Some(match next {
                    Ok((message, rest)) => (Ok(message), rest),
                    Err(error) => (Err(Status::internal(with_causes(&*error))), None),
                })
            }
        });
        Ok(pieces.boxed())
    }
}

impl Handout {
    /// Reads the snapshot once, for what the header has to say, and sees that it is whole. Blocks.
    fn begin(
        fresh: Fresh,
        header: SnapshotHeader,
        recipient: Option<RecoveryPublicKey>,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, BoxError> {
        let Fresh { name, mut file, length } = fresh;
        let (mut digest, mut checker) = (Sha256::new(), Checker::default());
        let mut piece = vec![0; MESSAGE_BYTES];
        loop {
            let bytes = match file.read(&mut piece)? {
                0 => break,
                length => &piece[..length],
            };
            digest.update(bytes);
            checker.update(bytes);
        }
        checker.finish()?;
        file.rewind()?;
        let header = SnapshotHeader {
            revision: u64::try_from(name.revision)?,
            taken_at_seconds: name.seconds,
            content_length: length,
            content_sha256: digest.finalize().into(),
            ..header
        };
        let sink = Sink::default();
        let writer = SnapshotWriter::new(sink.clone(), header, recipient.as_ref())?;
        let whole = file_length(&sink)?;
        Ok(Self { from: file, writer: Some(writer), sink, digest: Sha256::new(), length: Some(whole), _place: place })
    }

    /// The next message, and what is left, if anything is. Blocks.
    fn next(mut self) -> Result<(SaveSnapshotResponse, Option<Self>), BoxError> {
        let mut piece = vec![0; MESSAGE_BYTES / 2];
        while self.sink.length() < MESSAGE_BYTES / 2 {
            let Some(writer) = &mut self.writer else { break };
            match self.from.read(&mut piece)? {
                0 => {
                    if let Some(writer) = self.writer.take() {
                        writer.finish()?;
                    }
                }
                length => writer.write_all(&piece[..length])?,
            }
        }
        let data = self.sink.take();
        self.digest.update(&data);
        let file_length = self.length.take().unwrap_or_default();
        // Whatever was written last is handed out with the hash of all.
        let is_last = self.writer.is_none();
        let sha256 = if is_last { self.digest.clone().finalize().to_vec() } else { Vec::new() };
        Ok((SaveSnapshotResponse { file_length, data, sha256 }, (!is_last).then_some(self)))
    }
}

impl Sink {
    fn length(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How long the file will be whose beginning was written.
fn file_length(sink: &Sink) -> Result<u64, ReadSnapshotError> {
    let begun = sink.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(SnapshotReader::new(&begun[..])?.file_length())
}

/// To whom the file is sealed.
fn recipient(key: &[u8], plaintext: bool) -> Result<Option<RecoveryPublicKey>, Status> {
    if plaintext {
        return Ok(None);
    }
    if key.is_empty() {
        return Err(Status::failed_precondition(
            "the cluster has no recovery key to which its snapshots could be encrypted; set one (polis recovery-key create, polis \
             cluster recovery-key set), or add --plaintext: whoever has the file then has the keys of the cluster",
        ));
    }
    let key = <[u8; 32]>::try_from(key).ok().and_then(RecoveryPublicKey::new);
    key.map(Some).ok_or_else(|| Status::internal("the recovery key that the cluster has stored is none"))
}

fn refusal(error: &OrderError) -> Status {
    let text = with_causes(error);
    match error {
        OrderError::NoMember | OrderError::Stopping => Status::unavailable(text),
        OrderError::Busy => Status::resource_exhausted(text),
        OrderError::Take(_) => Status::aborted(text),
    }
}

#[cfg(test)]
mod tests {
    use polis_recovery::RecoveryKey;
    use polis_recovery::snapshot::Protection;
    use polis_snapshots::SnapshotName;
    use tonic::Code;

    use super::*;

    fn fresh(bytes: &[u8]) -> Fresh {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Fresh { name: SnapshotName { seconds: 1_000, revision: 7 }, file, length: bytes.len() as u64 }
    }

    fn header() -> SnapshotHeader {
        SnapshotHeader {
            cluster: "00112233445566778899aabbccddeeff".parse().unwrap(),
            revision: 0,
            members: vec![],
            taken_at_seconds: 0,
            polis_version: "0.1.0".into(),
            etcd_version: "3.6.0".into(),
            content_length: 0,
            content_sha256: [0; 32],
        }
    }

    fn handout(bytes: &[u8], key: Option<&RecoveryKey>) -> Result<Vec<SaveSnapshotResponse>, BoxError> {
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let mut next = Some(Handout::begin(fresh(bytes), header(), key.map(RecoveryKey::public), place)?);
        let mut messages = Vec::new();
        while let Some(handout) = next.take() {
            let (message, rest) = handout.next()?;
            messages.push(message);
            next = rest;
        }
        Ok(messages)
    }

    #[test]
    fn a_file_comes_in_bounded_pieces_with_its_hash_and_opens_with_the_key() {
        let database = vec![7; 1 << 20];
        let content = [&database[..], &Sha256::digest(&database)].concat();
        let key = RecoveryKey::generate();
        for key in [None, Some(&key)] {
            let messages = handout(&content, key).unwrap();
            assert!(messages.iter().all(|message| message.data.len() <= 2 * MESSAGE_BYTES));
            assert!(messages.len() > 2);
            let file: Vec<u8> = messages.iter().flat_map(|message| message.data.clone()).collect();
            assert_eq!(messages[0].file_length, file.len() as u64);
            let (last, others) = messages.split_last().unwrap();
            assert_eq!(last.sha256, Sha256::digest(&file).to_vec());
            assert!(others.iter().all(|message| message.sha256.is_empty()));
            let reader = SnapshotReader::new(&file[..]).unwrap();
            assert_eq!((reader.header().revision, reader.header().taken_at_seconds), (7, 1_000));
            assert_eq!(reader.protection() == Protection::Plaintext, key.is_none());
            let mut opened = Vec::new();
            reader.open(key).unwrap().read_to_end(&mut opened).unwrap();
            assert!(opened == content);
        }
    }

    #[test]
    fn what_is_damaged_does_not_leave() {
        let database = vec![7; 4096];
        let mut content = [&database[..], &Sha256::digest(&database)].concat();
        content[100] ^= 1;
        assert!(handout(&content, None).unwrap_err().to_string().contains("damaged"));
    }

    #[test]
    fn without_a_recovery_key_it_leaves_only_by_express_wish() {
        let key = RecoveryKey::generate().public();
        let code = |key: &[u8], plaintext| recipient(key, plaintext).map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code(&[], false), Code::FailedPrecondition);
        assert_eq!(code(&[1; 5], false), Code::Internal);
        assert_eq!(code(&[], true), Code::Ok);
        assert_eq!(recipient(key.as_bytes(), false).unwrap(), Some(key));
        assert_eq!(recipient(key.as_bytes(), true).unwrap(), None);
    }
}
