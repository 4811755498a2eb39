//! `polis parameters show`.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use polis_parameters::{MAX_PARAMETERS_SIZE, Parameters};
use polis_proto::api::NodeParameters;
use prost::Message as _;

use super::document::Document;
use crate::arguments::ShowArguments;
use crate::failure::Failure;
use crate::view::{Paint, print_value};

pub(super) fn run(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.file;
    let failed = || Failure::failed(format!("{} is not usable as node parameters", path.display()));
    let bytes = read(path).map_err(|error| {
        Failure::failed(format!("the parameters file {} could not be read", path.display())).because(&error)
    })?;
    let parameters = Parameters::parse(&bytes).map_err(|error| failed().because(&error))?;
    let message = NodeParameters::decode(&bytes[..]).map_err(|error| failed().because(&error))?;
    let document = Document::new(&message, &parameters);
    print_value(arguments.output, &document, |_| document.render(Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads one byte more than is allowed at most, which is enough to tell that a file is too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(MAX_PARAMETERS_SIZE).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
