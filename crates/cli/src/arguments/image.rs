//! `polis image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        scripts/image                                        all that it takes, and `polis image build`\n  \
        polis image install --image polis.raw --disk /dev/sdb"
)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    Artifact(ImageArtifactArguments),
    Build(Box<BuildImageArguments>),
    Install(InstallImageArguments),
}

#[derive(Debug, Args)]
#[command(
    about = "Write an image so that nodes can be updated to it",
    long_about = "Write an image so that nodes can be updated to it.\n\n\
        The directory is an OCI layout, which tools copy to a registry, and at the same time what a web server of files can serve as \
        one. The digest that is printed names the image for `polis node update`.",
    after_help = "Example:\n  \
        polis image build --kernel ./kernel --output polis.raw --update-output polis.efi\n  \
        polis image artifact --image polis.efi --output artifact"
)]
pub(crate) struct ImageArtifactArguments {
    /// The image of kernel and system, as `polis image build --update-output` writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) image: PathBuf,
    /// Directory to write; must not be there yet
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Repository under which it is served as files
    #[arg(long, value_name = "NAME", default_value = "polis")]
    pub(crate) repository: String,
    /// Version that is told to people; without it the one in the image
    #[arg(long, value_name = "TEXT")]
    pub(crate) image_version: Option<String>,
}

/// Which drivers an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriversOfImage {
    /// Those of common hardware and of virtual machines
    Any,
    /// Those of virtual machines only
    VirtualMachine,
}

#[derive(Debug, Args)]
#[command(
    about = "Make a disk image of a machine whose first process is Polis",
    long_about = "Make a disk image of a machine whose first process is Polis.\n\n\
        The image boots on x86-64 machines with UEFI. It has a partition to boot from, with systemd-boot and one image of \
        kernel and system, and a small partition for data that grows at the first start. The same inputs give the same \
        bytes; only a signature for Secure Boot has the time in it. `scripts/image` brings all that it takes and calls this.",
    after_help = "Example:\n  \
        polis image build --kernel ./kernel --polis ./polis --output polis.raw"
)]
pub(crate) struct BuildImageArguments {
    /// File to write; sparse, to be copied to a disk as it is or with `polis image install`
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Also write the image of kernel and system alone, which is what an update needs
    #[arg(long, value_name = "FILE")]
    pub(crate) update_output: Option<PathBuf>,
    /// Replace files that are there
    #[arg(long)]
    pub(crate) replace: bool,
    /// Directory that the package of a kernel was unpacked into (boot/vmlinuz-*, lib/modules)
    #[arg(long, value_name = "DIR")]
    pub(crate) kernel: PathBuf,
    /// Which of its drivers are taken
    #[arg(long, value_enum, default_value_t = DriversOfImage::Any)]
    pub(crate) drivers: DriversOfImage,
    /// The static `polis` for the image; without, this program
    #[arg(long, value_name = "FILE")]
    pub(crate) polis: Option<PathBuf>,
    /// A program for /bin, with its libraries; etcd, etcdctl, cryptsetup, mkfs.xfs and polis-tpm are found in PATH if not named
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub(crate) program: Vec<(String, PathBuf)>,
    /// Leave out the program that speaks to a TPM: the image works on machines without one only
    #[arg(long)]
    pub(crate) without_tpm: bool,
    /// Directory with libraries of the programs, looked into before those of the system
    #[arg(long, value_name = "DIR")]
    pub(crate) library_directory: Vec<PathBuf>,
    /// systemd's stub for x86-64
    #[arg(long, value_name = "FILE", default_value = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub")]
    pub(crate) stub: PathBuf,
    /// systemd-boot for x86-64
    #[arg(long, value_name = "FILE", default_value = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi")]
    pub(crate) loader: PathBuf,
    /// Added to the kernel's command line
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) command_line: String,
    /// Do not compress the system: a larger image that needs no zstd
    #[arg(long)]
    pub(crate) no_compression: bool,
    /// Parameters that the machine reads at its first start; without, its firmware or its person gives them
    #[arg(long, value_name = "FILE")]
    pub(crate) parameters: Option<PathBuf>,
    /// Private key (PEM) to sign boot loader and system with, for Secure Boot; needs sbsign
    #[arg(long, value_name = "FILE", requires = "signing_certificate")]
    pub(crate) signing_key: Option<PathBuf>,
    /// Certificate (PEM) of that key, which the firmware of the machines must know
    #[arg(long, value_name = "FILE", requires = "signing_key")]
    pub(crate) signing_certificate: Option<PathBuf>,
    /// Print what would be in the image, and write nothing
    #[arg(long)]
    pub(crate) plan: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Put an image on a disk of this machine",
    long_about = "Put an image on a disk of this machine.\n\n\
        The plan is shown first. A disk that is in use or too small is refused always; one that is not blank is refused \
        unless --yes says that what is on it may be lost.",
    after_help = "Example:\n  polis image install --image polis.raw --disk /dev/sdb"
)]
pub(crate) struct InstallImageArguments {
    /// The whole disk, such as /dev/sdb
    #[arg(long, value_name = "DEV")]
    pub(crate) disk: PathBuf,
    /// The image, as `polis image build` makes it
    #[arg(long, value_name = "FILE", default_value = "polis.raw")]
    pub(crate) image: PathBuf,
    /// What is on the disk may be lost
    #[arg(long)]
    pub(crate) yes: bool,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        Some(_) | None => Err("it must be NAME=FILE, such as etcd=/usr/bin/etcd".to_owned()),
    }
}
