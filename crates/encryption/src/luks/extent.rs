//! How much of an authenticated device a file system covers: as much as was written.
//!
//! Reading a sector that was never written fails, so sectors are written with zeroes before a file system covers them. A first part
//! is written before the file system is made; then a thread writes one step after the other behind the end of the file system, and
//! has it grow over each. How far it is, is the size of the file system: after a power cut it goes on there.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polis_disks::{Device, DeviceError, MIB};

/// What is written before the file system is made, in bytes: an XFS is at least 300 MiB, its log 64 MiB of that, and etcd has 128 MiB
/// before it has any content.
pub(super) const FIRST: u64 = 320 * MIB;
/// The first part is no smaller a part of the device than this: the file system grows by groups of half the first part, and each
/// group costs memory and time.
const MOST_PARTS: u64 = 64;
/// Bytes that are written at once.
const CHUNK: u64 = MIB;
/// Alignment of what is written, in bytes: that of a sector of the encrypted volume.
const ALIGNMENT: u64 = 4096;
/// Bytes after which what was written is flushed, so that the memory for it is bounded and others get at the disk.
const FLUSHED_AT_ONCE: u64 = 8 * MIB;
/// How long nothing is written after the partition was opened: a node that starts has better uses for its disk.
const REST_AT_START: Duration = Duration::from_secs(20);
/// With less free space than this, in bytes, there is no rest: whoever uses the partition must not see it full while the device is not.
const HURRY_BELOW: u64 = 64 * MIB;
/// A rest that is smaller is left: XFS does not use a group that is smaller than this.
const LEAST_GROWTH: u64 = 32 * MIB;

/// Size of the first part of a device of this size, in bytes.
pub(super) const fn first_part(device: u64) -> u64 {
    let part = device / MOST_PARTS / MIB * MIB;
    let first = if part > FIRST { part } else { FIRST };
    // What would be left is not worth a second step.
    if device < first + LEAST_GROWTH { device } else { first }
}

/// The next size of a file system that covers `covered` of the `size` bytes of a device; none if it is as large as it gets.
pub(super) const fn next_size(covered: u64, size: u64) -> Option<u64> {
    if size < covered + LEAST_GROWTH {
        return None;
    }
    let step = first_part(size) / 2;
    let next = covered + step;
    if next + LEAST_GROWTH > size { Some(size) } else { Some(next) }
}

