//! The archive that the kernel unpacks: cpio in its form "newc".

use std::io;
use std::path::PathBuf;

use crate::tree::{Node, Tree};

/// The kernel's magic of the form.
const MAGIC: &str = "070701";
/// Name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// Everything begins at a multiple of this.
const ALIGNMENT: usize = 4;

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum CpioError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The form has 32 bits for a length.
    #[error("{path} is too long for an archive")]
    TooLong {
        /// Path in the archive.
        path: String,
    },
}

/// Bits of a mode that say what an entry is (stat(2)).
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// The bytes of an archive of `tree`.
pub(crate) fn archive(tree: &Tree) -> Result<Vec<u8>, CpioError> {
    let mut archive = Vec::new();
    let mut inode = 0;
    for (path, node) in tree.iter() {
        // Equal numbers would mean hard links.
        inode += 1;
        let (mode, device, content) = match node {
            Node::Directory => (DIRECTORY | 0o755, (0, 0), Vec::new()),
            Node::FileFrom { source, executable } => {
                let content =
                    std::fs::read(source).map_err(|error| CpioError::Read { path: source.clone(), source: error })?;
                (FILE | if *executable { 0o755 } else { 0o644 }, (0, 0), content)
            }
            Node::File(content) => (FILE | 0o644, (0, 0), content.clone()),
            Node::Link(target) => (LINK | 0o777, (0, 0), target.clone().into_bytes()),
            Node::CharacterDevice { major, minor } => (CHARACTER_DEVICE | 0o600, (*major, *minor), Vec::new()),
        };
        entry(&mut archive, path, inode, mode, device, &content)?;
    }
    entry(&mut archive, TRAILER, 0, 0, (0, 0), &[])?;
    Ok(archive)
}

fn entry(
    archive: &mut Vec<u8>,
    path: &str,
    inode: u32,
    mode: u32,
    (major, minor): (u32, u32),
    content: &[u8],
) -> Result<(), CpioError> {
    let too_long = || CpioError::TooLong { path: path.to_owned() };
    let length = u32::try_from(content.len()).map_err(|_| too_long())?;
    let name_length = u32::try_from(path.len() + 1).map_err(|_| too_long())?;
    let links = 1;
    archive.extend_from_slice(MAGIC.as_bytes());
    // Inode, mode, user, group, links, time, length, device of the file (2), device (2), length of the name, checksum.
    for field in [inode, mode, 0, 0, links, 0, length, 0, 0, major, minor, name_length, 0] {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(path.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(content);
    pad(archive);
    Ok(())
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_documented_one() {
        let mut tree = Tree::default();
        tree.add("a/b", Node::File(b"hello".to_vec()));
        tree.add("c", Node::Link("a/b".to_owned()));
        tree.add("d", Node::CharacterDevice { major: 5, minor: 1 });
        let archive = archive(&tree).unwrap();
        let text = String::from_utf8(archive.clone()).unwrap();
        assert!(text.starts_with("07070100000001000041ed"), "{text:?}");
        assert!(text.contains(concat!("hello\0\0\0", "070701")), "{text:?}");
        assert!(
            text.contains("0000a1ff") && text.contains("00002180") && text.contains("0000000500000001"),
            "{text:?}"
        );
        assert!(text.trim_end_matches('\0').ends_with(TRAILER), "{text:?}");
        assert_eq!(archive.len() % ALIGNMENT, 0);
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut tree = Tree::default();
        tree.add("a", Node::FileFrom { source: "/nonexistent/file".into(), executable: false });
        assert!(archive(&tree).unwrap_err().to_string().contains("/nonexistent/file"));
    }
}
