//! Starting the same program anew in this process's place.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

/// How this process was started, taken down while that can still be said.
pub(crate) struct CommandLine {
    /// Path of the program. A new version may be put there while this one runs; then that is what starts.
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl CommandLine {
    /// That of this process.
    ///
    /// # Errors
    ///
    /// When the system does not tell the path of the program.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Replaces this process: same id, same working directory and environment. Returns only when that fails.
    #[expect(
        clippy::disallowed_methods,
        reason = "no child is started: this process becomes the other, in its own environment"
    )]
    pub(crate) fn replace_this_process(self) -> io::Error {
        std::process::Command::new(&self.program).args(&self.arguments).exec()
    }
}
