//! [`Model`]: files and directories with what of them is durable, and what a power cut makes of them.
//!
//! What a sync of a file makes durable is its content, not its name; what a sync of a directory makes durable is the names
//! in it, not the content behind them. Everything else may or may not survive, each change for itself and in any
//! combination: that is harsher than any one file system, so that nothing depends on the kindness of one.
//!
//! On FAT a rename is not atomic, and the name that it makes has neither length nor place of the file, or those of the file that it
//! replaces, until the file is synced under it.

use std::collections::{BTreeMap, HashMap};
use std::io;

use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rustix::io::Errno;

use super::image::{Image, Node};
use super::operation::{Operation, SyncTarget};
use crate::path::DiskPath;

/// Bytes that a disk writes at once: garbage comes in such blocks.
const BLOCK: usize = 512;

type Entries = BTreeMap<String, usize>;

#[derive(Clone)]
pub(super) struct Model {
    /// Never shrinks, so that what was removed can come back. The first is the root.
    inodes: Vec<Inode>,
    fat: Vec<DiskPath>,
}

#[derive(Clone)]
enum Inode {
    File {
        mode: u32,
        content: Vec<u8>,
        durable: Option<Vec<u8>>,
        /// What is found under its name until it is synced, if it was renamed on FAT: what was in the file that was replaced, as far
        /// as nothing else was written there, or nothing.
        behind_name: Option<Vec<u8>>,
    },
    Directory {
        mode: u32,
        entries: Entries,
        durable: Entries,
        pending: Vec<Change>,
        fat: bool,
    },
}

/// A change of the names in a directory that is not durable yet.
#[derive(Clone)]
enum Change {
    Add { name: String, inode: usize },
    Remove { name: String },
    Rename { from: String, to: String, inode: usize },
}

impl Model {
    pub(super) fn new(image: &Image, fat: &[DiskPath]) -> Self {
        let mut model = Self { inodes: Vec::new(), fat: fat.to_vec() };
        model.insert(image.root(), &DiskPath::root());
        model
    }

    /// Adds a node that is durable with all in it.
    fn insert(&mut self, node: &Node, path: &DiskPath) -> usize {
        let index = self.inodes.len();
        match node {
            Node::File { mode, content } => {
                self.inodes.push(Inode::File {
                    mode: *mode,
                    content: content.clone(),
                    durable: Some(content.clone()),
                    behind_name: None,
                });
            }
            Node::Directory { mode, entries } => {
                self.inodes.push(self.empty_directory(*mode, path));
                let inner: Entries = entries
                    .iter()
                    .map(|(name, node)| (name.clone(), self.insert(node, &path.child_unchecked(name))))
                    .collect();
                if let Some(Inode::Directory { entries, durable, .. }) = self.inodes.get_mut(index) {
                    entries.clone_from(&inner);
                    *durable = inner;
                }
            }
        }
        index
    }

    fn empty_directory(&self, mode: u32, path: &DiskPath) -> Inode {
        let fat = self.fat.iter().any(|fat| path.is_within(fat));
        Inode::Directory { mode, entries: Entries::new(), durable: Entries::new(), pending: Vec::new(), fat }
    }

    /// What a running process sees.
    pub(super) fn image(&self) -> Image {
        Image::from_root(self.node(0))
    }

    fn node(&self, index: usize) -> Node {
        match &self.inodes[index] {
            Inode::File { mode, content, .. } => Node::File { mode: *mode, content: content.clone() },
            Inode::Directory { mode, entries, .. } => Node::Directory {
                mode: *mode,
                entries: entries.iter().map(|(name, inode)| (name.clone(), self.node(*inode))).collect(),
            },
        }
    }

    /// Whether there is something that a power cut could take.
    pub(super) fn is_settled(&self) -> bool {
        self.inodes.iter().all(|inode| match inode {
            Inode::File { content, durable, behind_name, .. } => {
                durable.as_ref() == Some(content) && behind_name.is_none()
            }
            Inode::Directory { pending, .. } => pending.is_empty(),
        })
    }

    fn find(&self, path: &DiskPath) -> io::Result<usize> {
        path.names().try_fold(0, |index, name| match &self.inodes[index] {
            Inode::Directory { entries, .. } => entries.get(name).copied().ok_or_else(|| Errno::NOENT.into()),
            Inode::File { .. } => Err(Errno::NOTDIR.into()),
        })
    }

    /// Looks at what a running process sees at `path`.
    pub(super) fn with<T>(
        &self,
        path: &DiskPath,
        file: impl FnOnce(u32, &[u8]) -> io::Result<T>,
        directory: impl FnOnce(u32, &mut dyn Iterator<Item = &String>) -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.inodes[self.find(path)?] {
            Inode::File { mode, content, .. } => file(*mode, content),
            Inode::Directory { mode, entries, .. } => directory(*mode, &mut entries.keys()),
        }
    }

