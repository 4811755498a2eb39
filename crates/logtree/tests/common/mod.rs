//! What the tests of this crate share.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use polis_logtree::{Backlog, DistinguishedName, Entry, Item, LogTree, ReadOptions, Reader};

/// The name with this text.
pub(crate) fn name(text: &str) -> DistinguishedName {
    DistinguishedName::parse(text).unwrap()
}

/// Everything that is kept at and below `under`, oldest first.
pub(crate) fn everything(tree: &LogTree, under: &str) -> Vec<Arc<Entry>> {
    let options = ReadOptions { with_children: true, ..ReadOptions::default() };
    tree.read(&name(under), options).unwrap().backlog
}

/// The texts of entries.
pub(crate) fn texts(entries: &[Arc<Entry>]) -> Vec<String> {
    entries.iter().map(|entry| entry.text().into_owned()).collect()
}

/// Options for a stream without a backlog.
pub(crate) fn stream() -> ReadOptions {
    ReadOptions { backlog: Backlog::None, stream: true, ..ReadOptions::default() }
}

/// The next item of the stream if one is there; `None` when the reader would have to wait.
pub(crate) fn poll(reader: &mut Reader) -> Option<Option<Item>> {
    match reader.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(item) => Some(item),
        Poll::Pending => None,
    }
}

/// All items that are there.
pub(crate) fn drain(reader: &mut Reader) -> Vec<Item> {
    std::iter::from_fn(|| poll(reader).flatten()).collect()
}

/// All entries that are there; a gap is shown as `<3 missed>`.
pub(crate) fn drain_texts(reader: &mut Reader) -> Vec<String> {
    let text = |item| match item {
        Item::Entry(entry) => Entry::text(&entry).into_owned(),
        Item::Missed(count) => format!("<{count} missed>"),
    };
    drain(reader).into_iter().map(text).collect()
}
