//! `polis man`.

use std::process::ExitCode;

use crate::arguments::{self, ManualArguments};
use crate::failure::Failure;
use crate::view::print;

pub(crate) fn run(arguments: &ManualArguments) -> Result<ExitCode, Failure> {
    let definition = arguments::definition();
    match &arguments.dir {
        Some(directory) => {
            let failed = |error: std::io::Error| {
                Failure::failed(format!("the manual pages could not be written to {}", directory.display()))
                    .because(&error)
            };
            std::fs::create_dir_all(directory).map_err(failed)?;
            clap_mangen::generate_to(definition, directory).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(definition).render(&mut page);
            rendered.map_err(|error| Failure::failed("the manual page could not be made").because(&error))?;
            print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
