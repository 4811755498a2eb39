//! `polis recovery-key`, and what other commands need of recovery keys: the file of the public half, and the words.

mod create;
mod prompt;
mod public_file;
#[cfg(test)]
mod tests;
mod words;

use std::process::ExitCode;

use polis_recovery::RecoveryPublicKey;
use serde::Serialize;

use crate::arguments::{
    RecoveryKeyArguments, RecoveryKeyCommand, ShowRecoveryKeyArguments, VerifyRecoveryKeyArguments,
};
use crate::failure::Failure;
use crate::view::{Fields, Paint, print, print_value};

pub(crate) use public_file::read as read_public;
pub(crate) use words::read as read_words;

pub(crate) fn run(arguments: &RecoveryKeyArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        RecoveryKeyCommand::Create(arguments) => create::run(arguments),
        RecoveryKeyCommand::Show(arguments) => show(arguments),
        RecoveryKeyCommand::Verify(arguments) => verify(arguments),
    }
}

/// A public half, as it is shown.
#[derive(Debug, Serialize)]
struct Document {
    fingerprint: String,
    public_key: String,
}

fn show(arguments: &ShowRecoveryKeyArguments) -> Result<ExitCode, Failure> {
    let key = read_public(&arguments.file)?;
    let document = Document { fingerprint: key.fingerprint().to_string(), public_key: public_text(&key) };
    print_value(arguments.output, &document, |_| {
        let mut fields = Fields::default();
        fields.add("Fingerprint", document.fingerprint.clone());
        fields.add("Public key", format!("{} (X25519)", document.public_key));
        fields.render(Paint::for_stdout())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn verify(arguments: &VerifyRecoveryKeyArguments) -> Result<ExitCode, Failure> {
    let expected = read_public(&arguments.file)?.fingerprint();
    let found = read_words(&arguments.words)?.fingerprint();
    if found != expected {
        return Err(Failure::failed(format!("the words are not those of {}", arguments.file.display()))
            .because_of(format!("they are of the recovery key {found}, and the file is of {expected}"))
            .because_of("it is another key, or a word is wrong in a way that the checksum cannot see (1 in 256)"));
    }
    print(&format!("the words are those of the recovery key {expected}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn public_text(key: &RecoveryPublicKey) -> String {
    hex::encode(key.as_bytes())
}
