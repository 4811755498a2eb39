//! Mounting and unmounting, and the mounts that are left over.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_fault::point;
use polis_secret::Secret32;
use polis_storage::PlainFile;
use polis_storage::data::DataError;
use polis_sys::{Bond, Command, Importance, Output};
use rustix::event::{PollFd, PollFlags};
use rustix::mount::UnmountFlags;

use super::claim;
use super::core::{Core, State};
use super::mounted::{Mounted, OnLoss};
use super::place::Place;
use super::slots::WRONG_KEY;
use super::{BACKEND, lines, tool_failed, unavailable};
use crate::child::{self, ToolError};
use crate::mounts::{Mount, Mounts};

/// Type of our mounts.
const MOUNT_KIND: &str = "fuse.gocryptfs";
/// More than etcd, which only loses time when the kernel kills it to get memory: never killed for that. The disk they share.
const IMPORTANCE: Importance = Importance { out_of_memory_score: Some(-1000), disk_level: Some(0) };
/// How long nobody may have used the mount for gocryptfs to unmount it and end: what a killed node leaves behind is gone after it, and
/// it is longer than it takes us to see the mount and hold it.
const IDLE: &str = "1s";
/// How often gocryptfs is started, should it have ended because it took us longer than that.
const STARTS: usize = 3;
/// Where the kernel has a directory for each FUSE connection, if that file system is mounted.
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long a mount that is in use may keep us waiting before it is taken away from whoever uses it. All of ours have
/// closed their files when it is closed.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(3);
/// How often unmounting is tried meanwhile.
const UNMOUNT_INTERVAL: Duration = Duration::from_millis(100);
/// How long gocryptfs may run on after its mount is gone.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long the gocryptfs of an earlier life may run on until that is said to be an error: its disk may be slow, and where it has a
/// mount that this life cannot see, it ends when nobody has used that for a while.
const EARLIER_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for.
const EARLIER_INTERVAL: Duration = Duration::from_millis(20);

