//! `polis image artifact`.

use std::io::Read as _;
use std::process::ExitCode;

use polis_update::{ImageLayout, KernelParts, LayoutError};

use crate::arguments::ImageArtifactArguments;
use crate::failure::Failure;
use crate::view::print;

const WHAT: &str = "the image was not written as an artifact";

/// Longest file that is read: one byte more than what can be an image.
const LONGEST: u64 = polis_image::LONGEST_IMAGE + 1;

pub(super) fn run(arguments: &ImageArtifactArguments) -> Result<ExitCode, Failure> {
    let mut image = Vec::new();
    let read = std::fs::File::open(&arguments.image).and_then(|file| file.take(LONGEST).read_to_end(&mut image));
    read.map_err(|error| {
        Failure::usage(WHAT).because_of(format!("{} cannot be read", arguments.image.display())).because(&error)
    })?;
    let parts = KernelParts::of(&image).map_err(|error| {
        Failure::usage(WHAT)
            .because_of(format!("{} is no image of kernel and system", arguments.image.display()))
            .because(&error)
            .hint("give the file that `polis image build --update-output FILE` writes beside the disk")
    })?;
    let version = arguments.image_version.clone().unwrap_or_else(|| parts.version().to_owned());
    let layout = ImageLayout { image: &image, version: &version, repository: &arguments.repository };
    let digest = layout.write(&arguments.output).map_err(|error| match error {
        LayoutError::Exists { .. } => Failure::usage(WHAT).because(&error).hint("give another --output"),
        LayoutError::Repository(_) | LayoutError::NotImage | LayoutError::TooLong { .. } => {
            Failure::usage(WHAT).because(&error)
        }
        LayoutError::Write { .. } => Failure::failed(WHAT).because(&error),
    })?;
    let name = format!("{}@{digest}", arguments.repository);
    print(&format!(
        "version {version}\n{digest}\nserve {} by any web server of files, or copy it to a registry; then:\n  \
         polis node update all --image-ref HOST/{name}\n",
        arguments.output.display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use crate::fake::run;

    #[test]
    fn what_is_no_image_is_told_and_nothing_is_written() {
        let place = tempfile::tempdir().unwrap();
        let (file, output) = (place.path().join("disk.raw"), place.path().join("artifact"));
        let line = format!("polis image artifact --image {} -o {}", file.display(), output.display());
        run(&line).fails(2, &["disk.raw cannot be read"]);
        std::fs::write(&file, [0; 4096]).unwrap();
        run(&line).fails(2, &["no image of kernel and system", "--update-output"]);
        assert!(!output.exists());
    }
}
