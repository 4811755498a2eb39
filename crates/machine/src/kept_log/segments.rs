//! The files of the kept log, and which of them have to go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most bytes of all segments together: some days of a node that has little to say, and a small part of any data partition.
pub const LOG_BYTES: u64 = 64 << 20;

/// Most bytes of one segment. A batch is never divided, so this bounds a batch too.
pub const SEGMENT_BYTES: u64 = 4 << 20;

/// Most segments, as every start begins one: a node that starts again and again keeps its last starts, not thousands of files.
const MAX_SEGMENTS: usize = 128;

/// What the name of a segment begins with.
const PREFIX: &str = "segment-";

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

impl Segment {
    pub(crate) fn path(self, directory: &Path) -> PathBuf {
        directory.join(format!("{PREFIX}{:010}", self.number))
    }
}

/// The segments that are there, oldest first. Whatever else is there is none of ours.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        if let Some(number) = number {
            segments.push(Segment { number, bytes: entry.metadata()?.len() });
        }
    }
    segments.sort_unstable_by_key(|segment| segment.number);
    Ok(segments)
}

/// Those that have to go, oldest first: as many as it takes to have room for another full segment. The newest one never goes.
pub(crate) fn superfluous(segments: &[Segment]) -> &[Segment] {
    let fits = |kept: &[Segment]| {
        let Some((newest, older)) = kept.split_last() else { return true };
        let reserved = newest.bytes.max(SEGMENT_BYTES);
        older.iter().map(|segment| segment.bytes).sum::<u64>() + reserved <= LOG_BYTES && kept.len() <= MAX_SEGMENTS
    };
    let last = segments.len().saturating_sub(1);
    let count = (0..=last).find(|count| fits(&segments[*count..])).unwrap_or(last);
    &segments[..count]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(bytes: &[u64]) -> Vec<Segment> {
        (7..).zip(bytes).map(|(number, bytes)| Segment { number, bytes: *bytes }).collect()
    }

    #[test]
    fn the_oldest_go_when_all_together_are_too_many() {
        let full = (LOG_BYTES / SEGMENT_BYTES) as usize;
        for (sizes, gone) in [
            (vec![], 0),
            (vec![5], 0),
            (vec![SEGMENT_BYTES; full - 1], 0),
            (vec![SEGMENT_BYTES; full], 0),
            // Room is kept for what the newest may still grow to.
            ([vec![SEGMENT_BYTES; full], vec![1]].concat(), 1),
            (vec![SEGMENT_BYTES; full + 3], 3),
            (vec![1; MAX_SEGMENTS + 2], 2),
            // A limit that was larger once.
            (vec![LOG_BYTES * 2, 1], 1),
            (vec![LOG_BYTES * 2], 0),
        ] {
            let all = segments(&sizes);
            let superfluous = superfluous(&all);
            assert_eq!(superfluous, &all[..gone], "{} segments", sizes.len());
        }
    }

    #[test]
    fn only_names_of_segments_are_listed() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["segment-0000000010", "segment-0000000009", "segment-", "segment-x", "crash-dmesg", "other"] {
            fs::write(scratch.path().join(name), "12345").unwrap();
        }
        let expected = [Segment { number: 9, bytes: 5 }, Segment { number: 10, bytes: 5 }];
        assert_eq!(list(scratch.path()).unwrap(), expected);
        assert_eq!(expected[0].path(scratch.path()), scratch.path().join("segment-0000000009"));
    }
}
