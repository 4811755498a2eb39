//! Parameters that are none, or none that this build follows.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use polis_testkit::confined::without_powers;
use polis_testkit::refusal::{Says, refused};
use polis_testkit::seed::Random;

use crate::Place;

/// What a refusal of bad content says next.
const MAKE_ANEW: &str = "hint: `polis parameters bootstrap` makes a good file for the first node of a cluster, `polis parameters register` for each";

/// Good parameters, and what they are made of.
fn good(place: &Place) -> Vec<u8> {
    fs::read(&place.parameters).unwrap()
}

/// Runs a node with this content as its parameters: without a root, which it must not make, and with one that is there.
fn content_is_refused(place: &Place, bytes: &[u8], why: &str) {
    fs::write(&place.parameters, bytes).unwrap();
    let says = Says { what: "are not usable", place: &place.parameters, why, next: MAKE_ANEW };
    refused(&place.host, place.command(), 1, says);
    assert!(!place.root().exists());
    fs::create_dir(place.root()).unwrap();
    fs::write(place.root().join("something"), "of somebody").unwrap();
    refused(&place.host, place.command(), 1, says);
    fs::remove_dir_all(place.root()).unwrap();
}

#[test]
fn missing() {
    let place = Place::new();
    fs::remove_file(&place.parameters).unwrap();
    let says = Says {
        what: "cannot be read",
        place: &place.parameters,
        why: "No such file or directory",
        next: "hint: check the path and its permissions; `polis parameters bootstrap` makes such a file for the first node of a cluster, \
               `polis parameters register` one for each that follows",
    };
    refused(&place.host, place.command(), 1, says);
    // Without the option, the usual places are named.
    let esp = place.root().join("esp/polis/parameters.pb");
    let says = Says {
        what: "did not start",
        place: &esp,
        why: "was given no parameters",
        next: "Name a file with --parameters",
    };
    refused(&place.host, place.host.command(), 1, says);
    let says = Says { place: Path::new("/sys/firmware/qemu_fw_cfg/"), ..says };
    refused(&place.host, place.host.command(), 1, says);
    assert!(!place.root().exists());
}

#[test]
fn not_readable() {
    let place = Place::new();
    fs::set_permissions(&place.parameters, fs::Permissions::from_mode(0o000)).unwrap();
    let says = Says {
        what: "cannot be read",
        place: &place.parameters,
        why: "Permission denied",
        next: "hint: check the path and its permissions",
    };
    let command = without_powers(place.command());
    // Without permission the test cannot read the file either, unless it is root.
    let file = fs::symlink_metadata(&place.parameters).unwrap();
    let mut node = place.host.spawn(command);
    assert_eq!(node.wait_exit().code(), Some(1), "{}", node.log());
    for part in [says.what, says.why, says.next, &*place.parameters.to_string_lossy()] {
        assert!(node.log().contains(part), "{part:?} is not in {}", node.log());
    }
    assert_eq!(fs::symlink_metadata(&place.parameters).unwrap().modified().unwrap(), file.modified().unwrap());
    assert!(!place.root().exists());
    // A directory in place of the file.
    fs::remove_file(&place.parameters).unwrap();
    fs::create_dir(&place.parameters).unwrap();
    refused(&place.host, place.command(), 1, Says { why: "Is a directory", ..says });
}

#[test]
fn a_pipe() {
    let place = Place::new();
    fs::remove_file(&place.parameters).unwrap();
    let made = Command::new("mkfifo").arg(&place.parameters).status().unwrap();
    assert!(made.success());
    // Nobody ever writes to it, so a node that opens it waits for ever.
    let says = Says {
        what: "cannot be read",
        place: &place.parameters,
        why: "it is a pipe",
        next: "hint: check the path and its permissions",
    };
    refused(&place.host, place.command(), 1, says);
    assert!(!place.root().exists());
    // In the place where an image brings them.
    let esp = place.root().join("esp/polis");
    fs::create_dir_all(&esp).unwrap();
    fs::rename(&place.parameters, esp.join("parameters.pb")).unwrap();
    refused(&place.host, place.host.command(), 1, Says { place: &esp.join("parameters.pb"), ..says });
}

