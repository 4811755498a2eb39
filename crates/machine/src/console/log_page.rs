//! The log page: the newest entries that fit.

use std::collections::VecDeque;
use std::sync::Arc;

use polis_logtree::Entry;
use polis_logtree::console::{Style, concise};

use super::page::fit;

/// Entries that are remembered for the page: as many as fit on the tallest terminal.
pub(crate) const REMEMBERED: usize = 200;

/// The newest lines of the log.
#[derive(Debug, Default)]
pub(crate) struct LogPage {
    entries: VecDeque<Arc<Entry>>,
}

impl LogPage {
    pub(crate) fn push(&mut self, entry: Arc<Entry>) {
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// The page for a terminal of this size: the newest entries, the last at the bottom.
    pub(crate) fn render(&self, width: usize, height: usize) -> Vec<String> {
        let style = Style { width: Some(width), colour: false };
        let room = height.saturating_sub(1);
        let mut lines: VecDeque<String> = VecDeque::new();
        for entry in self.entries.iter().rev() {
            if lines.len() >= room {
                break;
            }
            for line in concise(entry, style).to_string().lines().rev() {
                lines.push_front(line.to_owned());
            }
        }
        let surplus = lines.len().saturating_sub(room);
        lines.drain(..surplus);
        fit(lines.into(), width, height)
    }
}

#[cfg(test)]
mod tests {
    use polis_logtree::{DistinguishedName, Leveled, Location, Payload, Severity};

    use super::*;
    use crate::console::page::FOOTER;

    fn entry(text: &str) -> Arc<Entry> {
        Arc::new(Entry {
            name: DistinguishedName::parse("root.network").unwrap(),
            timestamp: jiff::Timestamp::UNIX_EPOCH,
            payload: Payload::Leveled(Leveled::new(Severity::Info, Location::UNKNOWN, text)),
        })
    }

    #[test]
    fn the_newest_entries_are_at_the_bottom() {
        let mut page = LogPage::default();
        for number in 0..REMEMBERED + 5 {
            page.push(entry(&format!("number {number}\nsecond line")));
        }
        assert_eq!(page.entries.len(), REMEMBERED);
        let lines = page.render(40, 4);
        assert_eq!(lines, ["| second line", "I number 204", "| second line", FOOTER]);
    }

    #[test]
    fn a_page_that_is_not_full_begins_at_the_top() {
        let mut page = LogPage::default();
        page.push(entry("only"));
        assert_eq!(page.render(40, 4), ["I only", "", "", FOOTER]);
        assert_eq!(page.render(40, 0), Vec::<String>::new());
    }
}
