//! `polis image build`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polis_image::{
    BuildError, Built, Compression, Drivers, ImageInputs, ImagePlan, KernelError, LONGEST_IMAGE, PlanError, Program,
    SigningKeys, Tool, ToolError,
};
use polis_parameters::{OWN_FILE_NAME, beside};

use crate::arguments::{BuildImageArguments, DriversOfImage};
use crate::failure::{Exit, Failure};
use crate::view::{Progress, print};

/// What a machine's first process starts, with the Debian package of each. etcdctl restores each snapshot for trial.
const PROGRAMS: &[(&str, &str)] =
    &[("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("cryptsetup", "cryptsetup-bin"), ("mkfs.xfs", "xfsprogs")];

/// Speaks to the TPM.
const TPM_PROGRAM: &str = "polis-tpm";

/// Opened by their names while the programs run: the way to the TPM, and what the C library wants to end threads.
const OPENED_LATER: &[(&str, &str)] = &[("libtss2-tcti-device.so.0", TPM_PROGRAM), ("libgcc_s.so.1", "cryptsetup")];

/// Directories of programs that only root calls, which are often not in an ordinary user's `PATH`.
const MORE_PLACES: &[&str] = &["/usr/sbin", "/sbin"];

const WHAT: &str = "the image was not built";

const MEBIBYTE: u64 = 1 << 20;

pub(super) fn run(arguments: &BuildImageArguments) -> Result<ExitCode, Failure> {
    let inputs = inputs(arguments)?;
    let plan = ImagePlan::prepare(&inputs).map_err(|error| plan_failure(&error))?;
    if arguments.plan {
        print(&plan.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::start();
    progress.line(&format!("building {} with kernel {}", arguments.output.display(), plan.kernel_release));
    let built = plan
        .build(&arguments.output, arguments.update_output.as_deref(), arguments.replace)
        .map_err(|error| build_failure(&error))?;
    drop(progress);
    print(&summary(&arguments.output, &built))?;
    Ok(ExitCode::SUCCESS)
}

fn inputs(arguments: &BuildImageArguments) -> Result<ImageInputs, Failure> {
    let polis = match &arguments.polis {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(|error| Failure::failed(WHAT).because(&error).hint("name the program with --polis"))?,
    };
    let beside = polis.parent().map(Path::to_owned);
    let mut programs = Vec::new();
    for (name, package) in PROGRAMS {
        programs.push(program(arguments, name, beside.as_deref(), || {
            format!("name it with --program {name}=FILE, or: apt-get install --no-install-recommends {package}")
        })?);
    }
    if !arguments.without_tpm {
        programs.push(program(arguments, TPM_PROGRAM, beside.as_deref(), || {
            format!("name it with --program {TPM_PROGRAM}=FILE, or leave it out with --without-tpm")
        })?);
    }
    let known = |name: &str| PROGRAMS.iter().any(|(known, _)| *known == name) || name == TPM_PROGRAM;
    let more = arguments.program.iter().filter(|(name, _)| !known(name));
    programs.extend(more.map(|(name, source)| Program { name: name.clone(), source: source.clone() }));
    let signing = arguments.signing_key.as_ref().zip(arguments.signing_certificate.as_ref());
    Ok(ImageInputs {
        version: polis_version::text().to_owned(),
        kernel: arguments.kernel.clone(),
        drivers: match arguments.drivers {
            DriversOfImage::Any => Drivers::Any,
            DriversOfImage::VirtualMachine => Drivers::VirtualMachine,
        },
        polis,
        programs,
        opened_later: OPENED_LATER.iter().map(|(library, name)| ((*library).to_owned(), (*name).to_owned())).collect(),
        library_directories: arguments.library_directory.clone(),
        stub: arguments.stub.clone(),
        loader: arguments.loader.clone(),
        command_line: arguments.command_line.clone(),
        compression: if arguments.no_compression { Compression::None } else { Compression::Zstd },
        esp_files: esp_files(arguments.parameters.as_deref()),
        signing: signing.map(|(key, certificate)| SigningKeys { key: key.clone(), certificate: certificate.clone() }),
    })
}

/// Parameters for the ESP, with what is beside them.
fn esp_files(parameters: Option<&Path>) -> Vec<(String, PathBuf)> {
    let Some(parameters) = parameters else { return Vec::new() };
    let own = beside(parameters);
    let own = own.exists().then(|| (OWN_FILE_NAME.to_owned(), own));
    [("parameters.pb".to_owned(), parameters.to_owned())].into_iter().chain(own).collect()
}

/// A program as it was named, else the one beside `polis`, else the first in `PATH`.
fn program(
    arguments: &BuildImageArguments,
    name: &str,
    beside: Option<&Path>,
    hint: impl FnOnce() -> String,
) -> Result<Program, Failure> {
    let named = arguments.program.iter().find(|(other, _)| other == name).map(|(_, source)| source.clone());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = beside.map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let mut places = places.chain(MORE_PLACES.iter().map(PathBuf::from)).map(|place| place.join(name));
    match named.or_else(|| places.find(|path| path.is_file())) {
        Some(source) => Ok(Program { name: name.to_owned(), source }),
        None => Err(Failure::usage(WHAT)
            .because_of(format!("the program {name}, which goes into it, is not there"))
            .hint(hint())),
    }
}

fn plan_failure(error: &PlanError) -> Failure {
    let hint = match error {
        PlanError::NoFile { .. } => "name the right file; systemd's are in Debian's package systemd-boot-efi",
        PlanError::Kernel(KernelError::Compressed { .. }) => {
            "take a kernel with plain modules, such as that of Debian 12"
        }
        PlanError::Kernel(_) => "unpack a kernel: apt-get download PACKAGE && dpkg-deb --extract PACKAGE*.deb DIR",
        PlanError::Libraries(_) => "install the missing package, or name its directory with --library-directory",
        PlanError::NotStatic { .. } => "scripts/image builds a static one",
        PlanError::Name { .. } => "a name has letters, digits, `-`, `.` and `_`, and at most 64 of them",
        PlanError::CommandLine => "give --command-line one line of ASCII",
    };
    Failure::usage(WHAT).because(error).hint(hint)
}

fn build_failure(error: &BuildError) -> Failure {
    let failure = Failure::with_exit(error, None, Exit::Failed);
    match error {
        BuildError::Tool(ToolError::Missing { tool }) => {
            let other = match tool {
                Tool::Zstd => " (or give --no-compression)",
                Tool::Sbsign => "",
            };
            Failure::usage(WHAT).because(error).hint(format!("{}{other}", tool.installed_by()))
        }
        BuildError::Exists { .. } => Failure::usage(WHAT).because(error).hint("give --replace, or another --output"),
        BuildError::TooLong { .. } => failure.hint("leave out drivers (--drivers virtual-machine) or programs"),
        BuildError::Tool(ToolError::Run { .. } | ToolError::Failed { .. })
        | BuildError::Read { .. }
        | BuildError::Archive(_)
        | BuildError::Image(_)
        | BuildError::Layout(_)
        | BuildError::Table(_)
        | BuildError::Device(_)
        | BuildError::Esp(_)
        | BuildError::Write { .. } => failure,
    }
}

fn summary(output: &Path, built: &Built) -> String {
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MEBIBYTE as f64);
    format!(
        "{}: disk of {}, of which {} are content\nkernel and system: {} (at most {}), SHA-256 {}\nsystem before compression: {}\n",
        output.display(),
        mebibytes(built.disk_size),
        mebibytes(built.content_size),
        mebibytes(built.image_size),
        mebibytes(LONGEST_IMAGE),
        hex::encode(built.image_sha256),
        mebibytes(built.archive_size),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::tests::parse;
    use crate::arguments::{ImageArguments, ImageCommand};

    fn build(line: &str) -> BuildImageArguments {
        let action = parse(&format!("polis image build {line}"));
        let crate::arguments::Action::Image(ImageArguments { command: ImageCommand::Build(arguments) }) = action else {
            panic!("{action:?}");
        };
        *arguments
    }

    #[test]
    fn programs_are_those_that_were_named_before_those_of_the_system() {
        let arguments = build("-o i --kernel k --polis /p --program etcd=/e --program more=/m --program polis-tpm=/t");
        let inputs = inputs(&arguments).unwrap();
        let source = |name: &str| {
            inputs
                .programs
                .iter()
                .find(|program| program.name == name)
                .map(|program| program.source.display().to_string())
        };
        assert_eq!(source("etcd").as_deref(), Some("/e"));
        assert_eq!(source("more").as_deref(), Some("/m"));
        assert_eq!(source("polis-tpm").as_deref(), Some("/t"));
        assert_eq!(inputs.compression, Compression::Zstd);
    }

    #[test]
    fn what_is_beside_the_parameters_goes_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let [parameters, own] = ["node.pb", "polis.pb"].map(|name| directory.path().join(name));
        let expected = ("parameters.pb".to_owned(), parameters.clone());
        assert_eq!(esp_files(None), []);
        assert_eq!(esp_files(Some(&parameters)), vec![expected.clone()]);
        std::fs::write(&own, "own").unwrap();
        assert_eq!(esp_files(Some(&parameters)), [expected, ("polis.pb".to_owned(), own)]);
    }

    #[test]
    fn a_program_that_is_nowhere_is_a_missing_prerequisite() {
        let arguments = build("-o i --kernel k --polis /nonexistent/polis");
        let failure = program(&arguments, "polis-that-is-nowhere", None, || "get it".to_owned()).unwrap_err();
        let (code, text) = failure.code_and_text();
        assert_eq!(code, 2);
        assert!(text.contains("polis-that-is-nowhere") && text.contains("get it"), "{text}");
    }

    #[test]
    fn a_missing_tool_is_told_with_the_line_that_installs_it() {
        let error = BuildError::Tool(ToolError::Missing { tool: Tool::Sbsign });
        let (code, text) = build_failure(&error).code_and_text();
        assert_eq!(code, 2);
        assert!(text.contains("apt-get install --no-install-recommends sbsigntool"), "{text}");
    }
}
