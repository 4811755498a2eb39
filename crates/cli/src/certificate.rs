//! `polis certificate export`.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::ExitCode;

use crate::arguments::{CertificateArguments, CertificateCommand, ConfigurationArguments};
use crate::atomic_file::Existing;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::parameters::{WriteOutputError, Written, write_output};
use crate::view::print;

/// Mode of the key: for its owner only.
const KEY_MODE: u32 = 0o600;

/// Mode of the certificates, which are no secrets.
const CERTIFICATE_MODE: u32 = 0o644;

/// Mode of a directory that is made here: it holds a private key.
const DIRECTORY_MODE: u32 = 0o700;

pub(crate) fn run(arguments: &CertificateArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        CertificateCommand::Export { dir, force, configuration } => export(dir, *force, configuration),
    }
}

fn export(directory: &Path, force: bool, arguments: &ConfigurationArguments) -> Result<ExitCode, Failure> {
    let configuration = Configuration::resolve(arguments)?;
    let options = configuration.option();
    let take_ownership = format!("get it from the cluster: polis cluster takeownership{options} --endpoints ADDR");
    let authority = configuration.authority().map_err(|error| Failure::of(&error).hint(take_ownership.clone()))?;
    let authority = authority.ok_or_else(|| {
        Failure::usage(format!("there is no CA certificate at {}", configuration.authority_path().display()))
            .hint(take_ownership)
    })?;
    let credentials = configuration.credentials(&authority)?;
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
    made.map_err(|error| Failure::failed(format!("{} could not be made", directory.display())).because(&error))?;
    let key = credentials.key.pkcs8_pem();
    let mut text = String::new();
    for (name, content, mode) in [
        ("key.pem", key.as_bytes(), KEY_MODE),
        ("certificate.pem", credentials.certificate.pem().as_bytes(), CERTIFICATE_MODE),
        ("ca.pem", authority.pem().as_bytes(), CERTIFICATE_MODE),
    ] {
        let path = directory.join(name);
        let existing = if force { Existing::Replace } else { Existing::Keep };
        let written = write_output(&path, content, mode, existing).map_err(|error| match error {
            WriteOutputError::Differs { .. } => {
                Failure::of(&error).hint("write to another directory, or replace what is there with --force")
            }
            WriteOutputError::Write { .. } => {
                Failure::of(&error).hint("check the path, its permissions and the room on its disk")
            }
        })?;
        let what = match written {
            Written::New => "wrote",
            Written::Same => "unchanged:",
        };
        text.push_str(&format!("{what} {}\n", path.display()));
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
