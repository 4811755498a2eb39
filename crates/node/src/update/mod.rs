//! Updates of a machine that a node has to itself, and its starts from one image or the other.

mod trial;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polis_condition::{Conditions, Severity};
use polis_image::slots::{Entry, Slots, Standing};
use polis_machine::EspState;
use polis_proto::node_api::{BootImage, BootStatus};
use polis_storage::{Disk, DiskPath};
use polis_supervisor::{Context, with_causes};
use polis_update::{
    BootSlots, Fetch, FetchError, FetchLimits, ImageReference, Installed, KernelParts, LoadError, Progress,
    SelectedEntry, SlotsError,
};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tonic::async_trait;

pub(crate) use trial::keep as keep_trial;

/// Directory of the EFI system partition below the root of a node.
const ESP: &str = "esp";

/// Name of the condition that an image is being fetched or installed.
const UPDATE_UNDER_WAY: &str = "update-under-way";

/// Percent by which an image must have grown to be told again.
const TOLD_EVERY: u64 = 10;

/// What to do about an update that is under way.
const UPDATE_HINT: &str =
    "nothing needs to be done; the machine goes on with the image that it has until it is restarted";

/// Orders about the machine that a node has to itself. All of them are carried out to their end, whoever waits.
#[async_trait]
pub(crate) trait MachineOrders: Send + Sync + 'static {
    /// Fetches an image and installs it in the slot that does not run.
    async fn update(&self, context: &Context, reference: ImageReference) -> Result<(), OrderError>;
    /// Makes the other image the one that is tried at the next start.
    async fn roll_back(&self, context: &Context) -> Result<(), OrderError>;
    /// Loads the kernel of the image that starts next, to start without the firmware.
    async fn load_next_kernel(&self, context: &Context) -> Result<(), OrderError>;
    /// Whether the firmware can be asked to stop in its menu.
    fn has_firmware_menu(&self) -> bool;
    /// Which image runs, and which starts next.
    async fn boot_status(&self, context: &Context) -> Result<BootStatus, OrderError>;
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    /// Another one is.
    #[error("another update or rollback of this node is under way")]
    Busy,
    /// The image does not come.
    #[error("the image was not fetched, and nothing was changed")]
    Fetch(#[source] FetchError),
    /// The slots were not changed.
    #[error("the image that starts next was not changed")]
    Slots(#[source] SlotsError),
    /// There is no EFI system partition.
    #[error("this machine runs without disks, and has no place for another image")]
    Volatile,
    /// It cannot be written to.
    #[error("the EFI system partition of this machine can only be read: {reason}")]
    ReadOnly {
        /// What the system said when it was to be written to.
        reason: String,
    },
    /// It is not known what runs.
    #[error("it cannot be read by which entry of the boot loader this machine was started")]
    Selected(#[source] Arc<std::io::Error>),
    /// The next kernel is not loaded.
    #[error("the next image cannot be started without the firmware")]
    Load(#[source] LoadError),
}

/// The slots of the machine of this node. Clones are the same.
#[derive(Clone)]
pub(crate) struct MachineSlots(Arc<Inner>);

struct Inner {
    slots: BootSlots,
    esp: EspState,
    selected: Result<SelectedEntry, Arc<std::io::Error>>,
    fetch: Fetch,
    conditions: Conditions,
    /// One order at a time.
    turn: Arc<Mutex<()>>,
}

impl MachineSlots {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        esp: EspState,
        selected: std::io::Result<SelectedEntry>,
        conditions: Conditions,
    ) -> Self {
        let directory = DiskPath::parse(ESP).expect("a constant, valid path");
        Self(Arc::new(Inner {
            slots: BootSlots::new(disk, directory),
            esp,
            selected: selected.map_err(Arc::new),
            fetch: Fetch::new(FetchLimits::default(), None),
            conditions,
            turn: Arc::default(),
        }))
    }

    fn selected(&self) -> Result<&SelectedEntry, OrderError> {
        self.0.selected.as_ref().map_err(|error| OrderError::Selected(Arc::clone(error)))
    }

    fn turn(&self) -> Result<OwnedMutexGuard<()>, OrderError> {
        Arc::clone(&self.0.turn).try_lock_owned().map_err(|_| OrderError::Busy)
    }

    fn look_at_esp(&self) -> Result<(), OrderError> {
        match &self.0.esp {
            EspState::Mounted { .. } => Ok(()),
            EspState::ReadOnly { reason, .. } => Err(OrderError::ReadOnly { reason: reason.clone() }),
            EspState::Volatile => Err(OrderError::Volatile),
        }
    }

    /// Does something with the slots on a thread that may block. The turn ends when it has ended, even if nobody waits any more.
    async fn change<T: Send + 'static>(
        &self,
        context: &Context,
        turn: OwnedMutexGuard<()>,
        change: impl FnOnce(&BootSlots, &SelectedEntry) -> Result<T, SlotsError> + Send + 'static,
    ) -> Result<T, OrderError> {
        let (slots, selected) = (self.0.slots.clone(), self.selected()?.clone());
        let changed = context.blocking(move || {
            let _turn = turn;
            change(&slots, &selected)
        });
        changed.await.map_err(OrderError::Slots)
    }
}

#[async_trait]
impl MachineOrders for MachineSlots {
    async fn update(&self, context: &Context, reference: ImageReference) -> Result<(), OrderError> {
        let turn = self.turn()?;
        self.look_at_esp()?;
        self.selected()?;
        tracing::info!(image = %reference, "an update begins");
        let told = Told::new(self.0.conditions.clone(), &reference);
        let fetched = self.0.fetch.fetch(&reference, |progress| told.progress(&progress)).await;
        let fetched = fetched.map_err(OrderError::Fetch)?;
        told.raise("the image is being written to the EFI system partition");
        let installed = self.change(context, turn, move |slots, selected| slots.install(selected, &fetched)).await?;
        match &installed {
            Installed::ToBeTried(entry) => tracing::info!(
                version = entry.version,
                "the image is in slot {}, and is tried at the next start",
                entry.slot
            ),
            Installed::AlreadyNext(entry) => {
                tracing::info!(version = entry.version, "the image is in slot {} already and starts next", entry.slot);
            }
        }
        Ok(())
    }

    async fn roll_back(&self, context: &Context) -> Result<(), OrderError> {
        let turn = self.turn()?;
        self.look_at_esp()?;
        self.change(context, turn, BootSlots::roll_back).await?;
        tracing::info!("the other image is tried at the next start");
        Ok(())
    }

    async fn load_next_kernel(&self, context: &Context) -> Result<(), OrderError> {
        let (turn, slots) = (self.turn()?, self.0.slots.clone());
        let loaded = context.blocking(move || {
            let _turn = turn;
            let (entry, image) = slots.next_image().map_err(OrderError::Slots)?;
            let parts = KernelParts::of(&image).map_err(|error| OrderError::Load(error.into()))?;
            parts.load(&entry).map_err(OrderError::Load)
        });
        loaded.await
    }

    fn has_firmware_menu(&self) -> bool {
        polis_machine::has_firmware_menu()
    }

    async fn boot_status(&self, context: &Context) -> Result<BootStatus, OrderError> {
        let slots = self.0.slots.clone();
        let slots = context.blocking(move || slots.read()).await.map_err(OrderError::Slots)?;
        Ok(boot_status(&slots, self.selected()?))
    }
}

fn boot_status(slots: &Slots, selected: &SelectedEntry) -> BootStatus {
    let image = |entry: &Entry| BootImage {
        slot: entry.slot.to_string(),
        version: entry.version.clone(),
        sha256: entry.sha256.to_vec(),
        good: entry.standing == Standing::Good,
    };
    let running = selected.0.as_deref().and_then(|name| slots.running(name));
    BootStatus { running: running.map(image), next: slots.next().map(image) }
}

/// Tells how far an update is, until it is dropped.
struct Told {
    conditions: Conditions,
    reference: String,
    percent: AtomicU64,
}

impl Told {
    fn new(conditions: Conditions, reference: &ImageReference) -> Self {
        let told = Self { conditions, reference: reference.to_string(), percent: AtomicU64::new(0) };
        told.raise("the image is being fetched");
        told
    }

    fn progress(&self, progress: &Progress) {
        match progress {
            Progress::Received { bytes, of } => {
                let percent = bytes * 100 / (*of).max(1);
                if percent >= self.percent.load(Ordering::Relaxed) + TOLD_EVERY {
                    let told = percent - percent % TOLD_EVERY;
                    self.percent.store(told, Ordering::Relaxed);
                    self.raise(&format!("{told} % of the image are there"));
                }
            }
            Progress::Repeating { reason } => {
                tracing::warn!(reason, "fetching the image is tried again");
                self.percent.store(0, Ordering::Relaxed);
                self.raise(&format!("the image is being fetched; the last try has failed: {reason}"));
            }
        }
    }

    fn raise(&self, how_far: &str) {
        let message = format!("this node is being updated to {}: {how_far}", self.reference);
        self.conditions.raise(UPDATE_UNDER_WAY, Severity::Info, message, UPDATE_HINT);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.conditions.clear(UPDATE_UNDER_WAY);
    }
}

/// The error with its causes, for whoever gave the order.
pub(crate) fn explain(error: &OrderError) -> String {
    with_causes(error)
}

#[cfg(test)]
mod tests;
