//! Mounting and unmounting, and the mounts that are left over.

use std::ffi::OsString;
use std::io::Write as _;
use std::time::{Duration, Instant};

use polis_fault::point;
use polis_secret::Secret32;
use polis_storage::data::DataError;
use polis_sys::{Command, Importance};
use rustix::event::{PollFd, PollFlags};
use rustix::mount::UnmountFlags;

use super::core::{Core, State};
use super::mounted::{Mounted, OnLoss};
use super::place::Place;
use super::slots::WRONG_KEY;
use super::{BACKEND, lines, tool_failed, unavailable};
use crate::child::{self, ToolError};
use crate::mounts::{Mount, Mounts};

/// Type of our mounts.
const MOUNT_KIND: &str = "fuse.gocryptfs";
/// As much as etcd, which cannot run without it: the end of either ends the other.
const IMPORTANCE: Importance = Importance { out_of_memory_score: Some(-900), disk_level: Some(0) };
/// Where the kernel has a directory for each FUSE connection, if that file system is mounted.
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long a mount that is in use may keep us waiting before it is taken away from whoever uses it. All of ours have
/// closed their files when it is closed.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(2);
/// How often unmounting is tried meanwhile.
const UNMOUNT_INTERVAL: Duration = Duration::from_millis(100);
/// How long gocryptfs may run on after its mount is gone.
const END_PATIENCE: Duration = Duration::from_secs(2);

impl Core {
    /// Mounts the ciphertext with the first slot that opens.
    pub(super) fn mount(&self, state: &mut State, place: &Place, key: &Secret32) -> Result<(), DataError> {
        self.layout.data.directory.create("data/gocryptfs/mount-point")?;
        let slots = self.slots(place);
        let mut problem = None;
        let present = slots.present()?;
        for slot in &present {
            let mut arguments: Vec<OsString> =
                ["-fg", "-q", "-nosyslog", "-nodev", "-nosuid", "-noexec"].map(OsString::from).into();
            arguments.extend(["-fsname".into(), place.source_name()]);
            arguments.extend(["-config".into(), place.slot(slot).into()]);
            arguments.extend(["--".into(), place.cipher.clone().into(), place.mount_point.clone().into()]);
            let command = self.tools.command(arguments).map_err(|error| unavailable(&self.path(), error))?;
            let command = Command { importance: IMPORTANCE, ..command };
            point("data/gocryptfs/mount", "begin");
            match Mounted::start(command, &lines(&[key]), place, self.on_loss()) {
                Ok(mounted) => {
                    point("data/gocryptfs/mount", "done");
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
        Err(problem.map_or_else(|| slots.wrong_keys(), |error| tool_failed("mounting", &self.path(), error)))
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
        let Some(mounted) = state.mounted.take() else { return Ok(()) };
        mounted.expect_end();
        let unmounted = self.clear_mounts(place, Some(UNMOUNT_PATIENCE));
        if !mounted.wait_for_end(if unmounted.is_ok() { END_PATIENCE } else { Duration::ZERO }) {
            // Who still uses the mount keeps the process alive. What was written is with the kernel already.
            tracing::warn!(
                "gocryptfs ran on after its mount at {} was gone, and was killed",
                place.mount_point.display()
            );
            mounted.kill();
            mounted.wait_for_end(END_PATIENCE);
        }
        unmounted
    }

    /// Clears the mounts that a process left which is gone, and refuses those of anyone else.
    pub(super) fn clear_stale_mounts(&self, state: &mut State) -> Result<(), DataError> {
        if state.is_alive() {
            return Ok(());
        }
        state.mounted = None;
        let place = Place::find(&self.layout)?;
        self.clear_mounts(&place, None)
    }

    /// Unmounts all of ours at the mount point, lazily when `patience` is over. Without any, what is there was left by a
    /// process that is gone, and nobody can have any more of it.
    fn clear_mounts(&self, place: &Place, patience: Option<Duration>) -> Result<(), DataError> {
        let failed = |error| tool_failed("unmounting", &self.path(), error);
        let mut mounts = Mounts::open().map_err(failed)?;
        let end = Instant::now() + patience.unwrap_or_default();
        let mut lazily = false;
        loop {
            let found = mounts.at(&place.mount_point).map_err(failed)?;
            let Some(mount) = found.into_iter().next_back() else { return Ok(()) };
            if mount.kind != MOUNT_KIND || mount.source != place.source_name() {
                let source_name = mount.source.to_string_lossy().into_owned();
                let (mount_point, kind) = (mount.mount_point, mount.kind);
                return Err(failed(ToolError::ForeignMount { mount_point, kind, source_name }));
            }
            if patience.is_none() {
                abort(&mount);
                if mounts.at(&place.mount_point).map_err(failed)?.last() != Some(&mount) {
                    continue;
                }
            }
            let tried =
                self.tools.unmount(&place.mount_point, lazily).map_err(|error| unavailable(&self.path(), error))?;
            match tried {
                Ok(()) => {}
                Err(error) if lazily => return Err(failed(error)),
                Err(_) if Instant::now() < end => {
                    let mut files = [PollFd::new(&mounts, PollFlags::PRI)];
                    let lost = |source| failed(ToolError::Mounts { path: place.mount_point.clone(), source });
                    child::wait(&mut files, UNMOUNT_INTERVAL).map_err(lost)?;
                }
                Err(error) => {
                    tracing::warn!(
                        "{} is still in use and is unmounted lazily: whoever uses it keeps it until they end ({error})",
                        place.mount_point.display()
                    );
                    lazily = true;
                }
            }
        }
    }
}

/// Cuts a stale mount off from the process behind it. A gocryptfs that was killed just after it had mounted may hold a file of
/// its own mount open: its end then waits for an answer that only itself could give, for ever, and so does everybody who
/// looks at the mount. Whether this works shows when the mount is cleared.
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
