//! Writing leveled entries under one name.

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;

use crate::journals::JournalId;
use crate::tree::Shared;
use crate::{DistinguishedName, Entry, Leveled, Location, Payload, Severity};

/// Writes entries under one name. Cloning is cheap; the journal is made by the first write.
#[derive(Clone, Debug)]
pub struct Logger {
    tree: Arc<Shared>,
    name: DistinguishedName,
    /// Where the entries go, found once: journals are never removed.
    journal: OnceLock<JournalId>,
}

impl Logger {
    pub(crate) fn new(tree: Arc<Shared>, name: DistinguishedName) -> Self {
        Self { tree, name, journal: OnceLock::new() }
    }

    /// The name it writes under.
    pub fn name(&self) -> &DistinguishedName {
        &self.name
    }

    /// Writes an entry about the place in the code that calls this.
    #[track_caller]
    pub fn info(&self, text: impl AsRef<str>) {
        self.log(Severity::Info, std::panic::Location::caller(), text);
    }

    /// As [`Logger::info`], with severity warning.
    #[track_caller]
    pub fn warning(&self, text: impl AsRef<str>) {
        self.log(Severity::Warning, std::panic::Location::caller(), text);
    }

    /// As [`Logger::info`], with severity error.
    #[track_caller]
    pub fn error(&self, text: impl AsRef<str>) {
        self.log(Severity::Error, std::panic::Location::caller(), text);
    }

    /// Writes a leveled entry. Line breaks around the text are removed, those inside separate its lines.
    pub fn log(&self, severity: Severity, location: impl Into<Location>, text: impl AsRef<str>) {
        self.write(Timestamp::now(), Payload::Leveled(Leveled::new(severity, location.into(), text.as_ref())));
    }

    /// Writes an entry that was made elsewhere, with its own time: what a parser found, or what came from another node.
    pub fn write(&self, timestamp: Timestamp, payload: Payload) {
        self.tree.append(self.journal(), Entry { name: self.name.clone(), timestamp, payload });
    }

    /// Writes several entries that arrived together, in this order, and leaves the vector empty.
    pub(crate) fn write_all(&self, payloads: &mut Vec<(Timestamp, Payload)>) {
        let mut entries = payloads
            .drain(..)
            .map(|(timestamp, payload)| Entry { name: self.name.clone(), timestamp, payload })
            .map(|entry| (entry.memory_bytes(), entry))
            .map(|(bytes, entry)| (Arc::new(entry), bytes))
            .collect();
        self.tree.append_all(self.journal(), &mut entries);
    }

    fn journal(&self) -> JournalId {
        // Two threads may resolve at the same time and find the same. Resolving may wake readers, foreign code that must
        // not run while the cell is being filled.
        self.journal.get().copied().unwrap_or_else(|| {
            let journal = self.tree.resolve(&self.name);
            *self.journal.get_or_init(|| journal)
        })
    }
}
