//! `polis parameters show`.

use std::process::ExitCode;

use polis_parameters::{Parameters, read_file};
use polis_proto::api::NodeParameters;
use prost::Message as _;

use super::document::Document;
use super::own;
use crate::arguments::ShowArguments;
use crate::failure::Failure;
use crate::view::{Paint, print_value};

pub(super) fn run(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.file;
    let failed = || Failure::failed(format!("{} is not usable as node parameters", path.display()));
    let mut bytes = read_file(path).map_err(|error| {
        Failure::failed(format!("the parameters file {} could not be read", path.display()))
            .because(&error)
            .hint("check the path and its permissions")
    })?;
    // A file that is not usable by itself is told as such, whatever is beside it.
    Parameters::parse(&bytes).map_err(|error| failed().because(&error))?;
    bytes.extend(own::beside_as_bytes(path)?);
    let parameters = Parameters::parse(&bytes).map_err(|error| failed().because(&error))?;
    let message = NodeParameters::decode(&bytes[..]).map_err(|error| failed().because(&error))?;
    let document = Document::new(&message, &parameters);
    print_value(arguments.output, &document, |_| document.render(Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}
