//! [`ImagePlan`]: what will be in an image.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::inputs::{COMMAND_LINE, Compression, Drivers, ImageInputs, SigningKeys, VIRTUAL_MACHINE_COMMAND_LINE};
use crate::kernel::{Kernel, KernelError, Module, lists};
use crate::libraries::{LibraryError, LibrarySearch};
use crate::slots::Entry;
use crate::tree::{Node, Tree};

/// Where the first process finds the modules that it loads, in their order.
const MODULE_LIST: &str = "lib/modules.list";

/// Directories that the first process mounts something at, or keeps files in.
const DIRECTORIES: &[&str] = &["dev", "etc", "proc", "root", "run", "sys", "tmp"];

/// A file of an image that is read when it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Path in the initramfs, without a slash in front.
    pub path: String,
    /// Where it is read from.
    pub source: PathBuf,
    /// Its size in bytes, when the plan was made.
    pub size: u64,
}

/// What will be in an image, and from where. It can be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Version of the Polis in it.
    pub version: String,
    /// Release of the kernel.
    pub kernel_release: String,
    /// The kernel.
    pub kernel: PathBuf,
    /// Modules in the order in which they are loaded.
    pub modules: Vec<Module>,
    /// Programs and libraries, by their paths.
    pub files: Vec<PlannedFile>,
    /// The kernel's command line.
    pub command_line: String,
    /// How the initramfs is compressed.
    pub compression: Compression,
    /// systemd's stub.
    pub stub: PathBuf,
    /// systemd-boot.
    pub loader: PathBuf,
    /// Files on the EFI system partition beside those to start from: path there, and source.
    pub esp_files: Vec<(String, PathBuf)>,
    /// Signs boot loader and image.
    pub signing: Option<SigningKeys>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// An input is not there.
    #[error("{what} cannot be used: {} is not there, or is no file", path.display())]
    NoFile {
        /// What it is.
        what: String,
        /// Where it should be.
        path: PathBuf,
    },
    /// The kernel cannot be used.
    #[error("the kernel cannot be used")]
    Kernel(#[from] KernelError),
    /// A library is not known.
    #[error("the libraries of the programs are not complete")]
    Libraries(#[from] LibraryError),
    /// `polis` would not start as the first process.
    #[error("{} needs the libraries {}, and the first process must need none: build it static", path.display(), needed.join(", "))]
    NotStatic {
        /// The binary.
        path: PathBuf,
        /// What it needs.
        needed: Vec<String>,
    },
    /// A name is not one of a file.
    #[error("{name:?} cannot be the name of a file of an image")]
    Name {
        /// The name.
        name: String,
    },
    /// A command line that cannot be put into an image.
    #[error("the kernel's command line must be one line of printable ASCII")]
    CommandLine,
}

impl ImagePlan {
    /// Looks at the inputs and makes the plan. Changes nothing.
    ///
    /// # Errors
    ///
    /// When an input is missing or cannot be used.
    pub fn prepare(inputs: &ImageInputs) -> Result<Self, PlanError> {
        for (what, path) in
            [("systemd's stub", &inputs.stub), ("systemd-boot", &inputs.loader), ("polis", &inputs.polis)]
        {
            file_size(what, path)?;
        }
        let for_drivers = match inputs.drivers {
            Drivers::Any => "",
            Drivers::VirtualMachine => VIRTUAL_MACHINE_COMMAND_LINE,
        };
        let parts = [COMMAND_LINE, for_drivers, inputs.command_line.trim()];
        let command_line = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        if !command_line.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(PlanError::CommandLine);
        }
        let kernel = Kernel::open(&inputs.kernel)?;
        let modules = kernel.modules(&lists(inputs.drivers == Drivers::Any))?;
        Ok(Self {
            version: Entry::printable_version(&inputs.version),
            kernel_release: kernel.release,
            kernel: kernel.image,
            modules,
            files: programs_and_libraries(inputs)?,
            command_line,
            compression: inputs.compression,
            stub: inputs.stub.clone(),
            loader: inputs.loader.clone(),
            esp_files: esp_files(inputs)?,
            signing: inputs.signing.clone(),
        })
    }

    /// The initramfs.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        for directory in DIRECTORIES {
            tree.add(directory, Node::Directory);
        }
        // The kernel opens the console for the first process before anything is mounted.
        tree.add("dev/console", Node::CharacterDevice { major: 5, minor: 1 });
        tree.add("dev/null", Node::CharacterDevice { major: 1, minor: 3 });
        tree.add("etc/os-release", Node::File(self.os_release().into_bytes()));
        for PlannedFile { path, source, .. } in &self.files {
            tree.add(path, Node::FileFrom { source: source.clone(), executable: true });
        }
        tree.add("init", Node::Link("bin/polis".to_owned()));
        for Module { path, source, .. } in &self.modules {
            tree.add(path, Node::FileFrom { source: source.clone(), executable: false });
        }
        tree.add(MODULE_LIST, Node::File(self.module_list().into_bytes()));
        tree
    }

    /// The name under which systemd's tools and the boot loader know the image.
    #[must_use]
    pub fn os_release(&self) -> String {
        // Without a version of its own: the boot loader orders images by their entries alone.
        format!("ID=polis\nNAME=Polis\nPRETTY_NAME=\"Polis {}\"\n", self.version.replace(['"', '\\', '$', '`'], ""))
    }

    fn module_list(&self) -> String {
        let line = |module: &Module| format!("/{} {}", module.path, module.parameters).trim_end().to_owned() + "\n";
        self.modules.iter().map(line).collect()
    }
}

