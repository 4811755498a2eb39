//! The commands, as values: what each of them is given.

use std::ffi::OsString;
use std::path::Path;

use polis_storage::journal::StorageSecurity;

use super::names::{LABEL, luks_uuid, xfs_uuid};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 32;
/// Iterations of PBKDF2: the least that `cryptsetup` takes. The key that goes in is random, so that more would only cost time.
const ITERATIONS: &str = "1000";

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Cryptsetup,
    MakeXfs,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Invocation {
    pub(super) program: Program,
    pub(super) arguments: Vec<OsString>,
}

fn cryptsetup(arguments: &[&str], device: &Path, rest: &[&str]) -> Invocation {
    let mut all: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    all.push(device.into());
    all.extend(rest.iter().map(OsString::from));
    Invocation { program: Program::Cryptsetup, arguments: all }
}

/// Makes the header, with the key from the input in the first slot. None for the stack without encryption.
pub(super) fn luks_format(device: &Path, owner: &str, security: StorageSecurity) -> Option<Invocation> {
    let cipher: &[&str] = match security {
        StorageSecurity::Insecure => return None,
        StorageSecurity::Encrypted => &["--cipher", "aes-xts-plain64", "--key-size", "512"],
        // The sectors that are used are written before they are; see the documentation of the module above.
        StorageSecurity::AuthenticatedEncrypted => {
            &["--cipher", "aes-gcm-random", "--key-size", "256", "--integrity", "aead", "--integrity-no-wipe"]
        }
    };
    let uuid = luks_uuid(owner).to_string();
    let mut arguments = vec!["--batch-mode", "luksFormat", "--type", "luks2", "--label", LABEL, "--subsystem", owner];
    arguments.extend([
        "--uuid",
        &uuid,
        "--sector-size",
        "4096",
        "--pbkdf",
        "pbkdf2",
        "--pbkdf-force-iterations",
        ITERATIONS,
    ]);
    arguments.extend(["--key-file", "-", "--keyfile-size", "32"]);
    arguments.extend(cipher);
    Some(cryptsetup(&arguments, device, &[]))
}

/// Opens the device as a mapping, with the key from the input.
pub(super) fn open(device: &Path, mapping: &str) -> Invocation {
    cryptsetup(
        &["--batch-mode", "open", "--type", "luks2", "--key-file", "-", "--keyfile-size", "32"],
        device,
        &[mapping],
    )
}

/// Opens an authenticated device so that a power cut may leave sectors with tags that do not fit, which takes half the
/// time: for what is begun anew after a power cut.
pub(super) fn open_without_journal(device: &Path, mapping: &str) -> Invocation {
    let mut invocation = open(device, mapping);
    invocation.arguments.insert(1, "--integrity-no-journal".into());
    invocation
}

/// Says whether the key from the input opens a slot, and which.
pub(super) fn test_key(device: &Path) -> Invocation {
    cryptsetup(
        &[
            "--batch-mode",
            "--verbose",
            "open",
            "--type",
            "luks2",
            "--test-passphrase",
            "--key-file",
            "-",
            "--keyfile-size",
            "32",
        ],
        device,
        &[],
    )
}

/// Removes a mapping, and what is under it.
pub(super) fn close(mapping: &str) -> Invocation {
    let arguments = ["--batch-mode", "close", mapping].iter().map(OsString::from).collect();
    Invocation { program: Program::Cryptsetup, arguments }
}

/// Adds a slot: the existing key and then the new one come from the input.
pub(super) fn add_key(device: &Path) -> Invocation {
    cryptsetup(
        &[
            "--batch-mode",
            "luksAddKey",
            "--pbkdf",
            "pbkdf2",
            "--pbkdf-force-iterations",
            ITERATIONS,
            "--key-file",
            "-",
            "--keyfile-size",
            "32",
            "--new-keyfile",
            "-",
            "--new-keyfile-size",
            "32",
        ],
        device,
        &[],
    )
}

/// Removes a slot; the key of another one comes from the input. Without `--batch-mode`, `cryptsetup` checks that key.
pub(super) fn remove_slot(device: &Path, slot: u32) -> Invocation {
    cryptsetup(&["luksKillSlot", "--key-file", "-", "--keyfile-size", "32"], device, &[&slot.to_string()])
}

/// Shows what the header says.
pub(super) fn dump(device: &Path) -> Invocation {
    cryptsetup(&["luksDump", "--dump-json-metadata"], device, &[])
}

/// Adds a token, which comes from the input.
pub(super) fn import_token(device: &Path) -> Invocation {
    cryptsetup(&["--batch-mode", "token", "import", "--json-file", "-"], device, &[])
}

/// Makes the file system, over all of the device or over its first `size` bytes. It asks nothing, as what was on the device has
/// been looked at, and discards nothing: a discarded sector of an authenticated device cannot be read.
pub(super) fn make_xfs(device: &Path, owner: &str, label: &str, size: Option<u64>) -> Invocation {
    let mut arguments: Vec<OsString> = ["-q", "-f", "-K", "-L", label, "-m"].iter().map(OsString::from).collect();
    arguments.push(format!("uuid={}", xfs_uuid(owner)).into());
    if let Some(size) = size {
        // Two groups: no fewer, as each has a copy of the superblock; no more, as growth adds groups of this size.
        arguments.push("-d".into());
        arguments.push(format!("size={size},agcount=2").into());
    }
    arguments.push(device.into());
    Invocation { program: Program::MakeXfs, arguments }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(invocation: &Invocation) -> String {
        let words: Vec<_> = invocation.arguments.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn what_each_command_is_given() {
        let device = Path::new("/dev/vdb");
        let luks = luks_uuid("metropolis-1");
        let format = |security| luks_format(device, "metropolis-1", security).map(|command| text(&command));
        let common = format!(
            "--batch-mode luksFormat --type luks2 --label polis-data --subsystem metropolis-1 --uuid {luks} --sector-size 4096 \
             --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file - --keyfile-size 32"
        );
        assert_eq!(format(StorageSecurity::Insecure), None);
        assert_eq!(
            format(StorageSecurity::Encrypted),
            Some(format!("{common} --cipher aes-xts-plain64 --key-size 512 /dev/vdb"))
        );
        assert_eq!(
            format(StorageSecurity::AuthenticatedEncrypted),
            Some(format!(
                "{common} --cipher aes-gcm-random --key-size 256 --integrity aead --integrity-no-wipe /dev/vdb"
            ))
        );
        let xfs = xfs_uuid("metropolis-1");
        for (command, expected) in [
            (open(device, "polis-1"), "--batch-mode open --type luks2 --key-file - --keyfile-size 32 /dev/vdb polis-1"),
            (
                open_without_journal(device, "polis-1"),
                "--batch-mode --integrity-no-journal open --type luks2 --key-file - --keyfile-size 32 /dev/vdb polis-1",
            ),
            (close("polis-1"), "--batch-mode close polis-1"),
            (remove_slot(device, 3), "luksKillSlot --key-file - --keyfile-size 32 /dev/vdb 3"),
            (dump(device), "luksDump --dump-json-metadata /dev/vdb"),
            (import_token(device), "--batch-mode token import --json-file - /dev/vdb"),
            (
                make_xfs(device, "metropolis-1", "polis-new", None),
                &format!("-q -f -K -L polis-new -m uuid={xfs} /dev/vdb"),
            ),
            (
                make_xfs(device, "metropolis-1", "polis-data", Some(4096)),
                &format!("-q -f -K -L polis-data -m uuid={xfs} -d size=4096,agcount=2 /dev/vdb"),
            ),
        ] {
            assert_eq!(text(&command), expected);
        }
    }
}
