//! The log of a node: a tree of journals, one per distinguished name, kept in memory.
//!
//! Every part of a node has a [`DistinguishedName`] such as `root.consensus.etcd` and writes its own journal under it:
//! *leveled* entries (severity, time, place in the source, one or more lines) and *raw* entries (one line of a child
//! process as it came). The whole is a [`LogTree`]; clones share it.
//!
//! ```
//! use polis_logtree::{Backlog, DistinguishedName, LogTree, ReadOptions, Severity};
//!
//! let tree = LogTree::default();
//! let consensus = DistinguishedName::parse("root.consensus")?;
//! tree.logger(&consensus).info("started");
//! let mut output = tree.raw(&consensus.child("etcd")?);
//! output.write(b"listening on 127.0.0.1:2379\n");
//!
//! let options = ReadOptions { backlog: Backlog::All, with_children: true, ..ReadOptions::default() };
//! let reader = tree.read(&consensus, options)?;
//! assert_eq!(reader.backlog[0].severity(), Some(Severity::Info));
//! assert_eq!(reader.backlog[1].text(), "listening on 127.0.0.1:2379");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! - **Order.** Entries have one order over the whole tree, the one in which they were written. Whatever is read, of one
//!   name or of many, comes in that order.
//! - **Retention.** A name keeps its newest [`ENTRIES_PER_NAME`] entries, so a chatty one never pushes out what a quiet
//!   one said; over all names at most [`TREE_BYTES`] are kept, and past that the oldest entry of the tree goes first.
//! - **No gap.** [`LogTree::read`] hands out the backlog and begins the stream at one instant: every entry is in exactly
//!   one of them. Filters apply to both.
//! - **Nobody waits for a reader.** A reader has a bounded buffer. What does not fit is dropped for this reader, and
//!   [`Item::Missed`] says how many entries at the place in the sequence where they are missing.
//! - **Bounded memory.** Entries, names, readers and their buffers are all bounded by [`Limits`].
//!
//! # Writing
//!
//! Code logs with the macros of `tracing`: [`LogTree::layer`] puts an event into the journal of the innermost
//! [`runnable_span`] around it. [`Logger`] writes to a given name directly, [`RawWriter`] takes the output of a child
//! process, [`parse`] understands what etcd and the kernel write. [`console`] renders entries for people.
//!
//! This crate knows nothing of the network and of storage.

#![forbid(unsafe_code)]

pub mod console;
mod entry;
mod fields;
mod journals;
mod layer;
mod limits;
mod line_buffer;
mod logger;
mod name;
pub mod parse;
mod queue;
mod raw_writer;
mod reader;
mod tree;

pub use entry::{Entry, LEVELED_BYTES, Leveled, Location, ParseLocationError, Payload, RAW_LINE_BYTES, Raw, Severity};
pub use layer::{PROCESS_NAME, runnable_span};
pub use limits::{ENTRIES_PER_NAME, Limits, NAMES, READER_BYTES, READER_ENTRIES, READERS, TREE_BYTES};
pub use line_buffer::{Line, LineBuffer};
pub use logger::Logger;
pub use name::{DistinguishedName, NAME_BYTES, NameError};
pub use raw_writer::RawWriter;
pub use reader::{Backlog, Item, ReadError, ReadOptions, Reader};
pub use tree::{LogTree, Usage};