    fn directory(&mut self, path: &DiskPath) -> io::Result<(&mut Entries, &mut Entries, &mut Vec<Change>)> {
        let index = self.find(path)?;
        match &mut self.inodes[index] {
            Inode::Directory { entries, durable, pending, .. } => Ok((entries, durable, pending)),
            Inode::File { .. } => Err(Errno::NOTDIR.into()),
        }
    }

    fn add(&mut self, path: &DiskPath, inode: Inode) -> io::Result<()> {
        let (parent, name) = path.split().ok_or(Errno::EXIST)?;
        let index = self.inodes.len();
        let (entries, _, pending) = self.directory(&parent)?;
        if entries.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        entries.insert(name.to_owned(), index);
        pending.push(Change::Add { name: name.to_owned(), inode: index });
        self.inodes.push(inode);
        Ok(())
    }

    /// Does what the operation says.
    pub(super) fn apply(&mut self, operation: &Operation) -> io::Result<()> {
        match operation {
            Operation::CreateDirectory { path, mode } => self.add(path, self.empty_directory(*mode, path)),
            Operation::CreateFile { path, mode, content } => {
                let file = Inode::File { mode: *mode, content: content.clone(), durable: None, behind_name: None };
                self.add(path, file)
            }
            Operation::Sync { site, path } => match site.target {
                SyncTarget::File => {
                    let index = self.find(path)?;
                    match &mut self.inodes[index] {
                        Inode::File { content, durable, behind_name, .. } => {
                            *durable = Some(content.clone());
                            *behind_name = None;
                        }
                        Inode::Directory { .. } => return Err(Errno::ISDIR.into()),
                    }
                    Ok(())
                }
                SyncTarget::Directory => {
                    let (entries, durable, pending) = self.directory(path)?;
                    durable.clone_from(entries);
                    pending.clear();
                    Ok(())
                }
            },
            Operation::ForgottenSync { .. } => Ok(()),
            Operation::Rename { from, to } => self.rename(from, to),
            Operation::RemoveFile { path } => {
                if matches!(self.inodes[self.find(path)?], Inode::Directory { .. }) {
                    return Err(Errno::ISDIR.into());
                }
                let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
                let (entries, _, pending) = self.directory(&parent)?;
                entries.remove(name);
                pending.push(Change::Remove { name: name.to_owned() });
                Ok(())
            }
            Operation::ClearDirectory { path } => {
                let (entries, _, pending) = self.directory(path)?;
                pending.extend(std::mem::take(entries).into_keys().map(|name| Change::Remove { name }));
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        let (parent, old) = from.split().ok_or(Errno::INVAL)?;
        let new = match to.split() {
            Some((directory, new)) if directory == parent => new,
            Some(_) | None => return Err(Errno::INVAL.into()),
        };
        let inode = self.find(from)?;
        match (&self.inodes[inode], self.find(to).ok().map(|target| (target, &self.inodes[target]))) {
            (_, Some((target, _))) if target == inode => return Ok(()),
            (Inode::File { .. }, Some((_, Inode::Directory { .. }))) => return Err(Errno::ISDIR.into()),
            (Inode::Directory { .. }, Some((_, Inode::File { .. }))) => return Err(Errno::NOTDIR.into()),
            (Inode::Directory { .. }, Some((_, Inode::Directory { entries, .. }))) if !entries.is_empty() => {
                return Err(Errno::NOTEMPTY.into());
            }
            (Inode::File { .. }, None | Some((_, Inode::File { .. })))
            | (Inode::Directory { .. }, None | Some((_, Inode::Directory { .. }))) => {}
        }
        let replaced = match self.find(to).map(|target| &self.inodes[target]) {
            Ok(Inode::File { content, .. }) => content.clone(),
            Ok(Inode::Directory { .. }) | Err(_) => Vec::new(),
        };
        if let Inode::File { behind_name, .. } = &mut self.inodes[inode]
            && self.fat.iter().any(|fat| parent.is_within(fat))
        {
            *behind_name = Some(replaced);
        }
        let (entries, _, pending) = self.directory(&parent)?;
        entries.remove(old);
        entries.insert(new.to_owned(), inode);
        pending.push(Change::Rename { from: old.to_owned(), to: new.to_owned(), inode });
        Ok(())
    }

    /// What is there after a power cut now, if it goes as `seed` says.
    pub(super) fn power_cut(&self, seed: u64) -> Image {
        let mut cut = PowerCut { model: self, fate: Fate::of(seed), contents: HashMap::new() };
        Image::from_root(cut.node(0))
    }
}

/// What becomes of things that are not durable. The first seeds are the extremes, which find most faults; the others mix.
struct Fate {
    entries: Choice<4>,
    contents: Choice<4>,
    random: StdRng,
}

/// One of `N` outcomes, fixed or by chance.
enum Choice<const N: u32> {
    Always(u32),
    Chance,
}

impl<const N: u32> Choice<N> {
    fn choose(&self, random: &mut StdRng) -> u32 {
        match self {
            Self::Always(outcome) => *outcome,
            Self::Chance => random.random_range(0..N),
        }
    }
}

// Outcomes of a change of names. On a file system that is not FAT the last two are as the first two.
const LOST: u32 = 0;
const KEPT: u32 = 1;
const BOTH_NAMES: u32 = 2;

// Outcomes of a content.
const DROPPED: u32 = 0;
const WHOLE: u32 = 1;
const CUT: u32 = 2;

impl Fate {
    fn of(seed: u64) -> Self {
        use Choice::{Always, Chance};
        let (entries, contents) = match seed {
            0 => (Always(LOST), Always(DROPPED)),
            1 => (Always(KEPT), Always(DROPPED)),
            2 => (Always(KEPT), Always(WHOLE)),
            3 => (Always(KEPT), Always(CUT)),
            4 => (Always(KEPT), Always(3)),
            5 => (Always(BOTH_NAMES), Always(WHOLE)),
            6 => (Always(3), Always(WHOLE)),
            7 => (Always(LOST), Always(WHOLE)),
            8..=u64::MAX => (Chance, Chance),
        };
        Self { entries, contents, random: StdRng::seed_from_u64(seed) }
    }
}

struct PowerCut<'a> {
    model: &'a Model,
    fate: Fate,
    /// What became of each file: the same under each of its names.
    contents: HashMap<usize, Vec<u8>>,
}

impl PowerCut<'_> {
    fn node(&mut self, index: usize) -> Node {
        match &self.model.inodes[index] {
            Inode::File { mode, content, durable, behind_name } => {
                if !self.contents.contains_key(&index) {
                    let left = match behind_name {
                        None => self.content(content, durable.as_deref()),
                        Some(replaced) => self.behind_name(content, replaced),
                    };
                    self.contents.insert(index, left);
                }
                Node::File { mode: *mode, content: self.contents[&index].clone() }
            }
            Inode::Directory { mode, durable, pending, fat, .. } => {
                let mut names = durable.clone();
                for change in pending {
                    self.change(&mut names, change, *fat);
                }
                let entries = names.into_iter().map(|(name, inode)| (name, self.node(inode))).collect();
                Node::Directory { mode: *mode, entries }
            }
        }
    }

