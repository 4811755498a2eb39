//! [`HelperPlace`]: where the program `polis-tpm` is.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use polis_storage::journal::{SealError, SealTrouble};

/// Name of the program that speaks to the TPM.
pub const HELPER: &str = "polis-tpm";

/// Where the helper program is looked for, in this order: the one place that was named, or beside the running program and then in
/// the directories of `PATH`.
#[derive(Clone, Debug)]
pub struct HelperPlace {
    explicit: Option<PathBuf>,
    directories: Vec<PathBuf>,
}

impl HelperPlace {
    /// At `path` and nowhere else.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        // A child needs an absolute path, and the working directory may change later.
        Self { explicit: Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned())), directories: Vec::new() }
    }

    /// Beside the running program, then in the directories of `search_path` (the value of `PATH`). Call it early: a program that is
    /// replaced while it runs has no place any more.
    #[must_use]
    pub fn of_this_process(search_path: Option<OsString>) -> Self {
        let beside = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        let search_path = search_path.unwrap_or_default();
        let directories = beside.into_iter().chain(std::env::split_paths(&search_path));
        Self { explicit: None, directories: directories.filter(|directory| directory.is_absolute()).collect() }
    }

    /// The program.
    ///
    /// # Errors
    ///
    /// [`SealTrouble::HelperMissing`] when it is in none of its places.
    pub fn find(&self) -> Result<PathBuf, SealError> {
        if let Some(path) = &self.explicit {
            return if is_program(path) {
                Ok(path.clone())
            } else {
                Err(missing(&format!("there is no program {}", path.display())))
            };
        }
        self.directories.iter().map(|directory| directory.join(HELPER)).find(|path| is_program(path)).ok_or_else(|| {
            let list: Vec<_> = self.directories.iter().map(|directory| directory.display().to_string()).collect();
            missing(&format!("there is no {HELPER} in {}", list.join(":")))
        })
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn missing(place: &str) -> SealError {
    SealError::new(
        SealTrouble::HelperMissing,
        format!(
            "the program that speaks to the TPM is missing: {place}. Build the package polis-tpm-helper and put {HELPER} beside \
             polis; it is looked for anew each time"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(directory: &Path, mode: u32) -> PathBuf {
        let path = directory.join(HELPER);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn it_is_found_in_the_search_path_as_soon_as_it_is_there() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let search_path = std::env::join_paths([Path::new("relative"), first.path(), second.path()]).unwrap();
        let place = HelperPlace::of_this_process(Some(search_path));
        let error = place.find().unwrap_err();
        assert_eq!(error.trouble, SealTrouble::HelperMissing);
        assert!(error.to_string().contains(&*first.path().to_string_lossy()), "{error}");
        assert!(!error.to_string().contains("relative"), "{error}");

        let path = put(second.path(), 0o755);
        assert_eq!(place.find().unwrap(), path);
        // Not a program.
        let _ = put(first.path(), 0o644);
        assert_eq!(place.find().unwrap(), path);
        let path = put(first.path(), 0o755);
        assert_eq!(place.find().unwrap(), path);
    }

    #[test]
    fn the_one_that_was_named_is_the_only_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other");
        let _ = put(directory.path(), 0o755);
        let error = HelperPlace::at(&path).find().unwrap_err();
        assert_eq!(error.trouble, SealTrouble::HelperMissing);
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
}
