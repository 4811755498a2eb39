//! The workload of the power cut tests: the life of a node as its storage sees it.
//!
//! Every record carries the number of its version, so that a recovered one can be compared with the last that was
//! acknowledged.

use std::error::Error;
use std::sync::{Arc, LazyLock};

use polis_secret::Secret32;
use polis_storage::data::{DataPartition as _, Progress};
use polis_storage::journal::{Epoch, Intent, Phase, Seals, StorageSecurity};
use polis_storage::simulation::{Image, Node, Recording, SimulatedDisk};
use polis_storage::{
    Disk as _, DiskPath, Journal, JournalStore, Layout, LocalRoles, NodeCredentials, PeerCredentials, PlainData,
    durable,
};
use tokio::runtime::{Builder, Runtime};

/// Ways in which each power cut is tried.
pub(crate) const SEEDS: u64 = 50;

const NODE: &str = "metropolis-00112233445566778899aabbccddeeff";

/// One for all, as each would start threads of its own.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().build().unwrap());

type Failed = Box<dyn Error + Send + Sync>;

/// A file that is there from the start and is removed for good.
const HINT: &str = "hint";

/// A disk with nothing but the hint, whose EFI system partition is FAT.
pub(crate) fn new_disk() -> Arc<SimulatedDisk> {
    let fat = vec![DiskPath::parse("esp").unwrap()];
    let disk = SimulatedDisk::default();
    disk.create_exclusive(&DiskPath::parse(HINT).unwrap(), 0o600, b"hint").unwrap();
    Arc::new(SimulatedDisk::new(disk.image(), fat))
}

pub(crate) fn layout(disk: &Arc<SimulatedDisk>) -> Layout {
    Layout::new(disk.clone())
}

fn journal_store(layout: &Layout) -> JournalStore {
    layout.journal_store(Seals::plain_only())
}

/// Versions of everything that a node keeps; none is older than any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Number of the journal's phase, from 1.
    phase: Option<u64>,
    journal: Option<u64>,
    formatted: bool,
    peer: Option<u64>,
    node: Option<u64>,
    roles: Option<u64>,
    last_state: Option<u64>,
    hint_removed: bool,
}

/// In which order a start reads its files: a sync that one read needs must not hide behind that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Backward,
}

impl Observed {
    /// Whether nothing here is older than there.
    pub(crate) fn at_least(&self, other: &Self) -> Result<(), String> {
        let newer = self.phase >= other.phase
            && self.journal >= other.journal
            && self.formatted >= other.formatted
            && self.peer >= other.peer
            && self.node >= other.node
            && self.roles >= other.roles
            && self.last_state >= other.last_state
            && self.hint_removed >= other.hint_removed;
        if newer { Ok(()) } else { Err(format!("found {self:?}, acknowledged {other:?}")) }
    }

    /// Starts a node on what is there and looks at everything.
    pub(crate) fn start(disk: &Arc<SimulatedDisk>) -> Result<Self, Failed> {
        let image = disk.image();
        let formatted = image.get(&DiskPath::parse("data/partition")?).is_some();
        let mut observed = Self {
            hint_removed: image.get(&DiskPath::parse(HINT)?).is_none(),
            last_state: match image.get(&DiskPath::parse("last_state.json")?) {
                Some(Node::File { content, .. }) => Some(std::str::from_utf8(content)?.parse()?),
                Some(Node::Directory { .. }) | None => None,
            },
            ..Self::default()
        };
        start(disk, Order::Forward, &mut observed, &mut |_| {})?;
        // A start that has to format again would hide that the format was lost.
        Ok(Self { formatted, ..observed })
    }
}