/// Writes zeroes, durably. Ends early when it is to stop.
pub(super) fn write_zeroes(
    device: &Device,
    from: u64,
    to: u64,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<bool, DeviceError> {
    let buffer = vec![0; usize::try_from(CHUNK + ALIGNMENT).unwrap_or_default()];
    // What goes past the kernel's cache must be aligned.
    let aligned = buffer.as_ptr().align_offset(usize::try_from(ALIGNMENT).unwrap_or(1));
    let zeroes = &buffer[aligned..];
    let mut position = from;
    while position < to {
        if !goes_on(position) {
            return Ok(false);
        }
        let length = usize::try_from(CHUNK.min(to - position)).unwrap_or_default();
        device.write_at(position, &zeroes[..length])?;
        position += length as u64;
        if (position - from).is_multiple_of(FLUSHED_AT_ONCE) {
            device.sync()?;
        }
    }
    device.sync()?;
    Ok(true)
}

/// A thread that has a mounted file system grow over its device. It ends when this is dropped.
pub(super) struct Growing {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread is to stop.
#[derive(Default)]
struct Stop {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Rests for so long, unless it is to stop: then this is true.
    fn rest(&self, limit: Duration) -> bool {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = self.changed.wait_timeout_while(wanted, limit, |wanted| !*wanted);
        *rested.unwrap_or_else(PoisonError::into_inner).0
    }

    fn want(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl Growing {
    /// Starts it. `write_before` says whether the sectors have to be written before they are covered.
    pub(super) fn start(mapping: PathBuf, mount_point: PathBuf, write_before: bool) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let wanted = Arc::clone(&stop);
        let span = tracing::Span::current();
        let builder = thread::Builder::new().name("data-growing".into());
        let thread = builder.spawn(move || {
            span.in_scope(|| match grow(&mapping, &mount_point, write_before, &wanted) {
                Ok(Some(size)) => tracing::info!("the data partition covers all of its device now: {} MiB", size / MIB),
                Ok(None) => {}
                // What it covers is as good as before. It is tried again when the partition is opened the next time.
                Err(error) => tracing::warn!(
                    "the data partition does not grow over the rest of its device: {error}; it stays as large as it is until the \
                     next start"
                ),
            });
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.stop.want();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Grows it as far as it goes; the size that it has then, if it has changed and was not to stop.
fn grow(mapping: &Path, mount_point: &Path, write_before: bool, stop: &Stop) -> io::Result<Option<u64>> {
    let directory = File::open(mount_point)?;
    let device = Device::open_direct(mapping).map_err(io::Error::other)?;
    let mut reached = None;
    let mut rest = REST_AT_START;
    loop {
        let covered = polis_sys::xfs_size(directory.as_fd())?;
        let Some(next) = next_size(covered, device.size()) else { return Ok(reached) };
        let next = if write_before { next } else { device.size() };
        if write_before {
            let mut since = Instant::now();
            let goes_on = |_| {
                let hurry = rustix::fs::fstatvfs(&directory).is_ok_and(|now| now.f_bavail * now.f_frsize < HURRY_BELOW);
                let stopped = stop.rest(if hurry { Duration::ZERO } else { rest.max(since.elapsed()) });
                // Half of the time belongs to others.
                (rest, since) = (Duration::ZERO, Instant::now());
                !stopped
            };
            if !write_zeroes(&device, covered, next, goes_on).map_err(io::Error::other)? {
                return Ok(None);
            }
        }
        if stop.rest(Duration::ZERO) {
            return Ok(None);
        }
        polis_fault::point("data/luks/grow", "begin");
        polis_sys::grow_xfs(directory.as_fd(), next)?;
        polis_fault::point("data/luks/grow", "done");
        let now = polis_sys::xfs_size(directory.as_fd())?;
        if now <= covered {
            // The rest is too small for a group.
            return Ok(reached);
        }
        reached = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_grows_over_its_device_in_steps_and_ends() {
        for (size, least_first, most_steps) in [
            (350 * MIB, 350 * MIB, 0),
            (FIRST + LEAST_GROWTH - 1, FIRST + LEAST_GROWTH - 1, 0),
            (FIRST + LEAST_GROWTH, FIRST, 1),
            (2048 * MIB, FIRST, 12),
            (1 << 40, (1 << 40) / 64, 128),
        ] {
            let first = first_part(size);
            assert_eq!(first, least_first, "{size}");
            let (mut covered, mut steps) = (first, 0);
            while let Some(next) = next_size(covered, size) {
                assert!(next > covered && next <= size, "{size}: {covered} {next}");
                assert!(next - covered >= LEAST_GROWTH, "{size}: {covered} {next}");
                covered = next;
                steps += 1;
            }
            assert!(size - covered < LEAST_GROWTH, "{size}: {covered}");
            assert!(steps <= most_steps, "{size}: {steps} steps");
        }
    }

    #[test]
    fn zeroes_are_written_where_they_belong_until_they_are_to_stop() {
        use std::os::unix::fs::FileExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 5 << 20], 0).unwrap();
        let device = Device::open_writable(file.path()).unwrap();
        let ones = || std::fs::read(file.path()).unwrap().iter().filter(|&&byte| byte == 1).count();
        assert!(!write_zeroes(&device, MIB, 4 * MIB, |position| position < 3 * MIB).unwrap());
        assert_eq!(ones(), 3 << 20);
        assert!(write_zeroes(&device, MIB, 4 * MIB + 5, |_| true).unwrap());
        assert_eq!(ones(), (2 << 20) - 5);
    }
}
