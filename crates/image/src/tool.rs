//! Programs of other people that making an image needs.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program that is found in `PATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Compresses the initramfs.
    Zstd,
    /// Signs for Secure Boot.
    Sbsign,
}

impl Tool {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Sbsign => "sbsign",
        }
    }

    /// The line that installs it.
    #[must_use]
    pub const fn installed_by(self) -> &'static str {
        match self {
            Self::Zstd => "apt-get install --no-install-recommends zstd",
            Self::Sbsign => "apt-get install --no-install-recommends sbsigntool",
        }
    }

    /// Where it is; nothing when it is not in `PATH`.
    #[must_use]
    pub fn find(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|directory| directory.join(self.name())).find(|path| path.is_file())
    }

    /// Runs it, with `input` on its standard input; gives what it wrote to its standard output.
    pub(crate) fn run(self, arguments: &[OsString], input: Vec<u8>) -> Result<Vec<u8>, ToolError> {
        let path = self.find().ok_or(ToolError::Missing { tool: self })?;
        let failed = |source| ToolError::Run { tool: self, source };
        #[expect(
            clippy::disallowed_methods,
            reason = "the person who makes an image waits for it, with their own environment"
        )]
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let standard_input = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // A thread of its own, or both sides could wait for a full pipe. A program that does not read to its end says why.
            scope.spawn(move || standard_input.map(|mut pipe| pipe.write_all(&input)));
            child.wait_with_output()
        });
        let output = output.map_err(failed)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(ToolError::Failed { tool: self, status: output.status, said })
    }
}

/// Why a program of other people did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not installed.
    #[error("the program {} is not installed", tool.name())]
    Missing {
        /// The program.
        tool: Tool,
    },
    /// It could not be run.
    #[error("the program {} could not be run", tool.name())]
    Run {
        /// The program.
        tool: Tool,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It failed.
    #[error("{} failed ({status}): {said}", tool.name())]
    Failed {
        /// The program.
        tool: Tool,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        said: String,
    },
}