impl Core {
    /// Mounts the ciphertext with the first slot that opens.
    pub(super) fn mount(&self, state: &mut State, place: &Place, key: &Secret32) -> Result<(), DataError> {
        self.layout.data.directory.create("data/gocryptfs/mount-point")?;
        let failed = |error| tool_failed("mounting", &self.path(), error);
        let claim = claim::take(&place.encrypted)?.ok_or_else(|| failed(still_there(place)))?;
        let claim = Arc::new(claim);
        let slots = self.slots(place);
        let mut problem = None;
        let present = slots.present()?;
        for slot in &present {
            match self.start(&claim, place, slot, key)? {
                Ok(mounted) => {
                    state.mounted = Some(mounted);
                    self.lost.send_replace(None);
                    self.inner_gate.set_open();
                    return Ok(());
                }
                Err(ToolError::Failed { status: WRONG_KEY, .. }) => {}
                // The other slot may be whole.
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        if present.is_empty() {
            let path = self.layout.encrypted.directory.full_path();
            return Err(DataError::Damaged {
                path,
                backend: BACKEND,
                problem: "both key slots are missing".to_owned(),
            });
        }
        Err(problem.map_or_else(|| slots.wrong_keys(), failed))
    }

    /// Starts gocryptfs with one slot.
    fn start(
        &self,
        claim: &Arc<OwnedFd>,
        place: &Place,
        slot: &PlainFile,
        key: &Secret32,
    ) -> Result<Result<Mounted, ToolError>, DataError> {
        let mut arguments: Vec<OsString> =
            ["-fg", "-q", "-nosyslog", "-nodev", "-nosuid", "-noexec", "-idle", IDLE].map(OsString::from).into();
        arguments.extend(["-fsname".into(), place.source_name()]);
        arguments.extend(["-config".into(), place.slot(slot).into()]);
        arguments.extend(["--".into(), place.cipher.clone().into(), place.mount_point.clone().into()]);
        let command = self.tools.command(arguments).map_err(|error| unavailable(&self.path(), error))?;
        let mut starts = STARTS;
        loop {
            let command = Command {
                standard_output: Output::Open(Arc::clone(claim)),
                standard_error: Output::Datagrams,
                importance: IMPORTANCE,
                bond: Bond::LivesOn,
                ..command.clone()
            };
            point("data/gocryptfs/mount", "begin");
            let started = Mounted::start(command, &lines(&[key]), place, self.on_loss());
            starts -= 1;
            match started {
                Err(ToolError::Failed { status, .. }) if status.is_success() && starts > 0 => {
                    tracing::warn!("gocryptfs had ended before its mount was used, and is started again");
                }
                started => {
                    if started.is_ok() {
                        point("data/gocryptfs/mount", "done");
                    }
                    return Ok(started);
                }
            }
        }
    }

    /// What happens when gocryptfs dies: at once nobody passes any more, then everybody is told.
    fn on_loss(&self) -> OnLoss {
        let (gate, inner_gate, lost) = (self.gate.clone(), self.inner_gate.clone(), self.lost.clone());
        Box::new(move |reason| {
            gate.set_closed();
            inner_gate.set_closed();
            lost.send_replace(Some(reason));
        })
    }

    /// Unmounts what is mounted and waits for the end of gocryptfs.
    pub(super) fn unmount(&self, state: &mut State, place: &Place) -> Result<(), DataError> {
        self.gate.set_closed();
        self.inner_gate.set_closed();
        let Some(mut mounted) = state.mounted.take() else { return Ok(()) };
        mounted.let_go();
        let unmounted = self.clear_mounts(place, UNMOUNT_PATIENCE);
        if unmounted.is_ok() && !mounted.wait_for_end(END_PATIENCE) {
            // All of ours that wrote something have ended, so it is writing nothing of theirs.
            tracing::warn!(
                "gocryptfs ran on after its mount at {} was gone, and was killed",
                place.mount_point.display()
            );
            mounted.kill();
            mounted.wait_for_end(END_PATIENCE);
        }
        unmounted
    }

    /// Clears the mounts that an earlier life has left, and waits until its gocryptfs has ended. Refuses the mounts of anyone else.
    pub(super) fn clear_stale_mounts(&self, state: &mut State) -> Result<(), DataError> {
        if state.is_alive() {
            return Ok(());
        }
        state.mounted = None;
        let place = Place::find(&self.layout)?;
        let failed = |error| tool_failed("unmounting", &self.path(), error);
        let mounts = Mounts::open().map_err(failed)?;
        let end = Instant::now() + EARLIER_PATIENCE;
        loop {
            // Whoever of ours used it was killed with the node. Cut off, its gocryptfs ends also where another namespace has the mount.
            self.clear_mounts(&place, Duration::ZERO)?;
            if claim::is_free(&place.encrypted)? {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(failed(still_there(&place)));
            }
            // It may still be about to mount.
            let mut files = [PollFd::new(&mounts, PollFlags::PRI)];
            let lost = |source| failed(ToolError::Mounts { path: place.mount_point.clone(), source });
            child::wait(&mut files, EARLIER_INTERVAL).map_err(lost)?;
        }
    }

    /// Unmounts all of ours at the mount point. One that stays in use for longer than `patience` is cut off from its gocryptfs and
    /// unmounted lazily, and so is any without patience.
    fn clear_mounts(&self, place: &Place, patience: Duration) -> Result<(), DataError> {
        let failed = |error| tool_failed("unmounting", &self.path(), error);
        let mut mounts = Mounts::open().map_err(failed)?;
        let end = Instant::now() + patience;
        let mut lazily = patience.is_zero();
        loop {
            let found = mounts.at(&place.mount_point).map_err(failed)?;
            let Some(mount) = found.into_iter().next_back() else { return Ok(()) };
            if mount.kind != MOUNT_KIND || mount.source != place.source_name() {
                let source_name = mount.source.to_string_lossy().into_owned();
                let (mount_point, kind) = (mount.mount_point, mount.kind);
                return Err(failed(ToolError::ForeignMount { mount_point, kind, source_name }));
            }
            if lazily {
                abort(&mount);
                if mounts.at(&place.mount_point).map_err(failed)?.last() != Some(&mount) {
                    continue;
                }
            }
            let tried =
                self.tools.unmount(&place.mount_point, lazily).map_err(|error| unavailable(&self.path(), error))?;
            match tried {
                Ok(()) => {}
                // gocryptfs may have unmounted it itself meanwhile.
                Err(error) if lazily => {
                    if mounts.at(&place.mount_point).map_err(failed)?.last() == Some(&mount) {
                        return Err(failed(error));
                    }
                }
                Err(_) if Instant::now() < end => {
                    let mut files = [PollFd::new(&mounts, PollFlags::PRI)];
                    let lost = |source| failed(ToolError::Mounts { path: place.mount_point.clone(), source });
                    child::wait(&mut files, UNMOUNT_INTERVAL).map_err(lost)?;
                }
                Err(error) => {
                    tracing::warn!(
                        "{} is still in use and is taken away from who uses it ({error})",
                        place.mount_point.display()
                    );
                    lazily = true;
                }
            }
        }
    }
}

fn still_there(place: &Place) -> ToolError {
    ToolError::StillThere { directory: place.encrypted.clone() }
}

/// Cuts a mount off from the process behind it: whoever waits for an answer has an error, and the process finishes what it has begun and
/// ends. A gocryptfs that was killed just after it had mounted may even hold a file of its own mount open: its end then waits for
/// an answer that only itself could give, for ever. Whether this works shows when the mount is cleared.
fn abort(mount: &Mount) {
    let connection = format!("{FUSE_CONNECTIONS}/{}/abort", mount.minor);
    // The control files may not be there; they belong to the user who mounted.
    if let Ok(mut file) = std::fs::OpenOptions::new().write(true).open(connection) {
        let _ = file.write_all(b"1");
    }
    if rustix::process::geteuid().is_root() {
        let _ = rustix::mount::unmount(&mount.mount_point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}
