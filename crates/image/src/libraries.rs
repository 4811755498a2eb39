//! The shared libraries of the programs of an image, and where they come from.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::elf::{ElfError, ElfFacts};

/// Directory of the libraries in the image: one that the loader of Debian's C library looks into by itself.
pub(crate) const LIBRARY_DIRECTORY: &str = "lib/x86_64-linux-gnu";

/// Where the system keeps libraries, in the order in which its loader looks.
const SYSTEM_DIRECTORIES: &[&str] =
    &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Why the libraries of a program are not all known.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is none that can be run.
    #[error("{} cannot be run in the image", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ElfError,
    },
    /// A library is nowhere.
    #[error("the library {name}, which {} needs, is in none of the directories of libraries", needed_by.display())]
    Missing {
        /// Name of the library.
        name: String,
        /// Who needs it.
        needed_by: PathBuf,
    },
    /// Two programs need different libraries of one name.
    #[error("two different files are {name}: {} and {}", one.display(), other.display())]
    Conflict {
        /// Name of the library.
        name: String,
        /// Found first.
        one: PathBuf,
        /// Found then.
        other: PathBuf,
    },
}

/// Collects the libraries of one program after the other.
#[derive(Debug, Default)]
pub struct LibrarySearch {
    /// Looked into before the system's.
    directories: Vec<PathBuf>,
    /// By name.
    libraries: BTreeMap<String, PathBuf>,
    /// The loaders that programs name, by their full paths in the image.
    interpreters: BTreeMap<String, PathBuf>,
}

impl LibrarySearch {
    /// Looks into `directories` before those of the system.
    #[must_use]
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, ..Self::default() }
    }

    /// Adds what `program` needs, and what that needs, and so on.
    ///
    /// # Errors
    ///
    /// When something of it cannot be found or read.
    pub fn add_program(&mut self, program: &Path) -> Result<(), LibraryError> {
        let beside = beside(program);
        let mut open = vec![program.to_owned()];
        while let Some(file) = open.pop() {
            let bytes = std::fs::read(&file).map_err(|source| LibraryError::Read { path: file.clone(), source })?;
            let facts = ElfFacts::read(&bytes).map_err(|source| LibraryError::Elf { path: file.clone(), source })?;
            if let Some(interpreter) = &facts.interpreter {
                let place = self.find_interpreter(interpreter, &beside, &file)?;
                self.interpreters.insert(interpreter.clone(), place);
            }
            for name in &facts.needed {
                let found = self.find(name, &facts, &beside, &file)?;
                if self.take(name, found.clone())? {
                    open.push(found);
                }
            }
        }
        Ok(())
    }

    /// Adds a library that programs open by its name while they run, and what it needs. Returns whether it is there.
    ///
    /// # Errors
    ///
    /// When something that it needs cannot be found or read.
    pub fn add_opened_later(&mut self, name: &str, program: &Path) -> Result<bool, LibraryError> {
        let Ok(found) = self.find(name, &ElfFacts::default(), &beside(program), program) else { return Ok(false) };
        if self.take(name, found.clone())? {
            self.add_program(&found)?;
        }
        Ok(true)
    }

    /// Path in the image and source of each library and loader found so far. A loader that libraries name as one of theirs is loaded by
    /// then, and is there once.
    pub fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        let is_loader = |name: &str| self.interpreters.keys().any(|path| path.rsplit('/').next() == Some(name));
        let libraries = self.libraries.iter().filter(move |(name, _)| !is_loader(name));
        let libraries = libraries.map(|(name, source)| (format!("{LIBRARY_DIRECTORY}/{name}"), source.as_path()));
        let loaders = self.interpreters.iter();
        libraries.chain(loaders.map(|(path, source)| (path.trim_start_matches('/').to_owned(), source.as_path())))
    }

    /// Whether it is new.
    fn take(&mut self, name: &str, found: PathBuf) -> Result<bool, LibraryError> {
        match self.libraries.get(name) {
            None => {
                self.libraries.insert(name.to_owned(), found);
                Ok(true)
            }
            Some(known) if *known == found || same_content(known, &found) => Ok(false),
            Some(known) => Err(LibraryError::Conflict { name: name.to_owned(), one: known.clone(), other: found }),
        }
    }

    fn find(&self, name: &str, facts: &ElfFacts, beside: &[PathBuf], file: &Path) -> Result<PathBuf, LibraryError> {
        let origin = file.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let own = facts
            .search
            .iter()
            .map(|path| PathBuf::from(path.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin)));
        let directories = own.chain(beside.iter().cloned()).chain(self.directories.iter().cloned());
        directories
            .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
            .map(|directory| directory.join(name))
            .find(|path| path.is_file())
            .ok_or_else(|| LibraryError::Missing { name: name.to_owned(), needed_by: file.to_owned() })
    }

    fn find_interpreter(&self, path: &str, beside: &[PathBuf], file: &Path) -> Result<PathBuf, LibraryError> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let place = Path::new(path);
        if place.is_file() {
            return Ok(place.to_owned());
        }
        self.find(name, &ElfFacts::default(), beside, file)
    }
}

