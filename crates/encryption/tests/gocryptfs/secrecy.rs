//! What the disk and the process list tell to others, and what happens to a disk that somebody changed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use polis_encryption::{Purpose, derive};
use polis_storage::Disk as _;
use polis_storage::data::{DataPartition as _, UnlockKeys};

use crate::common::{Home, World, can_run, keys, path, program, snapshot};

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

#[tokio::test]
async fn the_ciphertext_tells_neither_names_nor_content() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/a-telling-name", b"a secret that must not be seen");
    world.data.close().await.unwrap();
    for (path, content) in snapshot(home.path()) {
        let below = path.strip_prefix(home.path()).unwrap().to_string_lossy().into_owned();
        if let Some(cipher) = below.strip_prefix("encrypted/cipher/") {
            for name in ["telling", "node", "etcd", "data", "partition"] {
                assert!(!cipher.contains(name), "{below}");
            }
        }
        assert!(!contains(&content.unwrap_or_default(), b"secret that must"), "{below}");
    }
}

#[tokio::test]
async fn a_flipped_bit_is_an_error_and_not_wrong_data() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    let content: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    world.write("data/node/file", &content);
    world.data.close().await.unwrap();
    let largest =
        snapshot(&world.cipher()).into_iter().max_by_key(|(_, content)| content.as_ref().map(Vec::len)).unwrap();
    let (file, Some(ciphertext)) = largest else { panic!("it is a file") };
    assert!(ciphertext.len() > content.len());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // In the header of the file, in its first block, in the middle and at the end.
    for position in [5, 40, ciphertext.len() / 2, ciphertext.len() - 1] {
        let mut changed = ciphertext.clone();
        changed[position] ^= 1;
        fs::write(&file, &changed).unwrap();
        world.open(&keys(1)).await.unwrap();
        let error = world.disk.read(&path("data/node/file"), 1 << 20).unwrap_err();
        assert!(error.is_medium_failure(), "byte {position}: {error:?}");
        world.data.close().await.unwrap();
    }
    fs::write(&file, &ciphertext).unwrap();
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.read("data/node/file"), content);
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn no_key_is_among_arguments_variables_or_files() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let tools = tempfile::tempdir().unwrap();
    let log = tools.path().join("log");
    // Writes down all that it is called with, and is then what it stands for.
    for name in ["gocryptfs", "fusermount3"] {
        let script = format!("{{ echo \"{name} $*\"; env; }} >>{}; exec {name} \"$@\"", log.display());
        program(&tools.path().join(name), &script);
    }
    let world = World::with_programs(home.path(), vec![tools.path().to_owned()]);
    world.born(&keys(1)).await;
    world.data.add_key(&keys(1), &keys(2)).await.unwrap();
    world.data.remove_others(&keys(2)).await.unwrap();
    world.data.close().await.unwrap();
    let log = fs::read(&log).unwrap();
    assert!(
        contains(&log, b" -init ")
            && contains(&log, b" -passwd ")
            && contains(&log, b" -fg ")
            && contains(&log, b" -u ")
    );
    let mut seen = vec![("what was said".into(), Some(log))];
    seen.extend(snapshot(home.path()));
    for (path, content) in seen {
        let content = content.unwrap_or_default();
        for secret in secrets(&[keys(1), keys(2)]) {
            assert!(!contains(&content, &secret), "{}", Path::new(&path).display());
        }
    }
}

/// The keys in all forms in which they could be somewhere.
fn secrets(keys: &[UnlockKeys]) -> Vec<Vec<u8>> {
    let mut secrets = Vec::new();
    for keys in keys {
        for secret in [&keys.node, &keys.cluster, &derive(keys, Purpose::Gocryptfs)] {
            secrets.push(secret.expose().to_vec());
            secrets.push(secret.expose().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
        }
    }
    secrets
}
