//! The last known time, on the EFI system partition, so that it is there before anything is unlocked.
//!
//! FAT may lose a file that is being replaced at a power cut, so there are two, written in turn. Each has its own checksum, and the
//! later time of those that are whole counts. Losing both costs no more than a clock that may be wrong until a server answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use polis_logtree::Logger;
use polis_storage::{EspPolis, HostDisk, Layout, PlainFile};
use polis_supervisor::BoxError;
use sha2::{Digest as _, Sha256};

use super::set_to;
use crate::esp::{EspState, ROOT};

/// What each file begins with: what it is, and the version of its format.
const MAGIC: &str = "polis-clock 1";

/// Longest file that is read.
const MAX_BYTES: usize = 256;

/// Hexadecimal digits of the checksum.
const CHECKSUM_DIGITS: usize = 16;

/// Sets the clock to the last known time if it is before that.
pub(crate) fn raise_clock(esp: &EspState, logger: &Logger) {
    let Some(floor) = FloorFile::on(esp).and_then(|file| file.load()) else { return };
    let now = Timestamp::now();
    if now >= floor {
        return;
    }
    match set_to(floor) {
        Ok(()) => logger
            .warning(format!("the hardware clock says {now:.0}; set it to {floor:.0}, the last time that is known")),
        Err(error) => {
            logger.warning(format!("the clock cannot be set to {floor:.0}, the last time that is known: {error}"))
        }
    }
}

/// Where the last known time is kept.
#[derive(Clone, Debug)]
pub(crate) struct FloorFile {
    root: PathBuf,
}

impl FloorFile {
    /// On this partition; none without one that can be read.
    pub(crate) fn on(esp: &EspState) -> Option<Self> {
        match esp {
            EspState::Mounted { .. } | EspState::ReadOnly { .. } => Some(Self::at(Path::new(ROOT))),
            EspState::Volatile => None,
        }
    }

    fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn place(&self) -> Result<EspPolis, BoxError> {
        Ok(Layout::new(Arc::new(HostDisk::open(&self.root)?)).esp.polis)
    }

    /// The last known time, if there is one.
    pub(crate) fn load(&self) -> Option<Timestamp> {
        self.place().ok()?.clock.iter().filter_map(read).max()
    }

    /// Keeps a time, in place of the earlier of the two that are there.
    pub(crate) fn store(&self, time: Timestamp) -> Result<(), BoxError> {
        let EspPolis { directory, clock: [first, second], .. } = self.place()?;
        directory.create("machine/clock/directory")?;
        let earlier = if read(&first) <= read(&second) { first } else { second };
        Ok(earlier.write(encode(time).as_bytes(), "machine/clock")?)
    }
}

fn read(file: &PlainFile) -> Option<Timestamp> {
    let bytes = file.read(MAX_BYTES).ok()??;
    decode(str::from_utf8(&bytes).ok()?)
}

fn encode(time: Timestamp) -> String {
    let text = format!("{MAGIC} {}", time.as_second());
    format!("{text} {}\n", checksum(&text))
}

fn decode(text: &str) -> Option<Timestamp> {
    let (text, found) = text.strip_suffix('\n')?.rsplit_once(' ')?;
    if found != checksum(text) {
        return None;
    }
    let seconds = text.strip_prefix(MAGIC)?.strip_prefix(' ')?.parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

fn checksum(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..CHECKSUM_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::esp::ESP;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_a_whole_file_counts() {
        let whole = encode(time(1_700_000_000));
        assert_eq!(decode(&whole), Some(time(1_700_000_000)));
        for cut in 0..whole.len() {
            assert_eq!(decode(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(decode(&whole.replacen("17", "18", 1)), None);
        assert_eq!(decode(&format!("{whole}\n")), None);
    }

    #[test]
    fn a_damaged_file_costs_one_generation_and_no_more() {
        let scratch = tempfile::tempdir().unwrap();
        let esp = scratch.path().join(ESP.trim_start_matches('/'));
        std::fs::create_dir(&esp).unwrap();
        let file = FloorFile::at(scratch.path());
        assert_eq!(file.load(), None);
        for second in [1000, 2000, 3000] {
            file.store(time(second)).unwrap();
            assert_eq!(file.load(), Some(time(second)));
        }
        // 3000 went in place of 1000.
        let [newest, older] = ["polis/clock.0", "polis/clock.1"].map(|name| esp.join(name));
        std::fs::write(&newest, "torn").unwrap();
        assert_eq!(file.load(), Some(time(2000)));
        file.store(time(4000)).unwrap();
        std::fs::write(&older, "").unwrap();
        assert_eq!(file.load(), Some(time(4000)));
    }
}
