//! What a power cut leaves depends on what gocryptfs passes on: seen in its system calls.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use polis_storage::data::DataPartition as _;

use crate::common::{Home, World, can_run, keys, program, skip, snapshot};

/// The names of the files and directories that were synced in a trace, and where renames were between.
fn synced(trace: &str) -> Vec<String> {
    let mut open: HashMap<&str, &str> = HashMap::new();
    let mut seen = Vec::new();
    for line in trace.lines() {
        let Some((_, call)) = line.split_once(' ') else { continue };
        let result = call.rsplit_once(" = ").map(|(_, result)| result).unwrap_or_default();
        if let Some((_, rest)) = call.split_once("openat(") {
            open.insert(result, rest.split('"').nth(1).unwrap_or_default());
        } else if let Some((descriptor, _)) = call.trim().strip_prefix("fsync(").and_then(|rest| rest.split_once(')')) {
            assert_eq!(result, "0", "{line}");
            seen.push(open.get(descriptor).copied().unwrap_or("?").to_owned());
        } else if call.contains("renameat") {
            assert_eq!(result, "0", "{line}");
            seen.push("a rename".to_owned());
        }
    }
    seen
}

#[tokio::test]
async fn the_sync_of_a_file_and_of_a_directory_reaches_the_ciphertext() {
    let strace = Command::new("strace").arg("-V").output().is_ok();
    if !can_run() || (!strace && !skip("strace is not installed")) {
        return;
    }
    let home = Home::new();
    let tools = tempfile::tempdir().unwrap();
    let log = tools.path().join("log");
    let trace = format!("strace -f -qq -e signal=none -e trace=openat,fsync,renameat,renameat2 -o {}", log.display());
    let script = format!("case \"$*\" in -fg*) exec {trace} gocryptfs \"$@\";; *) exec gocryptfs \"$@\";; esac");
    program(&tools.path().join("gocryptfs"), &script);
    program(&tools.path().join("fusermount3"), "exec fusermount3 \"$@\"");
    let world = World::with_programs(home.path(), vec![tools.path().to_owned()]);
    world.format(&keys(1)).await.unwrap();
    let formatted = fs::read_to_string(&log).unwrap().len();
    world.open(&keys(1)).await.unwrap();
    world.write("data/node/file", b"kept");
    // A file of the mount has the inode number of its ciphertext.
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let directory = inode(&home.path().join("data/node"));
    let (directory, _) = snapshot(&world.cipher()).into_iter().find(|(path, _)| inode(path) == directory).unwrap();
    let directory = directory.file_name().unwrap().to_str().unwrap().to_owned();
    world.data.close().await.unwrap();

    let log = fs::read_to_string(&log).unwrap();
    let all = synced(&log);
    let last = all.len() - 1;
    assert_eq!(
        (&*all[last - 2], &*all[last]),
        ("a rename", &*directory),
        "after the rename of the file, it and its directory are synced: {all:?}"
    );
    let temporary = &all[last - 3];
    assert!(log[formatted..].contains(&format!("\"{temporary}\"")), "before it the file: {all:?}");
    assert_eq!(all.iter().filter(|name| *name == "a rename").count(), 2, "the marker, and this file");
    assert!(
        !snapshot(&world.cipher()).iter().any(|(path, _)| path.ends_with("gocryptfs.diriv")),
        "nothing that is not synced"
    );
}
