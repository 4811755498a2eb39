//! The same as a user without rights: fusermount3, which has them, mounts for it.

use std::path::Path;
use std::process::Command;

use polis_storage::data::DataPartition as _;
use rustix::process::{Gid, Uid};

use crate::common::{Home, World, can_run, is_mounted, is_root, keys, processes, skip, until};

const ROOT: &str = "POLIS_ENCRYPTION_TEST_UNPRIVILEGED_ROOT";
const TEST: &str = "unprivileged::a_user_without_rights_has_an_encrypted_partition_too";
/// The user `nobody` of most distributions.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn a_user_without_rights_has_an_encrypted_partition_too() {
    if let Some(root) = std::env::var_os(ROOT) {
        let world = World::at(Path::new(&root));
        assert!(!is_root());
        if rustix::thread::no_new_privs().unwrap() {
            let error = world.data.available().unwrap_err();
            assert!(
                error.reason.contains("may gain no privileges") && error.remedy.contains("NoNewPrivileges"),
                "{error}"
            );
            return;
        }
        for _ in 0..2 {
            world.prepare().await.unwrap();
            world.born(&keys(1)).await;
            world.write("data/node/file", b"kept");
            assert_eq!(world.read("data/node/file"), b"kept");
            world.data.add_key(&keys(1), &keys(2)).await.unwrap();
            // Its mount stays behind, dead, the first time.
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(world.process().unwrap().try_into().unwrap()).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
            world.data.lost().await;
        }
        world.open(&keys(2)).await.unwrap();
        return world.data.close().await.unwrap();
    }
    if !can_run() || (!is_root() && !skip("to become another user needs root")) {
        return;
    }
    let home = Home::new();
    let owner = (Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)));
    rustix::fs::chown(home.path(), owner.0, owner.1).unwrap();
    // The program itself is where that user can run it; another process writes it, since the kernel runs none that a child of
    // this one has open for writing.
    let program = home.path().with_extension("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let user = NOBODY.to_string();
    for may_gain in [&["--no-new-privs"][..], &[]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).args(may_gain).arg("--").arg(&program);
        command.args(["--exact", TEST, "--nocapture"]).env(ROOT, home.path()).env("TMPDIR", home.path());
        let output = command.current_dir("/").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
    }
    std::fs::remove_file(&program).unwrap();
    assert!(!is_mounted(&home.path().join("data")));
    until("gocryptfs ends", || processes(home.path()).is_empty());
}
