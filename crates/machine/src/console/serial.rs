//! Serial consoles: the log, without what would drown it (metropolis.md J.5).

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use futures::FutureExt as _;
use futures::executor::block_on;
use polis_logtree::console::{Style, concise};
use polis_logtree::{Backlog, DistinguishedName, Entry, Item, LogTree, ReadOptions, Reader, Severity};
use rustix::fs::OFlags;

use crate::kernel_log::KERNEL_NAME;

/// Parts of names whose entries are shown from warnings up: they say much, and little for people at the machine.
const CHATTY: [&str; 1] = ["etcd"];

/// A serial console that the log is written to, by a thread that lives as long as the process: what is said before there is a
/// runtime and after it is gone is seen as well, and a line that takes nothing holds nobody up.
#[derive(Debug)]
pub(crate) struct SerialConsole {
    device: String,
    written_all: Arc<AtomicBool>,
}

impl SerialConsole {
    /// Begins to write to this device below `/dev`; none if it is not there.
    pub(crate) fn start(tree: &LogTree, device: &str) -> Option<Self> {
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let output = OpenOptions::new().write(true).custom_flags(flags).open(Path::new("/dev").join(device)).ok()?;
        let options =
            ReadOptions { backlog: Backlog::All, stream: true, with_children: true, ..ReadOptions::default() };
        let reader = tree.read(&DistinguishedName::root(), options).ok()?;
        let written_all = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&written_all);
        thread::Builder::new()
            .name(device.chars().take(15).collect())
            .spawn(move || copy(reader, output, &flag))
            .ok()?;
        Some(Self { device: device.to_owned(), written_all })
    }

    /// Its name below `/dev`.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Whether all that was logged has been written.
    pub(crate) fn has_written_all(&self) -> bool {
        self.written_all.load(Ordering::Relaxed)
    }
}

fn copy(mut reader: Reader, mut output: File, written_all: &AtomicBool) {
    let mut write = |text: String| output.write_all(text.as_bytes());
    for entry in std::mem::take(&mut reader.backlog) {
        if shown(&entry) && write(format!("{}\n", concise(&entry, Style::default()))).is_err() {
            break;
        }
    }
    loop {
        let item = reader.next().now_or_never();
        let item = item.unwrap_or_else(|| {
            written_all.store(true, Ordering::Relaxed);
            block_on(reader.next())
        });
        written_all.store(false, Ordering::Relaxed);
        let written = match item {
            Some(Item::Entry(entry)) if shown(&entry) => write(format!("{}\n", concise(&entry, Style::default()))),
            Some(Item::Entry(_)) => Ok(()),
            Some(Item::Missed(count)) => {
                write(format!("... {count} log entries were not shown here: this line is too slow\n"))
            }
            None => break,
        };
        if written.is_err() {
            break;
        }
    }
    // Nobody has to wait for a console that is gone.
    written_all.store(true, Ordering::Relaxed);
}

/// Whether an entry is shown: not those of the kernel, which has its own ways to this console, and not the lines of other programs.
fn shown(entry: &Entry) -> bool {
    let Some(severity) = entry.severity() else { return false };
    let of_kernel = entry.name.parts().next() == Some(KERNEL_NAME);
    let chatty = entry.name.parts().any(|part| CHATTY.contains(&part));
    !of_kernel && (!chatty || severity >= Severity::Warning)
}

#[cfg(test)]
mod tests {
    use polis_logtree::{Leveled, Location, Payload, Raw};

    use super::*;

    #[test]
    fn what_would_drown_the_log_is_not_shown() {
        for (name, severity, expected) in [
            ("root.network", Some(Severity::Info), true),
            ("root.machine.etcdlike", Some(Severity::Info), true),
            ("root.control-plane.etcd", Some(Severity::Info), false),
            ("root.control-plane.etcd", Some(Severity::Warning), true),
            ("root.control-plane.etcd.raft", Some(Severity::Error), true),
            ("root.control-plane.etcd", None, false),
            ("kernel", Some(Severity::Error), false),
            ("stderr", None, false),
        ] {
            let payload = match severity {
                Some(severity) => Payload::Leveled(Leveled::new(severity, Location::UNKNOWN, "text")),
                None => Payload::Raw(Raw::new(b"text", 4)),
            };
            let name = DistinguishedName::parse(name).unwrap();
            let entry = Entry { name, timestamp: jiff::Timestamp::UNIX_EPOCH, payload };
            assert_eq!(shown(&entry), expected, "{} {severity:?}", entry.name);
        }
    }
}
