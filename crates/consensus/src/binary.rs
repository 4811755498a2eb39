//! The etcd program: where it is, which version it has, and whether that one may hold a cluster.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polis_sys::{Bond, Command, Importance, Input, Output};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::BoxError;
use crate::version::{Reason, Verdict, Version, WANTED, judge};

/// Name of the program.
const PROGRAM: &str = "etcd";

/// How long `etcd --version` may take. It takes about 10 ms; a disk that is waking up takes seconds.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Most bytes that are read of its output. etcd prints about 150.
const MAX_OUTPUT: u64 = 4096;

/// Words with which etcd introduces its version.
const VERSION_LABEL: &str = "etcd Version:";

/// The etcd program. Clones share what was found out about its version.
#[derive(Clone, Debug)]
pub struct EtcdBinary {
    path: PathBuf,
    allow_unsafe_version: bool,
    known: Arc<Mutex<Option<(Stamp, Version)>>>,
}

/// What tells one program file from the one that replaced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// No etcd that may be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdBinaryError {
    /// There is none.
    #[error(
        "etcd is missing: {place}. Polis runs it as a child. In a checkout of Polis, `scripts/setup run` unpacks it: then \
         pass --etcd target/tools/etcd/usr/bin/etcd. Or install the Debian package etcd-server"
    )]
    Missing {
        /// Where it was looked for.
        place: String,
    },
    /// It is there and cannot be run, or does not behave like etcd.
    #[error(
        "{} cannot be run as etcd, or does not say its version; name another one with --etcd PATH, or run \
         `scripts/setup run`, which unpacks one",
        path.display()
    )]
    NotRunnable {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// It has a version that may not hold a cluster.
    #[error(
        "{} is etcd {found}, which is not accepted: {reason}. Use {WANTED}; to try this one all the same, on data that \
         nobody needs, pass --etcd-unsafe-version", path.display()
    )]
    WrongVersion {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// Why it is not accepted.
        reason: Reason,
    },
}

impl EtcdBinary {
    /// Finds etcd: at `explicit` if that is given, else in the directories of `search_path` (the value of `PATH`).
    ///
    /// # Errors
    ///
    /// [`EtcdBinaryError::Missing`] when it is not there.
    pub fn find(explicit: Option<&Path>, search_path: Option<&OsStr>) -> Result<Self, EtcdBinaryError> {
        if let Some(path) = explicit {
            // A child needs an absolute path, and the working directory may change later.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            return if path.is_file() {
                Ok(Self::at(path))
            } else {
                Err(EtcdBinaryError::Missing { place: format!("there is no file {}", path.display()) })
            };
        }
        let search_path = search_path.unwrap_or_default();
        let found = std::env::split_paths(search_path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(PROGRAM))
            .find(|path| fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0));
        found.map(Self::at).ok_or_else(|| EtcdBinaryError::Missing {
            place: format!("no directory of PATH has a program etcd (PATH is {})", search_path.display()),
        })
    }

    fn at(path: PathBuf) -> Self {
        Self { path, allow_unsafe_version: false, known: Arc::default() }
    }

    /// Accepts any version, also one that is known to lose data: for tests, and for data that nobody needs.
    #[must_use]
    pub fn allow_unsafe_version(mut self, allow: bool) -> Self {
        self.allow_unsafe_version = allow;
        self
    }

    /// Where the program is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds out the version and judges it. The program is asked once; it is asked again only when its file has changed.
    /// Asking takes about 10 ms, so begin early and do something else meanwhile.
    ///
    /// # Errors
    ///
    /// When the program cannot be run, or has a version that is not accepted.
    pub async fn verify(&self) -> Result<Version, EtcdBinaryError> {
        let not_runnable = |source: BoxError| EtcdBinaryError::NotRunnable { path: self.path.clone(), source };
        let stamp = Stamp::of(&self.path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                EtcdBinaryError::Missing { place: format!("there is no file {}", self.path.display()) }
            } else {
                not_runnable(error.into())
            }
        })?;
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let version = match known {
            Some((known, version)) if known == stamp => version,
            _ => {
                let version = ask(&self.path).await.map_err(not_runnable)?;
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((stamp, version));
                self.note(version);
                version
            }
        };
        match judge(version) {
            Verdict::Refused(reason) if !self.allow_unsafe_version => {
                Err(EtcdBinaryError::WrongVersion { path: self.path.clone(), found: version, reason })
            }
            Verdict::Good | Verdict::Untested | Verdict::Refused(_) => Ok(version),
        }
    }

    /// Says in the log what is worth knowing about a version, once.
    fn note(&self, version: Version) {
        let path = self.path.display();
        match judge(version) {
            Verdict::Good => tracing::info!("etcd {version} at {path}"),
            Verdict::Untested => {
                tracing::warn!("etcd {version} at {path} is accepted, but Polis was not tested with it")
            }
            Verdict::Refused(reason) if self.allow_unsafe_version => {
                tracing::warn!("etcd {version} at {path} is used because --etcd-unsafe-version was given: {reason}");
            }
            Verdict::Refused(_) => {}
        }
    }
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let data = fs::metadata(path)?;
        let modified = (data.mtime(), data.mtime_nsec());
        Ok(Self { device: data.dev(), inode: data.ino(), size: data.len(), modified })
    }
}

