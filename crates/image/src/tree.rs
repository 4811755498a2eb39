//! The files of an initramfs.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A file whose content is read when the image is built.
    FileFrom {
        /// Where it is read from.
        source: PathBuf,
        /// Whether it is a program.
        executable: bool,
    },
    /// A file with this content.
    File(Vec<u8>),
    /// A symbolic link to this.
    Link(String),
    /// A character device, of which the kernel needs one before anything is mounted.
    CharacterDevice {
        /// Kind of device.
        major: u32,
        /// Which of them.
        minor: u32,
    },
}

/// The files of an initramfs, by their paths without a slash in front. All belong to root and are of the time 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Adds what is to be at `path`, with the directories above it. What was there is replaced.
    pub fn add(&mut self, path: &str, node: Node) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// What is at `path`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path.trim_start_matches('/'))
    }

    /// Everything in the order of an archive: a directory comes before what is in it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_first_and_by_themselves() {
        let mut tree = Tree::default();
        tree.add("/lib/a/b", Node::File(Vec::new()));
        tree.add("init", Node::Link("bin/polis".to_owned()));
        tree.add("lib/a.c", Node::Directory);
        let paths: Vec<_> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["init", "lib", "lib/a", "lib/a.c", "lib/a/b"]);
        assert_eq!(tree.get("/lib/a"), Some(&Node::Directory));
    }
}
