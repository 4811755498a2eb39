//! The kernel of an image: what a distribution's package has, and which of its modules are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::elf::{self, ElfError};
use crate::module_lists::{self, Wanted};

/// Deepest directory of modules that is looked into. The kernel's own has eight.
const MAX_DEPTH: usize = 16;

/// A kernel as a package was unpacked: `boot/vmlinuz-RELEASE` and `lib/modules/RELEASE` (or `usr/lib/modules/RELEASE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, such as `6.1.0-57-cloud-amd64`.
    pub release: String,
    /// The kernel itself.
    pub image: PathBuf,
    modules: PathBuf,
    /// Files of modules below [`Kernel::modules`], by name.
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// When a module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedWhen {
    /// Because it is on a list.
    Listed,
    /// Because a listed one needs it.
    Needed,
}

/// A module of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Where it is read from.
    pub source: PathBuf,
    /// Its path in the image, without a slash in front.
    pub path: String,
    /// Parameters that it is loaded with.
    pub parameters: String,
    /// Why it is there.
    pub when: LoadedWhen,
}

/// Why there is no kernel to be used.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Something of it cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// File or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is no kernel, or there are several.
    #[error("{} holds {found} kernels (boot/vmlinuz-*), and one is needed: unpack one package of a kernel into it", directory.display())]
    NotOne {
        /// Where it was looked for.
        directory: PathBuf,
        /// How many there are.
        found: usize,
    },
    /// A module is compressed.
    #[error("the module {} is compressed, and the node loads only plain ones", path.display())]
    Compressed {
        /// The module.
        path: PathBuf,
    },
    /// A module is damaged.
    #[error("the module {} cannot be used", path.display())]
    Module {
        /// The module.
        path: PathBuf,
        /// Why.
        #[source]
        source: ElfError,
    },
    /// A kernel has neither the module nor its code.
    #[error("the kernel {release} has no {name}, without which no image works{}", who_needs(needed_by))]
    Missing {
        /// Release of the kernel.
        release: String,
        /// Name of the module.
        name: String,
        /// The module that needs it; empty when the image does.
        needed_by: String,
    },
}

fn who_needs(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({name} needs it)") }
}

impl Kernel {
    /// Looks at what was unpacked into `directory`.
    ///
    /// # Errors
    ///
    /// When there is not exactly one kernel.
    pub fn open(directory: &Path) -> Result<Self, KernelError> {
        let boot = directory.join("boot");
        let names = names_in(&boot)?;
        let releases: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("vmlinuz-")).collect();
        let [release] = releases[..] else {
            return Err(KernelError::NotOne { directory: directory.to_owned(), found: releases.len() });
        };
        let places = ["lib/modules", "usr/lib/modules"].map(|place| directory.join(place).join(release));
        let modules = places.iter().find(|place| place.is_dir()).unwrap_or(&places[0]).clone();
        let mut files = BTreeMap::new();
        find_modules(&modules, Path::new(""), 0, &mut files)?;
        let list = modules.join("modules.builtin");
        let text = std::fs::read_to_string(&list).map_err(|source| KernelError::Read { path: list, source })?;
        let built_in = text.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self {
            release: release.to_owned(),
            image: boot.join(format!("vmlinuz-{release}")),
            modules,
            files,
            built_in,
        })
    }

    /// The modules of an image, each behind what it needs.
    pub(crate) fn modules(&self, wanted: &[&[Wanted]]) -> Result<Vec<Module>, KernelError> {
        let mut taken = Taken { kernel: self, modules: Vec::new(), names: BTreeSet::new() };
        for wanted in wanted.iter().copied().flatten() {
            if wanted.required || self.has(wanted.name) {
                taken.take(wanted.name, "", wanted.parameters, LoadedWhen::Listed)?;
            }
        }
        Ok(taken.modules)
    }

    fn has(&self, name: &str) -> bool {
        self.files.contains_key(&normal(name))
    }
}

