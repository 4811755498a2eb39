//! `polis recovery-key create`.
//!
//! The words come first, and the public half is written last: a public half whose words nobody has would promise a recovery that
//! cannot be.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use polis_recovery::RecoveryKey;
use zeroize::Zeroizing;

use crate::arguments::CreateRecoveryKeyArguments;
use crate::atomic_file::{self, Existing};
use crate::failure::Failure;
use crate::shell;
use crate::view::{print, print_whole};

/// Mode of the public half, which is no secret.
const PUBLIC_MODE: u32 = 0o644;
/// Mode of a file with the words: for its owner only.
const WORDS_MODE: u32 = 0o600;
/// How many words stand in one line.
const COLUMNS: usize = 4;

const WHAT: &str = "no recovery key was made";

/// Where the words go.
enum WordsTo<'a> {
    Output,
    File(&'a Path),
}

pub(super) fn run(arguments: &CreateRecoveryKeyArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.output;
    let to = destination(arguments)?;
    // Looked at first, so that nobody writes down words that are of no use; what counts is the check at the end.
    let mut files = vec![path.as_path()];
    if let WordsTo::File(words) = to {
        files.push(words);
    }
    for file in files {
        match file.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unwritable(file, &error)),
            Ok(_) => return Err(exists(file)),
        }
    }
    let key = RecoveryKey::generate();
    let words = lines(&key);
    match to {
        WordsTo::Output => print_whole(&words)?,
        WordsTo::File(file) => write(file, words.as_bytes(), WORDS_MODE)?,
    }
    write(path, key.public().to_text().as_bytes(), PUBLIC_MODE)
        .map_err(|failure| failure.because_of("the words that were just given out are of no use; throw them away"))?;
    let after = advice(path, &key, &to);
    match to {
        // What is read from the standard output are the words and nothing else, unless a person reads it.
        WordsTo::Output if !io::stdout().is_terminal() => {}
        WordsTo::Output | WordsTo::File(_) => print(&after)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn destination(arguments: &CreateRecoveryKeyArguments) -> Result<WordsTo<'_>, Failure> {
    match arguments.words_to.as_deref() {
        Some(path) if path == Path::new("-") => Ok(WordsTo::Output),
        Some(path) if path == arguments.output => {
            Err(Failure::usage(WHAT).because_of("the words and the public half would be in the same file"))
        }
        Some(path) => Ok(WordsTo::File(path)),
        None if io::stdout().is_terminal() => Ok(WordsTo::Output),
        None => Err(Failure::usage(WHAT)
            .because_of("the standard output is no terminal, and the words would end up where nobody meant them to")
            .hint("run it at a terminal, or say where the words go: --words-to FILE, or --words-to - for the standard output")),
    }
}

/// The words with their numbers, some in each line.
fn lines(key: &RecoveryKey) -> Zeroizing<String> {
    let words = key.to_words();
    let mut text = Zeroizing::new(String::with_capacity(1024));
    for (word, number) in words.expose().zip(1_usize..) {
        let end = if number % COLUMNS == 0 { "\n" } else { "" };
        // A string takes everything.
        let _ = write!(text, "{number:>4} {word:<9}{end}");
    }
    text
}

fn advice(path: &Path, key: &RecoveryKey, to: &WordsTo<'_>) -> String {
    let quoted = shell::quote(path);
    let now = match to {
        WordsTo::Output => {
            "These 24 words are shown this once, and are stored nowhere. Write them down now, on paper,".to_owned()
        }
        WordsTo::File(file) => {
            format!("The 24 words are in {}. Write them down on paper, delete that file,", file.display())
        }
    };
    format!(
        "\n{now}\n\
         and keep the paper where whoever takes the machines does not find it: in a safe, and a copy in another place.\n\
         With them alone, every node of a cluster that has this key can be opened, and its snapshots can be read. Without them,\n\
         the data are lost when too few members survive, or when a firmware update changes what all TPMs ask for.\n\n\
         recovery key  {}\n\
         public half   {} (no secret)\n\n\
         check what you have written:  polis recovery-key verify {quoted}\n\
         for a new cluster:            polis parameters bootstrap --recovery-key {quoted} ...\n\
         for one that is there:        polis cluster recovery-key set {quoted}\n",
        key.fingerprint(),
        path.display()
    )
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    atomic_file::write(path, bytes, mode, Existing::Keep).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists { exists(path) } else { unwritable(path, &error) }
    })
}

fn exists(path: &Path) -> Failure {
    Failure::failed(WHAT)
        .because_of(format!(
            "{} is there already, and is never overwritten: it may be what a cluster uses",
            path.display()
        ))
        .hint("write to another file, or see what it is: polis recovery-key show FILE")
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(WHAT)
        .because_of(format!("{} could not be written", path.display()))
        .because(error)
        .hint("check the path, its permissions and the room on its disk")
}