#[test]
fn empty() {
    let place = Place::new();
    content_is_refused(&place, b"", "the file is empty");
}

#[test]
fn cut() {
    let place = Place::new();
    let whole = good(&place);
    for length in [1, whole.len() / 2, whole.len() - 1] {
        content_is_refused(&place, &whole[..length], "not a NodeParameters message, or was cut short");
    }
}

#[test]
fn random_bytes() {
    let place = Place::new();
    // A seed of its own: of all random files, some are messages that say nothing.
    let mut random = Random::new(1);
    let bytes: Vec<u8> = (0..4096).map(|_| random.number().to_be_bytes()[0]).collect();
    content_is_refused(&place, &bytes, "not a NodeParameters message");
}

#[test]
fn ten_mebibytes() {
    let place = Place::new();
    content_is_refused(&place, &vec![0x0a; 10 << 20], "has more than 1048576 bytes");
    // A file that has no end.
    let mut command = place.host.command();
    command.args(["--parameters", "/dev/zero"]);
    let says = Says {
        what: "are not usable",
        place: Path::new("/dev/zero"),
        why: "has more than 1048576 bytes",
        next: MAKE_ANEW,
    };
    refused(&place.host, command, 1, says);
}

#[test]
fn neither_variant() {
    let place = Place::new();
    // Field 4, network_config, alone and empty.
    content_is_refused(&place, &[0x22, 0], "neither cluster_bootstrap nor cluster_register is set");
}

#[test]
fn owner_key_of_wrong_length() {
    let place = Place::new();
    for length in [0_u8, 1, 31, 33, 64] {
        // cluster_bootstrap { owner_public_key: of that length, with a configuration that is good }.
        let configuration = [0x1a, 4, 8, 3, 16, 4];
        let mut message = vec![0x0a, length + 2 + 6, 0x0a, length];
        message.extend(std::iter::repeat_n(7, usize::from(length)));
        message.extend(configuration);
        let why = match length {
            0 => "owner_public_key is missing".to_owned(),
            _ => format!("owner_public_key has {length} bytes; an Ed25519 public key has 32"),
        };
        content_is_refused(&place, &message, &why);
    }
}

#[test]
fn unknown_policies() {
    let place = Place::new();
    let good = good(&place);
    // The configuration as bootstrap makes it: TPM disabled (3), storage insecure (4).
    let position =
        good.windows(4).position(|window| window == [8, 3, 16, 4]).expect("the configuration is in the file");
    for (offset, value, why) in [
        (3, 99, "storage_security_policy has the unknown value 99"),
        (3, 0, "storage_security_policy is not set"),
        (1, 99, "tpm_mode has the unknown value 99"),
        (1, 0, "tpm_mode is not set"),
    ] {
        let mut bytes = good.clone();
        bytes[position + offset] = value;
        content_is_refused(&place, &bytes, why);
    }
}

#[test]
fn a_flipped_byte_is_refused_or_followed_and_nothing_else() {
    let mut random = Random::for_this_run();
    let place = Place::new();
    let good = good(&place);
    for _ in 0..24 {
        let mut bytes = good.clone();
        let position = usize::try_from(random.below(bytes.len() as u64)).unwrap();
        bytes[position] ^= 1 << random.below(8);
        fs::write(&place.parameters, &bytes).unwrap();
        let mut node = place.host.spawn(place.command());
        let status = node.wait_exit_or_stop();
        let log = node.log();
        assert!(!log.contains("panicked"), "byte {position}: {log}");
        match status.code() {
            // Some bytes only make it another owner.
            Some(0) => fs::remove_dir_all(place.root()).unwrap(),
            Some(1) => {
                assert!(
                    log.starts_with("error: the node did not start\n  because: the parameters "),
                    "byte {position}: {log}"
                );
                assert!(!place.root().exists(), "byte {position}");
            }
            code => panic!("byte {position}: {code:?}: {log}"),
        }
        assert_eq!(fs::read(&place.parameters).unwrap(), bytes);
    }
}
