//! [`Image`]: everything that is on a disk, as a value.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::disk::DIRECTORY_MODE;
use crate::path::DiskPath;

/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// All directories and files of a disk.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// The root; always a directory.
    root: Node,
}

/// A directory or a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
        /// What is in it.
        entries: BTreeMap<String, Node>,
    },
    /// A file.
    File {
        /// Permission bits.
        mode: u32,
        /// Its bytes.
        content: Vec<u8>,
    },
}

impl Default for Image {
    fn default() -> Self {
        Self { root: Node::Directory { mode: DIRECTORY_MODE, entries: BTreeMap::new() } }
    }
}

impl Image {
    /// The disk whose root is this directory.
    pub(super) const fn from_root(root: Node) -> Self {
        Self { root }
    }

    pub(super) const fn root(&self) -> &Node {
        &self.root
    }

    /// What is at `path`.
    #[must_use]
    pub fn get(&self, path: &DiskPath) -> Option<&Node> {
        path.names().try_fold(&self.root, |node, name| match node {
            Node::Directory { entries, .. } => entries.get(name),
            Node::File { .. } => None,
        })
    }

    /// Paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<DiskPath> {
        let mut files = Vec::new();
        collect(&self.root, &DiskPath::root(), &mut files);
        files
    }

    /// Reads a real directory. Sockets and pipes are left out: no power cut keeps them.
    ///
    /// # Errors
    ///
    /// When something in it cannot be read, or is a link, or has a name that is not UTF-8.
    pub fn read_from(directory: &Path) -> io::Result<Self> {
        Ok(Self { root: read_directory(directory)? })
    }

    /// Makes a real directory of this image at `path`, which must not exist.
    ///
    /// # Errors
    ///
    /// When something cannot be made.
    pub fn materialise(&self, path: &Path) -> io::Result<()> {
        write_node(&self.root, path)
    }
}

/// Shows names and lengths, as contents may be secret.
impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = self.files().into_iter().map(|path| {
            let length = match self.get(&path) {
                Some(Node::File { content, .. }) => content.len(),
                Some(Node::Directory { .. }) | None => 0,
            };
            (path, length)
        });
        formatter.debug_map().entries(lengths).finish()
    }
}

fn collect(node: &Node, path: &DiskPath, files: &mut Vec<DiskPath>) {
    match node {
        Node::File { .. } => files.push(path.clone()),
        Node::Directory { entries, .. } => {
            for (name, node) in entries {
                collect(node, &path.child_unchecked(name), files);
            }
        }
    }
}

fn read_directory(path: &Path) -> io::Result<Node> {
    let mut entries = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let unfit = |what| io::Error::other(format!("{} {what}", entry.path().display()));
        let name = entry.file_name().into_string().map_err(|_| unfit("has a name that is not UTF-8"))?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            entries.insert(name, read_directory(&entry.path())?);
        } else if kind.is_file() {
            let mode = entry.metadata()?.mode() & PERMISSIONS;
            entries.insert(name, Node::File { mode, content: fs::read(entry.path())? });
        } else if !(kind.is_socket() || kind.is_fifo()) {
            return Err(unfit("is neither a file nor a directory"));
        }
    }
    Ok(Node::Directory { mode: fs::metadata(path)?.mode() & PERMISSIONS, entries })
}

fn write_node(node: &Node, path: &Path) -> io::Result<()> {
    match node {
        Node::Directory { mode, entries } => {
            fs::DirBuilder::new().mode(*mode).create(path)?;
            entries.iter().try_for_each(|(name, node)| write_node(node, &path.join(name)))
        }
        Node::File { mode, content } => {
            OpenOptions::new().write(true).create_new(true).mode(*mode).open(path)?.write_all(content)
        }
    }
}
