//! Kernel modules, loaded by a list.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;

use rustix::io::Errno;
use rustix::system::finit_module;

/// The list in the initramfs.
pub const MODULE_LIST: &str = "/lib/modules.list";

/// Name of the condition that modules of the image could not be loaded.
pub const MODULES_FAILED: &str = "kernel-modules-failed";

/// Most modules of a list. An image has some thirty.
const MAX_MODULES: usize = 512;

/// One line of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Module<'a> {
    path: &'a str,
    parameters: &'a str,
}

/// What came of loading the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Modules that this has loaded.
    pub(crate) loaded: usize,
    /// Modules that were there, or whose hardware is not.
    pub(crate) left_out: usize,
    /// What failed and why.
    pub(crate) failures: Vec<String>,
}

/// Loads the modules of the list, one after the other. One that fails does not keep the others from being tried.
pub(crate) fn load_all() -> Loaded {
    let mut outcome = Loaded::default();
    let list = match fs::read_to_string(MODULE_LIST) {
        Ok(list) => list,
        // A kernel that has all built in needs none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return outcome,
        Err(error) => {
            outcome.failures.push(format!("cannot read {MODULE_LIST}: {error}"));
            return outcome;
        }
    };
    for module in parse(&list) {
        match load(module) {
            Ok(()) => outcome.loaded += 1,
            Err(LoadFailure::LeftOut) => outcome.left_out += 1,
            Err(LoadFailure::Failed(reason)) => outcome.failures.push(format!("{}: {reason}", module.path)),
        }
    }
    outcome
}

fn parse(list: &str) -> impl Iterator<Item = Module<'_>> {
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).take(MAX_MODULES).map(|line| {
        let (path, parameters) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Module { path, parameters: parameters.trim_start() }
    })
}

#[derive(Debug, PartialEq, Eq)]
enum LoadFailure {
    LeftOut,
    Failed(String),
}

fn load(module: Module<'_>) -> Result<(), LoadFailure> {
    let file = File::open(module.path).map_err(|error| LoadFailure::Failed(format!("cannot open it: {error}")))?;
    let parameters =
        CString::new(module.parameters).map_err(|_| LoadFailure::Failed("a zero byte in its parameters".into()))?;
    finit_module(&file, &parameters, 0).map_err(judge)
}

/// What the kernel's answer about a module means.
fn judge(error: Errno) -> LoadFailure {
    match error {
        // There already, as itself or built in; or its hardware is not.
        Errno::EXIST | Errno::NODEV | Errno::NXIO => LoadFailure::LeftOut,
        Errno::NOENT => LoadFailure::Failed(
            "a symbol that it needs is missing: the module that has it must stand before it in the list".into(),
        ),
        Errno::NOEXEC => LoadFailure::Failed("it is no module of this kernel".into()),
        Errno::KEYREJECTED => LoadFailure::Failed("its signature is not one that this kernel takes".into()),
        error => LoadFailure::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_paths_parameters_and_comments() {
        let list = "\n# first\n/lib/virtio.ko\n  /lib/softdog.ko   soft_margin=60 nowayout=0  # at last\n\t\n";
        let module = |path, parameters| Module { path, parameters };
        assert_eq!(
            parse(list).collect::<Vec<_>>(),
            [module("/lib/virtio.ko", ""), module("/lib/softdog.ko", "soft_margin=60 nowayout=0")]
        );
    }

    #[test]
    fn missing_hardware_is_no_failure_and_a_missing_symbol_is() {
        for (error, left_out) in [
            (Errno::EXIST, true),
            (Errno::NODEV, true),
            (Errno::NXIO, true),
            (Errno::NOENT, false),
            (Errno::NOEXEC, false),
            (Errno::KEYREJECTED, false),
            (Errno::NOMEM, false),
        ] {
            assert_eq!(judge(error) == LoadFailure::LeftOut, left_out, "{error}");
        }
    }
}