/// The modules of an image for machines of a kind.
pub(crate) fn lists(hardware: bool) -> Vec<&'static [Wanted]> {
    let mut lists = vec![module_lists::ALWAYS, module_lists::VIRTUAL_MACHINE];
    if hardware {
        lists.push(module_lists::HARDWARE);
    }
    lists.push(module_lists::LAST);
    lists
}

struct Taken<'a> {
    kernel: &'a Kernel,
    modules: Vec<Module>,
    names: BTreeSet<String>,
}

impl Taken<'_> {
    fn take(&mut self, name: &str, needed_by: &str, parameters: &str, when: LoadedWhen) -> Result<(), KernelError> {
        let name = normal(name);
        // A name is noted before what it needs is: modules that name each other softly make a circle.
        if self.kernel.built_in.contains(&name) || !self.names.insert(name.clone()) {
            return Ok(());
        }
        let Some(file) = self.kernel.files.get(&name) else {
            let release = self.kernel.release.clone();
            return Err(KernelError::Missing { release, name, needed_by: needed_by.to_owned() });
        };
        let source = self.kernel.modules.join(file);
        if source.extension().is_none_or(|extension| extension != "ko") {
            return Err(KernelError::Compressed { path: source });
        }
        let bytes =
            std::fs::read(&source).map_err(|error| KernelError::Read { path: source.clone(), source: error })?;
        let information = elf::section(&bytes, ".modinfo")
            .map_err(|error| KernelError::Module { path: source.clone(), source: error })?
            .unwrap_or_default();
        let needs = Needs::of(information);
        for soft in needs.before.iter().filter(|soft| self.kernel.has(soft)) {
            self.take(soft, &name, "", LoadedWhen::Needed)?;
        }
        for needed in &needs.depends {
            self.take(needed, &name, "", LoadedWhen::Needed)?;
        }
        let path = format!("lib/modules/{}/{}", self.kernel.release, file.display());
        self.modules.push(Module { name, source, path, parameters: parameters.to_owned(), when });
        Ok(())
    }
}

/// What the section `.modinfo` of a module says about others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Without them it cannot be loaded.
    depends: Vec<String>,
    /// They should be there before it ("pre" of a soft dependency).
    before: Vec<String>,
}

impl Needs {
    /// The section holds `key=value` texts, each ended by a zero.
    fn of(information: &[u8]) -> Self {
        let mut needs = Self::default();
        for text in information.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok()) {
            match text.split_once('=') {
                Some(("depends", value)) => {
                    needs.depends.extend(value.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
                }
                Some(("softdep", value)) => {
                    // "pre: a b post: c"
                    let mut before = false;
                    for word in value.split_ascii_whitespace() {
                        match word {
                            "pre:" => before = true,
                            "post:" => before = false,
                            name if before => needs.before.push(name.to_owned()),
                            _ => {}
                        }
                    }
                }
                Some(_) | None => {}
            }
        }
        needs
    }
}

/// Names of modules have underscores, and their files either.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in a file; nothing for other files.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, rest) = name.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".gz" | ".zst").then(|| normal(stem))
}