/// The directories of libraries of the tree that a package was unpacked into, for a program of that tree.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(directory) = program.parent() else { return Vec::new() };
    let root = ["usr/sbin", "usr/bin", "sbin", "bin"].iter().find_map(|end| {
        let depth = end.split('/').count();
        directory.ends_with(end).then(|| directory.ancestors().nth(depth)).flatten()
    });
    let Some(root) = root.filter(|root| *root != Path::new("/")) else { return Vec::new() };
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
        .iter()
        .map(|end| root.join(end))
        .filter(|path| path.is_dir())
        .collect()
}

fn same_content(one: &Path, other: &Path) -> bool {
    matches!((std::fs::read(one), std::fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_comes_with_its_c_library_and_loader() {
        let mut search = LibrarySearch::default();
        search.add_program(&std::fs::canonicalize("/bin/sh").unwrap()).unwrap();
        let paths: Vec<_> = search.files().map(|(path, _)| path).collect();
        assert!(paths.contains(&format!("{LIBRARY_DIRECTORY}/libc.so.6")), "{paths:?}");
        assert_eq!(paths.iter().filter(|path| path.contains("ld-linux")).count(), 1, "{paths:?}");
        assert!(paths.iter().any(|path| path.starts_with("lib64/ld-linux")), "{paths:?}");
        assert!(!search.add_opened_later("libthat-is-nowhere.so.0", Path::new("/bin/sh")).unwrap());
    }

    #[test]
    fn what_is_not_there_is_named() {
        let mut search = LibrarySearch::default();
        let error = search.add_program(Path::new("/etc/passwd")).unwrap_err();
        assert!(matches!(error, LibraryError::Elf { .. }), "{error}");
        let error = search.find("libthat-is-nowhere.so.0", &ElfFacts::default(), &[], Path::new("/bin/x")).unwrap_err();
        assert!(error.to_string().contains("libthat-is-nowhere.so.0") && error.to_string().contains("/bin/x"));
    }

    #[test]
    fn a_tree_of_its_own_comes_first() {
        let tree = tempfile::tempdir().unwrap();
        for directory in ["usr/sbin", "usr/lib/x86_64-linux-gnu"] {
            std::fs::create_dir_all(tree.path().join(directory)).unwrap();
        }
        let own = tree.path().join("usr/lib/x86_64-linux-gnu/libc.so.6");
        std::fs::write(&own, b"").unwrap();
        let program = tree.path().join("usr/sbin/program");
        let found =
            LibrarySearch::default().find("libc.so.6", &ElfFacts::default(), &beside(&program), &program).unwrap();
        assert_eq!(found, own);
        assert_eq!(beside(Path::new("/usr/sbin/cryptsetup")), Vec::<PathBuf>::new());
    }
}
