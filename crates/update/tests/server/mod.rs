//! A small server of files on loopback, which misbehaves when it is told to.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a request is answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// As it should be, with ranges.
    Whole,
    /// As it should be, but this many bytes of the content, and then the connection ends.
    CutAfter(usize),
    /// The headers and this many bytes, and then nothing until the client goes.
    SilentAfter(usize),
    /// Nothing at all: the connection ends.
    Hangup,
    /// Another status, with these headers.
    Status(u16, String),
    /// Other content.
    Content(Vec<u8>),
    /// The whole content, whatever range was asked for.
    WithoutRanges,
    /// The wrong range.
    WrongRange,
}

/// The server; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    directory: PathBuf,
    /// Answers to the next requests of blobs; then all is as it should be.
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<String>>,
    ends: AtomicBool,
}

impl Server {
    /// Serves the files of a directory.
    pub(crate) fn start(directory: PathBuf) -> Self {
        let listener = TcpListener::bind("127.1.60.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            directory,
            answers: Mutex::default(),
            requests: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for stream in listener.incoming() {
                    if shared.ends.load(Ordering::SeqCst) {
                        return;
                    }
                    // A client that goes is what many tests are about.
                    let _ = shared.serve(stream.unwrap());
                }
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    /// How the next requests of blobs are answered.
    pub(crate) fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.answers.lock().unwrap().extend(answers);
    }

    /// First lines and ranges of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let range =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let from: Option<usize> = range.and_then(|range| range.trim_end_matches('-').parse().ok());
        let noted = match from {
            Some(from) => format!("{path} from {from}"),
            None => path.clone(),
        };
        self.requests.lock().unwrap().push(noted);
        let is_blob = path.contains("/blobs/");
        let answer =
            if is_blob { self.answers.lock().unwrap().pop_front().unwrap_or(Answer::Whole) } else { Answer::Whole };
        let Ok(content) = std::fs::read(self.directory.join(path.trim_start_matches('/'))) else {
            return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        };
        let length = content.len();
        let (head, body) = match (&answer, from) {
            (Answer::Hangup, _) => return Ok(()),
            (Answer::Status(status, headers), _) => {
                return write!(stream, "HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n{headers}\r\n");
            }
            (Answer::Content(other), _) => (ok(other.len()), other.clone()),
            (Answer::WrongRange, Some(_)) => (part(0, length), content),
            (Answer::Whole | Answer::CutAfter(_) | Answer::SilentAfter(_), Some(from)) => {
                (part(from, length), content[from..].to_vec())
            }
            (Answer::WithoutRanges, Some(_))
            | (
                Answer::Whole
                | Answer::CutAfter(_)
                | Answer::SilentAfter(_)
                | Answer::WithoutRanges
                | Answer::WrongRange,
                None,
            ) => (ok(length), content),
        };
        stream.write_all(head.as_bytes())?;
        match answer {
            Answer::CutAfter(bytes) => stream.write_all(&body[..bytes]),
            Answer::SilentAfter(bytes) => {
                stream.write_all(&body[..bytes])?;
                stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                stream.read(&mut byte).map(drop)
            }
            Answer::Whole
            | Answer::Hangup
            | Answer::Status(..)
            | Answer::Content(_)
            | Answer::WithoutRanges
            | Answer::WrongRange => stream.write_all(&body),
        }
    }
}

fn ok(length: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")
}

fn part(from: usize, length: usize) -> String {
    let left = length - from;
    let last = length - 1;
    format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {left}\r\nContent-Range: bytes {from}-{last}/{length}\r\n\r\n"
    )
}