fn names_in(directory: &Path) -> Result<Vec<String>, KernelError> {
    let failed = |source| KernelError::Read { path: directory.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn find_modules(
    root: &Path,
    below: &Path,
    depth: usize,
    files: &mut BTreeMap<String, PathBuf>,
) -> Result<(), KernelError> {
    for name in names_in(&root.join(below))? {
        let path = below.join(&name);
        // Links lead to the sources of the kernel.
        let kind = std::fs::symlink_metadata(root.join(&path))
            .map_err(|source| KernelError::Read { path: root.join(&path), source })?
            .file_type();
        if kind.is_dir() && depth < MAX_DEPTH {
            find_modules(root, &path, depth + 1, files)?;
        } else if kind.is_file()
            && let Some(name) = module_name(&path)
        {
            files.insert(name, path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RELEASE: &str = "6.1.0-test";

    /// A module: an ELF object with the one section.
    fn module(information: &str) -> Vec<u8> {
        let mut object = object::write::Object::new(
            object::BinaryFormat::Elf,
            object::Architecture::X86_64,
            object::Endianness::Little,
        );
        let section = object.add_section(Vec::new(), b".modinfo".to_vec(), object::SectionKind::ReadOnlyData);
        object.append_section_data(section, information.as_bytes(), 1);
        object.write().unwrap()
    }

    /// A kernel with these modules (path, content of .modinfo).
    fn kernel(modules: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("lib/modules").join(RELEASE);
        fs::create_dir_all(directory.path().join("boot")).unwrap();
        fs::create_dir_all(&place).unwrap();
        fs::write(directory.path().join("boot").join(format!("vmlinuz-{RELEASE}")), b"MZ").unwrap();
        fs::write(place.join("modules.builtin"), "kernel/fs/nls/nls_cp437.ko\nkernel/crypto/xts.ko\n").unwrap();
        for (path, information) in modules {
            fs::create_dir_all(place.join(path).parent().unwrap()).unwrap();
            fs::write(place.join(path), module(information)).unwrap();
        }
        let kernel = Kernel::open(directory.path()).unwrap();
        (directory, kernel)
    }

    fn want(names: &[&'static str]) -> Vec<Wanted> {
        names.iter().map(|name| Wanted { name, parameters: "", required: true }).collect()
    }

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let (_directory, kernel) = kernel(&[
            ("kernel/fs/xfs/xfs.ko", "license=GPL\0depends=libcrc32c\0softdep=pre: crc32c post: other\0"),
            ("kernel/lib/libcrc32c.ko", "depends=\0"),
            ("kernel/arch/crc32c-intel.ko", "depends=\0"),
            ("kernel/drivers/md/dm-crypt.ko", "depends=dm-mod,xts\0"),
            ("kernel/drivers/md/dm-mod.ko", "depends=\0"),
        ]);
        assert_eq!(kernel.release, RELEASE);
        let modules = kernel.modules(&[&want(&["xfs", "nls_cp437"]), &want(&["dm_crypt"])]).unwrap();
        let names: Vec<_> = modules.iter().map(|module| (module.name.as_str(), module.when)).collect();
        use LoadedWhen::{Listed, Needed};
        assert_eq!(names, [("libcrc32c", Needed), ("xfs", Listed), ("dm_mod", Needed), ("dm_crypt", Listed)]);
        assert_eq!(modules[3].path, format!("lib/modules/{RELEASE}/kernel/drivers/md/dm-crypt.ko"));
    }

    #[test]
    fn what_is_missing_is_named_with_who_needs_it() {
        let (_directory, kernel) = kernel(&[("kernel/a.ko", "depends=b\0")]);
        let error = kernel.modules(&[&want(&["a"])]).unwrap_err().to_string();
        assert!(error.contains("has no b") && error.contains("a needs it"), "{error}");
        let error = kernel.modules(&[&want(&["c"])]).unwrap_err().to_string();
        assert!(error.contains("has no c"), "{error}");
        assert_eq!(kernel.modules(&[&[Wanted { name: "c", parameters: "", required: false }]]).unwrap(), []);
    }

    #[test]
    fn two_kernels_or_none_are_refused_and_so_are_compressed_modules() {
        let (directory, kernel) = kernel(&[("kernel/a.ko.xz", "")]);
        assert!(matches!(kernel.modules(&[&want(&["a"])]), Err(KernelError::Compressed { .. })));
        fs::write(directory.path().join("boot/vmlinuz-2"), b"MZ").unwrap();
        assert!(matches!(Kernel::open(directory.path()), Err(KernelError::NotOne { found: 2, .. })));
        assert!(matches!(Kernel::open(Path::new("/nonexistent")), Err(KernelError::Read { .. })));
    }

    #[test]
    fn modules_that_name_each_other_are_no_endless_circle() {
        let (_directory, kernel) =
            kernel(&[("kernel/a.ko", "softdep=pre: b\0"), ("kernel/b.ko", "softdep=pre: a\0depends=\0")]);
        let modules = kernel.modules(&[&want(&["a", "b"])]).unwrap();
        assert_eq!(modules.iter().map(|module| module.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    }
}
