//! `polis owner`.

mod key_file;
mod replace;
mod rotate;

use std::path::Path;
use std::process::ExitCode;

use crate::arguments::{OwnerArguments, OwnerCommand};
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::shell;
use crate::view::{Fields, Paint, print};

pub(crate) use key_file::{KeyFileError, create_key, read_key, read_owner_key};

/// Name of the owner key in the configuration directory (metropolis.md J.7).
pub(crate) const OWNER_KEY_FILE: &str = "owner-key.pem";

pub(crate) fn run(arguments: &OwnerArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        OwnerCommand::Create(arguments) => create(&Configuration::resolve(arguments)?.key_path()),
        OwnerCommand::Rotate(arguments) => rotate::run(arguments),
        OwnerCommand::Replace(arguments) => replace::run(arguments),
    }
}

fn create(path: &Path) -> Result<ExitCode, Failure> {
    let created = create_key(path).map_err(|error| failure(&error, path))?;
    let paint = Paint::for_stdout();
    let mut fields = Fields::default();
    let what = if created.is_new { "made" } else { "was there already; nothing was changed" };
    fields.add("Owner key", format!("{} ({what})", path.display()));
    fields.add("Public key", created.key.to_string());
    let mut text = fields.render(paint);
    if created.readable_by_others {
        text.push_str(&format!(
            "{} other users can read the key; keep it to yourself: chmod 600 {}\n",
            paint.yellow("warning:"),
            shell::quote(path)
        ));
    }
    if created.is_new {
        text.push_str("Keep the file safe: whoever has it can take ownership of clusters made with it.\n");
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// How an error with a key file is shown.
pub(crate) fn failure(error: &KeyFileError, path: &Path) -> Failure {
    match error {
        KeyFileError::Missing { .. } => {
            let directory = path.parent().unwrap_or(Path::new("."));
            Failure::usage(error.to_string())
                .hint(format!("make one: polis owner create --config {}", shell::quote(directory)))
        }
        KeyFileError::Damaged { .. } => Failure::of(error).hint(
            "nothing was changed. Bring the file back from a copy; if there is none, move it away and make a new key.\n\
             A new key has no power over clusters made with the old one",
        ),
        KeyFileError::Read { .. } | KeyFileError::Write { .. } | KeyFileError::Directory { .. } => {
            Failure::of(error).hint("check the path and its permissions")
        }
    }
}
