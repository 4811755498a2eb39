//! The bounds of a tree, each with its reason.

/// Entries kept per name (metropolis.md B.2): a few minutes of a chatty child process, years of a quiet runnable.
pub const ENTRIES_PER_NAME: usize = 8192;

/// Bytes kept over all names, entries with their overhead. A dozen names can be full with lines of 200 bytes; a node
/// whose children all talk at once still stays small beside etcd.
pub const TREE_BYTES: usize = 32 << 20;

/// Names that have a journal of their own. A node of 10,000 runnables, the most Polis is measured with, fits; a name
/// takes about 200 bytes, so all of them stay below 4 MiB.
pub const NAMES: usize = 16_384;

/// Entries buffered for one reader. The reader of a terminal or a connection falls behind for tens of milliseconds at
/// times; this bridges a burst of that length.
pub const READER_ENTRIES: usize = 1024;

/// Bytes buffered for one reader, so that long entries do not make [`READER_ENTRIES`] of them expensive.
pub const READER_BYTES: usize = 512 << 10;

/// Readers that follow the tree at a time. Each costs the writers time and up to [`READER_BYTES`] of memory; people,
/// consoles and tools on one node are far fewer.
pub const READERS: usize = 64;

/// The bounds of a [`crate::LogTree`]. The default is what a node uses; tests use smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries kept per name; at least one is always kept.
    pub entries_per_name: usize,
    /// Bytes kept over all names; the newest entry is kept even when it is larger.
    pub bytes: usize,
    /// Names with a journal of their own, the top of the tree not counted.
    pub names: usize,
    /// Entries buffered per reader; at least one.
    pub reader_entries: usize,
    /// Bytes buffered per reader; one entry is buffered even when it is larger.
    pub reader_bytes: usize,
    /// Readers that follow the tree at a time.
    pub readers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries_per_name: ENTRIES_PER_NAME,
            bytes: TREE_BYTES,
            names: NAMES,
            reader_entries: READER_ENTRIES,
            reader_bytes: READER_BYTES,
            readers: READERS,
        }
    }
}
