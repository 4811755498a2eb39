//! `polis image install`.

use std::process::ExitCode;

use polis_disks::{InstallError, InstallPlan, InstallRequest, Places};

use crate::arguments::InstallImageArguments;
use crate::failure::Failure;
use crate::view::{Progress, print};

const WHAT: &str = "the image was not installed";

pub(super) fn run(arguments: &InstallImageArguments) -> Result<ExitCode, Failure> {
    let places = Places::default();
    let request =
        InstallRequest { image: arguments.image.clone(), disk: arguments.disk.clone(), accept_loss: arguments.yes };
    let plan = InstallPlan::new(&request, &places).map_err(|error| failure(&error))?;
    print(&plan.to_string())?;
    let progress = Progress::start();
    let mut last = "";
    let installed = plan.execute(&places, |now| {
        if now.step != last {
            progress.line(now.step);
            last = now.step;
        }
    });
    installed.map_err(|error| failure(&error))?;
    drop(progress);
    print(&format!(
        "{} is installed on {}; the machine can be started from it\n",
        arguments.image.display(),
        arguments.disk.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: &InstallError) -> Failure {
    let failure = Failure::failed(WHAT).because(error);
    match error {
        // A person may lose something that they did not mean to.
        InstallError::InUse { .. } | InstallError::NotBlank { .. } | InstallError::Changed { .. } => failure.refused(),
        InstallError::NoImage { .. }
        | InstallError::NotWholeDisk { .. }
        | InstallError::Layout { .. }
        | InstallError::Sectors { .. } => Failure::usage(WHAT).because(error),
        InstallError::Usage(_) | InstallError::Device(_) | InstallError::Table(_) => failure,
    }
}