/// Runs `etcd --version`.
async fn ask(path: &Path) -> Result<Version, BoxError> {
    let (reply, spawned) = oneshot::channel();
    let command = Command {
        program: path.to_owned(),
        arguments: vec!["--version".into()],
        environment: Vec::new(),
        working_directory: None,
        standard_input: Input::Nothing,
        standard_output: Output::Pipe,
        standard_error: Output::Discard,
        importance: Importance::default(),
        bond: Bond::default(),
    };
    polis_sys::spawn(command, |child| {
        // Nobody listens when the caller has gone away; the child is killed by being dropped.
        let _ = reply.send(child);
    });
    // The child is killed when it is dropped, so also when it takes too long.
    let mut child = spawned.await??;
    let output = child.take_standard_output().ok_or("its output is not connected")?;
    let output = timeout(VERSION_DEADLINE, read(output))
        .await
        .map_err(|_| format!("it has not printed its version within {VERSION_DEADLINE:?}"))??;
    parse(&output).ok_or_else(|| {
        let output: String = output.chars().take(200).collect();
        format!("it printed no line {VERSION_LABEL:?} with a version, but {output:?}").into()
    })
}

async fn read(output: OwnedFd) -> io::Result<String> {
    let mut text = Vec::new();
    pipe::Receiver::from_owned_fd(output)?.take(MAX_OUTPUT).read_to_end(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn parse(output: &str) -> Option<Version> {
    output.lines().find_map(|line| line.strip_prefix(VERSION_LABEL)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(directory: &Path, body: &str) -> PathBuf {
        let path = directory.join(PROGRAM);
        // A program that is still open for writing in any thread cannot be executed, so the shell writes it.
        let copied = std::process::Command::new("/bin/sh")
            .args(["-c", "printf '%s\n' '#!/bin/sh' \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", body])
            .arg(&path)
            .status()
            .unwrap();
        assert!(copied.success());
        path
    }

    async fn verify(body: &str) -> Result<Version, EtcdBinaryError> {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), body);
        EtcdBinary::find(Some(&path), None).unwrap().verify().await
    }

    #[tokio::test]
    async fn versions_are_accepted_or_refused_with_the_reason() {
        for version in ["3.4.23", "3.5.6", "3.6.1"] {
            let found = verify(&format!("echo 'etcd Version: {version}'; echo 'Git SHA: x'")).await.unwrap();
            assert_eq!(found.to_string(), version);
        }
        for (version, reason) in [
            ("3.4.21", "can lose committed data"),
            ("3.5.1", "can lose committed data"),
            ("3.3.0", "lacks what Polis relies on"),
            ("3.7.0", "newer than any that Polis knows"),
        ] {
            let error = verify(&format!("echo 'etcd Version: {version}'")).await.unwrap_err();
            assert!(matches!(error, EtcdBinaryError::WrongVersion { .. }), "{error:?}");
            let message = error.to_string();
            for part in [version, reason, WANTED, "--etcd-unsafe-version"] {
                assert!(message.contains(part), "{message:?} says {part:?}");
            }
        }
    }

    #[tokio::test]
    async fn any_version_is_accepted_when_that_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "echo 'etcd Version: 3.5.1'");
        let binary = EtcdBinary::find(Some(&path), None).unwrap().allow_unsafe_version(true);
        assert_eq!(binary.verify().await.unwrap(), Version::new(3, 5, 1));
    }

    #[tokio::test]
    async fn what_does_not_behave_like_etcd_is_not_runnable() {
        for (body, part) in [("echo hello", "hello"), ("exit 1", "printed no line"), ("exec yes", "printed no line")] {
            let error = verify(body).await.unwrap_err();
            let EtcdBinaryError::NotRunnable { source, .. } = error else { panic!("{error:?}") };
            assert!(source.to_string().contains(part), "{source}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(PROGRAM);
        fs::write(&path, "not a program").unwrap();
        let error = EtcdBinary::find(Some(&path), None).unwrap().verify().await.unwrap_err();
        assert!(matches!(error, EtcdBinaryError::NotRunnable { .. }), "{error:?}");
    }

    #[test]
    fn a_missing_etcd_is_named_with_what_installs_it() {
        let directory = tempfile::tempdir().unwrap();
        let by_path = EtcdBinary::find(None, Some(directory.path().as_os_str())).unwrap_err();
        let explicit = EtcdBinary::find(Some(&directory.path().join("none")), None).unwrap_err();
        let nowhere = EtcdBinary::find(None, None).unwrap_err();
        for error in [by_path, explicit, nowhere] {
            assert!(matches!(error, EtcdBinaryError::Missing { .. }), "{error:?}");
            let message = error.to_string();
            assert!(message.contains("scripts/setup run") && message.contains("etcd-server"), "{message}");
        }
    }

    #[test]
    fn the_search_path_is_searched_in_order_for_something_executable() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(first.path().join(PROGRAM), "not executable").unwrap();
        let expected = script(second.path(), "exit 0");
        let search_path = std::env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(EtcdBinary::find(None, Some(&search_path)).unwrap().path(), expected);
    }

    #[tokio::test]
    async fn a_program_is_asked_again_only_when_its_file_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let asked = directory.path().join("asked");
        let body = |version: &str| format!("echo x >> {}; echo 'etcd Version: {version}'", asked.display());
        let path = script(directory.path(), &body("3.4.23"));
        let binary = EtcdBinary::find(Some(&path), None).unwrap();
        for _ in 0..3 {
            assert_eq!(binary.clone().verify().await.unwrap(), Version::new(3, 4, 23));
        }
        assert_eq!(fs::read_to_string(&asked).unwrap(), "x\n");
        script(directory.path(), &body("3.5.10"));
        assert_eq!(binary.verify().await.unwrap(), Version::new(3, 5, 10));
    }
}