impl fmt::Display for ImagePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "Polis {}", self.version)?;
        writeln!(formatter, "kernel {} from {}", self.kernel_release, self.kernel.display())?;
        writeln!(formatter, "command line: {}", self.command_line)?;
        for PlannedFile { path, source, size } in &self.files {
            writeln!(formatter, "file /{path} from {} ({size} bytes)", source.display())?;
        }
        for Module { name, source, .. } in &self.modules {
            writeln!(formatter, "module {name} from {}", source.display())?;
        }
        writeln!(
            formatter,
            "initramfs: {}",
            match self.compression {
                Compression::Zstd => "compressed with zstd",
                Compression::None => "not compressed",
            }
        )?;
        writeln!(formatter, "stub {}", self.stub.display())?;
        writeln!(formatter, "boot loader {}", self.loader.display())?;
        for (path, source) in &self.esp_files {
            writeln!(formatter, "on the EFI system partition /{path} from {}", source.display())?;
        }
        match &self.signing {
            Some(keys) => writeln!(formatter, "signed with {}", keys.certificate.display()),
            None => writeln!(formatter, "not signed for Secure Boot"),
        }
    }
}

fn programs_and_libraries(inputs: &ImageInputs) -> Result<Vec<PlannedFile>, PlanError> {
    let mut search = LibrarySearch::new(inputs.library_directories.clone());
    search.add_program(&inputs.polis)?;
    let needed: Vec<String> = search.files().map(|(path, _)| path).collect();
    if !needed.is_empty() {
        return Err(PlanError::NotStatic { path: inputs.polis.clone(), needed });
    }
    let mut files = vec![planned("bin/polis".to_owned(), &inputs.polis)?];
    for program in &inputs.programs {
        files.push(planned(format!("bin/{}", file_name(&program.name)?), &program.source)?);
        search.add_program(&program.source)?;
    }
    for (library, name) in &inputs.opened_later {
        let program = inputs.programs.iter().find(|program| program.name == *name);
        if let Some(program) = program {
            search.add_opened_later(library, &program.source)?;
        }
    }
    for (path, source) in search.files() {
        files.push(planned(path, source)?);
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn esp_files(inputs: &ImageInputs) -> Result<Vec<(String, PathBuf)>, PlanError> {
    let place = |(name, source): &(String, PathBuf)| {
        file_size(name, source)?;
        Ok((format!("polis/{}", file_name(name)?), source.clone()))
    };
    inputs.esp_files.iter().map(place).collect()
}

fn planned(path: String, source: &Path) -> Result<PlannedFile, PlanError> {
    Ok(PlannedFile { size: file_size(&path, source)?, path, source: source.to_owned() })
}

fn file_size(what: &str, path: &Path) -> Result<u64, PlanError> {
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    file.map(|file| file.len()).ok_or_else(|| PlanError::NoFile { what: what.to_owned(), path: path.to_owned() })
}

fn file_name(name: &str) -> Result<&str, PlanError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !name.is_empty() && !name.starts_with('.') && name.len() <= 64 && name.bytes().all(good) {
        Ok(name)
    } else {
        Err(PlanError::Name { name: name.to_owned() })
    }
}
