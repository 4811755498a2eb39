//! What a machine writes to its serial console.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that are shown when something is missed.
const TAIL: usize = 40;

/// A serial console: everything that came from it, and a way to type.
#[derive(Debug)]
pub struct Serial {
    shared: Arc<Shared>,
    input: Mutex<ChildStdin>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    ended: bool,
}

impl Serial {
    /// Follows the output of QEMU, and copies it to `log`.
    pub(super) fn follow(mut output: ChildStdout, input: ChildStdin, mut log: File) -> Self {
        let shared = Arc::new(Shared::default());
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut buffer = [0; 4096];
                loop {
                    let read = output.read(&mut buffer).unwrap_or(0);
                    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.bytes.extend_from_slice(&buffer[..read]);
                    state.ended = read == 0;
                    shared.changed.notify_all();
                    if read == 0 {
                        break;
                    }
                    // The log is for a person who looks later; the test goes by what is in memory.
                    let _ = log.write_all(&buffer[..read]);
                }
            }
        });
        Self { shared, input: Mutex::new(input) }
    }

    /// Waits until `pattern` is on the console; returns how long that took.
    ///
    /// # Panics
    ///
    /// When it is not there in time, or the machine has ended without it.
    pub fn wait_for(&self, pattern: &str, deadline: Duration) -> Duration {
        self.wait_for_any(&[pattern], deadline).1
    }

    /// Waits until one of the patterns is on the console; returns which, and how long that took. Of several the first in the list counts.
    ///
    /// # Panics
    ///
    /// When none is there in time, or the machine has ended without one.
    pub fn wait_for_any(&self, patterns: &[&str], deadline: Duration) -> (usize, Duration) {
        self.wait_after(0, patterns, deadline)
    }

    /// As [`Serial::wait_for`], for what comes after `position` (from [`Serial::position`]).
    ///
    /// # Panics
    ///
    /// When it is not there in time, or the machine has ended without it.
    pub fn wait_for_after(&self, position: usize, pattern: &str, deadline: Duration) -> Duration {
        self.wait_after(position, &[pattern], deadline).1
    }

    /// Waits for the first word behind a mark that comes after `position`, and gives it once it is whole.
    ///
    /// # Panics
    ///
    /// When it is not there in time, or the machine has ended without it.
    pub fn wait_for_word_after(&self, position: usize, mark: &str, deadline: Duration) -> String {
        self.wait(&[mark], deadline, |bytes| word_after(bytes.get(position..).unwrap_or_default(), mark.as_bytes())).0
    }

    fn wait_after(&self, position: usize, patterns: &[&str], deadline: Duration) -> (usize, Duration) {
        self.wait(patterns, deadline, |bytes| {
            let new = bytes.get(position..).unwrap_or_default();
            patterns.iter().position(|pattern| contains(new, pattern.as_bytes()))
        })
    }

    /// Waits until `look` finds something in all that has come; returns it, and how long that took.
    fn wait<T>(&self, patterns: &[&str], deadline: Duration, look: impl Fn(&[u8]) -> Option<T>) -> (T, Duration) {
        let start = Instant::now();
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = look(&state.bytes) {
                return (found, start.elapsed());
            }
            let left = deadline.saturating_sub(start.elapsed());
            let why = if state.ended { "and the machine has ended" } else { "in time" };
            assert!(
                !state.ended && !left.is_zero(),
                "{patterns:?} did not come {why} ({deadline:?}); last on the console:\n{}",
                tail(&state.bytes)
            );
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many bytes have come so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).bytes.len()
    }

    /// All that has come so far, with what is not UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).bytes).into_owned()
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self) -> String {
        tail(&self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).bytes)
    }

    /// Types something.
    ///
    /// # Panics
    ///
    /// When the machine has ended.
    pub fn type_in(&self, text: &str) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("the machine runs");
    }
}

fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|window| window == pattern)
}

/// The word behind the first `mark`, if something that is not part of it has come behind it.
fn word_after(bytes: &[u8], mark: &[u8]) -> Option<String> {
    let begin = bytes.windows(mark.len()).position(|window| window == mark)? + mark.len();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    let length = bytes[begin..].iter().position(|byte| !is_word(byte))?;
    Some(String::from_utf8_lossy(&bytes[begin..begin + length]).into_owned())
}

fn tail(bytes: &[u8]) -> String {
    // Firmware draws with control sequences, which would draw over the message of the test.
    let text: String =
        String::from_utf8_lossy(bytes).chars().filter(|letter| !letter.is_control() || *letter == '\n').collect();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use super::*;
    use crate::processes;
    use crate::scratch::Scratch;

    /// A console whose machine is a shell.
    fn console(script: &str) -> (std::process::Child, Serial, Scratch) {
        let scratch = Scratch::new();
        let mut command = processes::bound_to_test(Path::new("/bin/sh"));
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = processes::spawn(command);
        let log = File::create(scratch.path().join("log")).unwrap();
        let serial = Serial::follow(child.stdout.take().unwrap(), child.stdin.take().unwrap(), log);
        (child, serial, scratch)
    }

    #[test]
    fn what_comes_is_found_also_across_pieces_and_what_is_typed_arrives() {
        let (mut child, serial, scratch) = console("printf 'log'; read line; printf 'in: %s\\n' \"$line\"");
        serial.wait_for("log", Duration::from_secs(10));
        let position = serial.position();
        serial.type_in("root\n");
        serial.wait_for("login: root", Duration::from_secs(10));
        serial.wait_for_after(position, "in: ", Duration::from_secs(10));
        assert!(child.wait().unwrap().success());
        assert!(serial.text().contains("login"));
        assert_eq!(std::fs::read(scratch.path().join("log")).unwrap(), b"login: root\n");
    }

    #[test]
    fn a_word_is_given_when_it_is_whole() {
        for (text, expected) in [
            ("node ", None),
            ("node on", None),
            ("node one-1", None),
            ("node one-1,", Some("one-1")),
            ("node one-1, node two ", Some("one-1")),
            ("node , node two ", Some("")),
        ] {
            assert_eq!(word_after(text.as_bytes(), b"node ").as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_miss_shows_what_was_there() {
        let (mut child, serial, _scratch) = console("echo one; echo two");
        let miss = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            serial.wait_for("three", Duration::from_secs(10))
        }));
        let text = *miss.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("three") && text.contains("has ended") && text.contains("one\ntwo"), "{text}");
        child.wait().unwrap();
    }
}
