//! The control connection of QEMU (QMP): one JSON document a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long QEMU may take to make its socket, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A control connection.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    /// Events that came while an answer was waited for.
    events: Vec<Value>,
}

impl Qmp {
    /// Waits for the socket and connects; `alive` says what is wrong once there is nothing to wait for.
    pub(super) fn connect(path: &Path, mut alive: impl FnMut() -> Result<(), String>) -> Self {
        let end = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) => {
                    alive().unwrap_or_else(|reason| panic!("{reason}"));
                    assert!(Instant::now() < end, "QEMU made no socket {}: {error}", path.display());
                    thread::sleep(Duration::from_millis(2));
                }
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a time limit");
        let mut qmp = Self { reader: BufReader::new(stream), events: Vec::new() };
        let greeting = qmp.read();
        assert!(greeting.get("QMP").is_some(), "{greeting}");
        qmp.execute("qmp_capabilities");
        qmp
    }

    /// Runs a command without arguments.
    ///
    /// # Panics
    ///
    /// When QEMU refuses or does not answer.
    pub fn execute(&mut self, command: &str) -> Value {
        self.execute_with(command, json!({}))
    }

    /// Runs a command.
    ///
    /// # Panics
    ///
    /// When QEMU refuses or does not answer.
    pub fn execute_with(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.reader.get_mut().write_all(line.as_bytes()).expect("QEMU runs");
        loop {
            let mut answer = self.read();
            if answer.get("event").is_some() {
                self.events.push(answer);
            } else if let Some(value) = answer.get_mut("return") {
                return value.take();
            } else {
                panic!("{command}: {answer}");
            }
        }
    }

    /// Waits for an event, such as `RESET` or `SHUTDOWN`; one that has come already counts, once.
    ///
    /// # Panics
    ///
    /// When it does not come within a minute.
    pub fn wait_for_event(&mut self, name: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.events.iter().position(|event| event["event"] == name) {
                return self.events.remove(found);
            }
            assert!(Instant::now() < end, "the event {name} did not come");
            let event = self.read();
            self.events.push(event);
        }
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).expect("QEMU answers in time, and has not ended");
        assert!(read > 0, "QEMU has ended");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}