    fn change(&mut self, names: &mut Entries, change: &Change, fat: bool) {
        let outcome = self.fate.entries.choose(&mut self.fate.random);
        match change {
            Change::Add { name, inode } => {
                if outcome != LOST {
                    names.insert(name.clone(), *inode);
                }
            }
            Change::Remove { name } => {
                if outcome != LOST {
                    names.remove(name);
                }
            }
            Change::Rename { from, to, inode } => match (outcome, fat) {
                (LOST, _) => {}
                (KEPT, _) | (_, false) => {
                    names.remove(from);
                    names.insert(to.clone(), *inode);
                }
                (BOTH_NAMES, true) => {
                    names.insert(from.clone(), *inode);
                    names.insert(to.clone(), *inode);
                }
                // The old file under the new name is gone, and the new one is not there yet.
                (_, true) => {
                    names.remove(to);
                }
            },
        }
    }

    fn content(&mut self, content: &[u8], durable: Option<&[u8]>) -> Vec<u8> {
        if durable == Some(content) {
            return content.to_vec();
        }
        match self.fate.contents.choose(&mut self.fate.random) {
            DROPPED => durable.unwrap_or_default().to_vec(),
            WHOLE => content.to_vec(),
            CUT => content[..self.fate.random.random_range(0..=content.len().saturating_sub(1))].to_vec(),
            _ => self.garbage(content),
        }
    }

    /// What is found of a renamed file under its name: itself, or what is left of the file that it replaced.
    fn behind_name(&mut self, content: &[u8], replaced: &[u8]) -> Vec<u8> {
        match self.fate.contents.choose(&mut self.fate.random) {
            DROPPED => replaced.to_vec(),
            WHOLE => content.to_vec(),
            CUT => replaced[..self.fate.random.random_range(0..=replaced.len().saturating_sub(1))].to_vec(),
            _ => self.garbage(replaced),
        }
    }

    /// The content with some blocks of garbage in it, one at least.
    fn garbage(&mut self, content: &[u8]) -> Vec<u8> {
        let mut content = content.to_vec();
        let blocks = content.len().div_ceil(BLOCK);
        if blocks > 0 {
            let certain = self.fate.random.random_range(0..blocks);
            for (index, block) in content.chunks_mut(BLOCK).enumerate() {
                if index == certain || self.fate.random.random_bool(0.5) {
                    self.fate.random.fill_bytes(block);
                }
            }
        }
        content
    }
}
