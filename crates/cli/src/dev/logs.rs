//! `polis dev logs`.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::directory::Directory;
use super::start::require_node;
use crate::arguments::DevLogsArguments;
use crate::failure::Failure;

/// Pause between two looks at a log that is followed; short enough to feel immediate.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;

pub(super) fn run(arguments: &DevLogsArguments) -> Result<ExitCode, Failure> {
    let directory = Directory::resolve(&arguments.directory)?;
    require_node(&directory.require_record()?, arguments.node)?;
    let path = directory.node_log(arguments.node);
    match show(&path, arguments.lines, arguments.follow) {
        // A reader that has seen enough, such as `head`, is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::failed(format!("the log {} could not be shown", path.display())).because(&error)),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// The last `lines` lines of the file.
///
/// # Errors
///
/// When it cannot be read.
pub(super) fn last_lines(path: &Path, lines: usize) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    seek_to_last_lines(&mut file, lines)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

#[expect(clippy::disallowed_methods, reason = "a command that follows a file has nothing else to do meanwhile")]
fn show(path: &Path, lines: usize, follow: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let mut file = File::open(path)?;
    seek_to_last_lines(&mut file, lines)?;
    loop {
        io::copy(&mut file, &mut output)?;
        output.flush()?;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        // A start may have put the log aside and begun a new one; what the old one still had was shown above or is shown now.
        let is_current = fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|data| data.ino() == now.ino()));
        if !is_current && path.exists() {
            io::copy(&mut file, &mut output)?;
            file = File::open(path)?;
        }
    }
}

/// Goes to the beginning of the last `lines` lines, reading from the end no more than it takes.
fn seek_to_last_lines(file: &mut File, lines: usize) -> io::Result<()> {
    let mut position = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(());
    }
    let mut found = 0;
    let mut at_end = true;
    let mut chunk = vec![0; CHUNK];
    while position > 0 {
        let length = usize::try_from(position).unwrap_or(CHUNK).min(CHUNK);
        position -= length as u64;
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(&mut chunk[..length])?;
        for (index, byte) in chunk[..length].iter().enumerate().rev() {
            // The line feed at the very end closes the last line and begins none.
            if *byte == b'\n' && !std::mem::take(&mut at_end) {
                found += 1;
                if found >= lines {
                    file.seek(SeekFrom::Start(position + index as u64 + 1))?;
                    return Ok(());
                }
            }
            at_end = false;
        }
    }
    file.seek(SeekFrom::Start(0)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let check = |content: &str, lines, expect: &[&str]| {
            fs::write(&path, content).unwrap();
            assert_eq!(last_lines(&path, lines).unwrap(), expect, "{lines} of {content:?}");
        };
        check("", 3, &[]);
        check("a\n", 3, &["a"]);
        check("a\nb\nc\nd\n", 2, &["c", "d"]);
        check("a\nb\nc\nunfinished", 2, &["c", "unfinished"]);
        check("a\n\n\n", 2, &["", ""]);
        check("a\nb\n", 1, &["b"]);
        check("a\nb\n", 0, &[]);
        let long = "x".repeat(CHUNK + 7);
        check(&format!("first\n{long}\n{long}\nlast\n"), 3, &[&long, &long, "last"]);
    }
}