/// What a start does before anything is decided, telling after each step what it has seen.
fn start(
    disk: &Arc<SimulatedDisk>,
    order: Order,
    observed: &mut Observed,
    seen: &mut dyn FnMut(&Observed),
) -> Result<(), Failed> {
    let layout = layout(disk);
    layout.prepare_start()?;
    if let Some(journal) = journal_store(&layout).load()? {
        observed.phase = Some(phase_number(journal.value.phase()));
        observed.journal = journal.value.highest_epoch.map(|epoch| epoch.epoch);
        seen(observed);
        let data = PlainData::new(disk.clone());
        let progress = tokio::sync::watch::Sender::new(Progress::default());
        match journal.value.permit_format() {
            Ok(permit) => RUNTIME.block_on(data.format(permit, NODE, None, &progress))?,
            Err(_) => RUNTIME.block_on(data.open(NODE, None, &progress))?,
        }
        for directory in [&layout.data.etcd.data, &layout.data.node.directory] {
            if !directory.exists()? {
                return Err(format!("{} is missing in an open data partition", directory.path()).into());
            }
        }
        observed.formatted = true;
        seen(observed);
    }
    let readers: [Reader; 3] = [read_peer, read_node, read_roles];
    match order {
        Order::Forward => read_all(&layout, readers.iter(), observed, seen),
        Order::Backward => read_all(&layout, readers.iter().rev(), observed, seen),
    }
}

type Reader = fn(&Layout, &mut Observed) -> Result<(), Failed>;

fn read_all<'a>(
    layout: &Layout,
    readers: impl Iterator<Item = &'a Reader>,
    observed: &mut Observed,
    seen: &mut dyn FnMut(&Observed),
) -> Result<(), Failed> {
    for reader in readers {
        reader(layout, observed)?;
        seen(observed);
    }
    Ok(())
}

fn read_peer(layout: &Layout, observed: &mut Observed) -> Result<(), Failed> {
    observed.peer = layout.data.etcd.credentials.load()?.map(|credentials| credentials.crl.len() as u64);
    Ok(())
}

fn read_node(layout: &Layout, observed: &mut Observed) -> Result<(), Failed> {
    observed.node = layout.data.node.credentials.load()?.map(|credentials| credentials.ca_certificate.len() as u64);
    Ok(())
}

fn read_roles(layout: &Layout, observed: &mut Observed) -> Result<(), Failed> {
    observed.roles = layout.data.node.roles.load()?.map(|roles| roles_number(roles.value));
    Ok(())
}

fn phase_number(phase: &Phase) -> u64 {
    match phase {
        Phase::Formattable => 1,
        Phase::Formatted => 2,
        Phase::Enrolled => 3,
        Phase::Removed { .. } => 4,
    }
}

fn roles(number: u64) -> LocalRoles {
    LocalRoles {
        kubernetes_worker: number & 1 != 0,
        kubernetes_controller: number & 2 != 0,
        consensus_member: number & 4 != 0,
    }
}

fn roles_number(roles: LocalRoles) -> u64 {
    u64::from(roles.kubernetes_worker)
        + 2 * u64::from(roles.kubernetes_controller)
        + 4 * u64::from(roles.consensus_member)
}

/// A node's life and what it promised on the way.
pub(crate) struct Life {
    pub(crate) disk: Arc<SimulatedDisk>,
    /// What was acknowledged after how many operations; the last one counts.
    promises: Vec<(usize, Observed)>,
    /// Operations before this are those of another life, and are tried there.
    from: usize,
}

impl Life {
    pub(crate) fn new(disk: Arc<SimulatedDisk>) -> Self {
        Self { disk, promises: vec![(0, Observed::default())], from: 0 }
    }

    pub(crate) fn acknowledged(&self) -> &Observed {
        &self.promises.last().unwrap().1
    }

    fn acknowledged_at(&self, prefix: usize) -> &Observed {
        &self.promises.iter().rev().find(|(position, _)| *position <= prefix).unwrap().1
    }

    fn promise(&mut self, change: impl FnOnce(&mut Observed)) {
        let mut observed = *self.acknowledged();
        change(&mut observed);
        self.promises.push((self.disk.position(), observed));
    }

