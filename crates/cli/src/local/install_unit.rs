//! `polis node install-unit`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::arguments::InstallUnitArguments;
use super::unit::Unit;
use crate::atomic_file::{self, Existing};
use crate::failure::Failure;
use crate::view::{print, safe};
use crate::{bounded_file, shell};

/// Longest unit that is compared with ours.
const MAX_UNIT_LENGTH: u64 = 1 << 20;

/// Mode of a unit: systemd complains of ones that nobody can read.
const MODE: u32 = 0o644;

pub(super) fn run(arguments: &InstallUnitArguments) -> Result<ExitCode, Failure> {
    let text = unit(arguments)?.render();
    if arguments.print {
        print(&safe(&text))?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = arguments.directory.join(format!("{}.service", arguments.name));
    let written = install(&path, &text, arguments.force)?;
    print(&safe(&next_steps(arguments, &path, written)))?;
    Ok(ExitCode::SUCCESS)
}

fn unit(arguments: &InstallUnitArguments) -> Result<Unit, Failure> {
    let InstallUnitArguments { root, parameters, address, etcd, peers, user, .. } = arguments;
    let absolute = |path: &Path| -> Result<PathBuf, Failure> {
        std::path::absolute(path)
            .map_err(|error| Failure::failed(format!("{} is not a usable path", path.display())).because(&error))
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed("it cannot be told where this program is").because(&error))?;
    Ok(Unit {
        program,
        root: absolute(root)?,
        parameters: parameters.as_deref().map(absolute).transpose()?,
        address: *address,
        etcd: etcd.as_deref().map(absolute).transpose()?,
        peers: peers.clone(),
        user: user.clone(),
    })
}

/// Writes the unit, unless it is there already. Returns whether it was written.
fn install(path: &Path, text: &str, force: bool) -> Result<bool, Failure> {
    let failed = |error: &io::Error| {
        let failure = Failure::failed(format!("the unit could not be written to {}", path.display())).because(error);
        if error.kind() == io::ErrorKind::PermissionDenied {
            failure.hint("run this as root, or print the unit with --print")
        } else if error.kind() == io::ErrorKind::NotFound {
            failure.hint("there is no such directory: is this a machine with systemd? --directory names another one")
        } else {
            failure
        }
    };
    match bounded_file::read(path, MAX_UNIT_LENGTH) {
        Ok(present) if present == text.as_bytes() => return Ok(false),
        Ok(_) if !force => {
            return Err(Failure::failed(format!("{} is there already and says something else", path.display()))
                .because_of("it may have been changed by hand, or was made for another node")
                .hint("compare it with `--print`; --force overwrites it, --name writes another one beside it"));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&error)),
        Ok(_) | Err(_) => {}
    }
    let existing = if force { Existing::Replace } else { Existing::Keep };
    atomic_file::write(path, text.as_bytes(), MODE, existing).map_err(|error| failed(&error))?;
    Ok(true)
}

fn next_steps(arguments: &InstallUnitArguments, path: &Path, written: bool) -> String {
    let first = if written {
        format!("Written to {}.", path.display())
    } else {
        format!("{} is as it should be.", path.display())
    };
    format!(
        "{first}\nNext:\n  systemctl daemon-reload && systemctl enable --now --no-block {}\n  polis node status --root {} --wait Running\n",
        arguments.name,
        shell::quote(&arguments.root),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_unit_that_says_something_else_is_overwritten_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("polis.service");
        assert!(install(&path, "one", false).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert!(!install(&path, "one", false).unwrap(), "nothing is to be done");
        let error = format!("{:?}", install(&path, "two", false).unwrap_err());
        assert!(error.contains("--force"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(install(&path, "two", true).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let error = format!("{:?}", install(&directory.path().join("no/polis.service"), "", false).unwrap_err());
        assert!(error.contains("a machine with systemd"), "{error}");
    }

    #[test]
    fn the_next_command_is_printed() {
        let arguments = InstallUnitArguments {
            root: "/srv/my node".into(),
            parameters: Some("node.pb".into()),
            address: None,
            etcd: None,
            peers: vec![],
            user: None,
            name: "polis-2".into(),
            directory: "/etc/systemd/system".into(),
            print: false,
            force: false,
        };
        let text = next_steps(&arguments, Path::new("/etc/systemd/system/polis-2.service"), true);
        assert!(text.contains("systemctl enable --now --no-block polis-2\n"), "{text}");
        assert!(text.contains("--root '/srv/my node' --wait Running"), "{text}");
        let parameters = unit(&arguments).unwrap().parameters.unwrap();
        assert!(parameters.is_absolute(), "{}", parameters.display());
    }
}