    /// From nothing to a member whose records have been written several times.
    pub(crate) fn first_start(&mut self) -> Result<(), Failed> {
        let layout = layout(&self.disk);
        let store = journal_store(&layout);
        layout.prepare_start()?;

        assert!(store.load()?.is_none());
        let mut journal = Journal::new(Intent {
            parameters: vec![7; 700],
            node_key: Secret32::new([1; 32]),
            node_public_key: [2; 32],
            join_key: Secret32::new([3; 32]),
            share_key: Secret32::new([4; 32]),
            storage_security: Some(StorageSecurity::Insecure),
        });
        self.write_journal(&store, &mut journal, 1, "test/journal/intent")?;

        let data = PlainData::new(self.disk.clone());
        let progress = tokio::sync::watch::Sender::new(Progress::default());
        RUNTIME.block_on(data.format(journal.permit_format()?, NODE, None, &progress))?;
        self.promise(|observed| observed.formatted = true);

        journal = journal.advance(Phase::Formatted)?;
        self.write_journal(&store, &mut journal, 2, "test/journal/formatted")?;
        for number in 1..=3 {
            let credentials = PeerCredentials {
                ca_certificate: b"peer ca".to_vec(),
                ca_key: (number == 1).then(|| b"peer ca key".to_vec().into()),
                crl: vec![5; usize::try_from(number)?],
                member_certificate: b"member".to_vec(),
                member_key: b"member key".to_vec().into(),
            };
            layout.data.etcd.credentials.store(&credentials, "test/peer")?;
            self.promise(|observed| observed.peer = Some(number));
            let credentials = NodeCredentials {
                node_key: Secret32::new([1; 32]),
                node_certificate: vec![6; 1200],
                ca_certificate: vec![7; usize::try_from(number)?],
            };
            layout.data.node.credentials.store(&credentials, "test/node")?;
            self.promise(|observed| observed.node = Some(number));
            layout.data.node.roles.store(&roles(number), "test/roles")?;
            self.promise(|observed| observed.roles = Some(number));
            layout.last_state.write(number.to_string().as_bytes(), "test/last_state")?;
            self.promise(|observed| observed.last_state = Some(number));
        }
        durable::remove(&*self.disk, "test/hint/remove", &DiskPath::parse(HINT)?)?;
        self.promise(|observed| observed.hint_removed = true);
        journal = journal.advance(Phase::Enrolled)?;
        for number in 3..=6 {
            journal.node_key = None;
            self.write_journal(&store, &mut journal, number, "test/journal/enrolled")?;
        }
        Ok(())
    }

    fn write_journal(
        &mut self,
        store: &JournalStore,
        journal: &mut Journal,
        number: u64,
        site: &'static str,
    ) -> Result<(), Failed> {
        journal.highest_epoch = Some(Epoch { incarnation: 1, epoch: number });
        store.store(journal, site)?;
        let phase = phase_number(journal.phase());
        self.promise(|observed| (observed.journal, observed.phase) = (Some(number), Some(phase)));
        Ok(())
    }

    /// A start after another, which acts on what it sees: so all of that counts as acknowledged.
    pub(crate) fn second_start(&mut self, order: Order) -> Result<(), Failed> {
        let disk = Arc::clone(&self.disk);
        self.from = disk.position();
        let mut observed = *self.acknowledged();
        let mut steps = Vec::new();
        start(&disk, order, &mut observed, &mut |observed| steps.push((disk.position(), *observed)))?;
        self.promises.extend(steps);
        Ok(())
    }
}

/// Cuts the power after each operation in each way, starts the node again, and compares; returns how many cuts there were.
pub(crate) fn check_cuts(life: &Life, recording: &Recording) -> Result<usize, String> {
    let mut checked = 0;
    for cut in recording.cuts().unwrap().into_iter().skip(life.from) {
        let acknowledged = life.acknowledged_at(cut.prefix);
        // Several seeds leave the same; each image is tried once.
        let mut tried: Vec<Image> = Vec::new();
        for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
            let image = cut.power_cut(seed);
            checked += 1;
            if !tried.contains(&image) {
                recover(image.clone(), &recording.fat, acknowledged)
                    .map_err(|error| format!("power cut after {} operations, seed {seed}: {error}", cut.prefix))?;
                tried.push(image);
            }
        }
    }
    Ok(checked)
}

fn recover(image: Image, fat: &[DiskPath], acknowledged: &Observed) -> Result<(), String> {
    let disk = Arc::new(SimulatedDisk::new(image, fat.to_vec()));
    let observed = Observed::start(&disk).map_err(chain)?;
    observed.at_least(acknowledged)?;
    let left: Vec<DiskPath> = (disk.image().files().into_iter())
        .filter(|path| path.name().is_some_and(|name| name.ends_with(".polis-tmp")))
        .collect();
    if left.is_empty() { Ok(()) } else { Err(format!("temporaries are left: {left:?}")) }
}

/// An error with all its causes.
fn chain(error: Failed) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
