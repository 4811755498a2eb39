//! A partition is formatted once, opened by its owner with its keys, and keeps what was written.

use std::sync::Arc;

use polis_encryption::DirectoryBackends;
use polis_storage::data::{DataError, DataPartition as _, Found};
use polis_storage::journal::StorageSecurity;
use polis_storage::{DataBackends as _, Disk, FILE_MODE, HostDisk, durable};

use crate::common::{
    Home, NODE, OTHER, World, can_run, is_mounted, keys, path, permit, processes, progress, snapshot, until,
};

#[tokio::test]
async fn it_is_formatted_once_and_keeps_what_was_written() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    assert_eq!(world.data.describe().storage_security, StorageSecurity::AuthenticatedEncrypted);
    assert_eq!(world.prepare().await.unwrap(), Found::Nothing);
    assert!(snapshot(home.path()).is_empty(), "looking makes nothing");
    assert!(matches!(world.open(&keys(1)).await, Err(DataError::NotFormatted { .. })));
    assert!(matches!(world.data.test_open(&keys(1)).await, Err(DataError::NotFormatted { .. })));

    let progress = progress();
    world.data.format(permit(), NODE, Some(&keys(1)), &progress).await.unwrap();
    assert_eq!(progress.borrow().step, "formatting the encrypted data directory");
    let formatted = Found::Formatted { owner: Some(NODE.to_owned()) };
    assert_eq!(world.prepare().await.unwrap(), formatted);
    assert!(world.disk.list(&path("data")).unwrap_err().is_data_closed(), "it is formatted, and not yet open");
    world.open(&keys(1)).await.unwrap();
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.disk.list(&path("data")).unwrap(), ["etcd", "node", "partition"]);
    world.write("data/node/file", b"kept");
    world.data.close().await.unwrap();
    world.data.close().await.unwrap();
    assert!(world.disk.list(&path("data")).unwrap_err().is_data_closed());
    assert!(!is_mounted(&home.path().join("data")));
    assert_eq!(processes(home.path()), Vec::<u32>::new());

    // The next start, and one more in the same process.
    let world = home.world();
    assert_eq!(world.prepare().await.unwrap(), formatted);
    world.format(&keys(1)).await.unwrap();
    for _ in 0..2 {
        world.open(&keys(1)).await.unwrap();
        assert_eq!(world.read("data/node/file"), b"kept");
        world.data.close().await.unwrap();
    }
}

#[tokio::test]
async fn only_its_owner_with_its_keys_opens_it() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.data.close().await.unwrap();
    let before = snapshot(home.path());

    let (keys, other_keys) = (keys(1), keys(2));
    let opened = world.data.open(OTHER, Some(&keys), &progress()).await;
    assert!(matches!(opened, Err(DataError::OtherNode { found, .. }) if found == NODE));
    let formatted = world.data.format(permit(), OTHER, Some(&keys), &progress()).await;
    assert!(matches!(formatted, Err(DataError::OtherNode { .. })));
    for wrong in [None, Some(&other_keys)] {
        let opened = world.data.open(NODE, wrong, &progress()).await;
        assert!(matches!(opened, Err(DataError::WrongKeys { .. })), "{opened:?}");
        let formatted = world.data.format(permit(), NODE, wrong, &progress()).await;
        assert!(matches!(formatted, Err(DataError::WrongKeys { .. })), "{formatted:?}");
    }
    assert!(!is_mounted(&home.path().join("data")));
    assert!(snapshot(home.path()) == before, "nothing was changed");
    world.open(&keys).await.unwrap();
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn a_root_with_peculiar_characters_is_a_root_like_any_other() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let root = home.path().join("a b,c\\d%ä");
    std::fs::create_dir(&root).unwrap();
    let world = World::at(&root);
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    // Its process is gone before it could unmount.
    drop(world);
    until("the process ends", || processes(&root).is_empty());
    let world = World::at(&root);
    world.prepare().await.unwrap();
    world.open(&keys(1)).await.unwrap();
    assert_eq!(world.read("data/node/file"), b"kept");
    world.data.close().await.unwrap();
    assert_eq!(processes(&root), Vec::<u32>::new());
}

#[tokio::test]
async fn the_backends_of_a_directory_let_nobody_past_a_partition_that_is_not_open() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let keys = keys(1);
    for start in 0..2 {
        let host: Arc<dyn Disk> = Arc::new(HostDisk::open(home.path()).unwrap());
        let backends = DirectoryBackends::new(host);
        let disk = backends.disk();
        let data = backends.choose(StorageSecurity::AuthenticatedEncrypted).unwrap();
        let write = || durable::write(&*disk, "test", &path("data/node/file"), FILE_MODE, b"kept");
        assert!(write().unwrap_err().is_data_closed());
        data.prepare(&progress()).await.unwrap();
        if start == 0 {
            data.format(permit(), NODE, Some(&keys), &progress()).await.unwrap();
        }
        assert!(write().unwrap_err().is_data_closed());
        data.open(NODE, Some(&keys), &progress()).await.unwrap();
        // Who asks again has the same one, and closes nothing.
        backends.choose(StorageSecurity::AuthenticatedEncrypted).unwrap();
        write().unwrap();
        data.close().await.unwrap();
        assert!(write().unwrap_err().is_data_closed());
        // Through the eyes of the plain backend it is no partition of its own.
        let plain = backends.choose(StorageSecurity::Insecure).unwrap();
        assert!(plain.open(NODE, None, &progress()).await.is_err());
    }
    assert!(!home.path().join("data/node").exists(), "nothing was written where the mount was not");
}

#[tokio::test]
async fn a_plain_partition_is_not_taken_for_free() {
    let home = Home::new();
    let host: Arc<dyn Disk> = Arc::new(HostDisk::open(home.path()).unwrap());
    let backends = DirectoryBackends::new(host);
    let plain = backends.choose(StorageSecurity::Insecure).unwrap();
    plain.format(permit(), NODE, None, &progress()).await.unwrap();
    plain.open(NODE, None, &progress()).await.unwrap();
    durable::write(&*backends.disk(), "test", &path("data/node/file"), FILE_MODE, b"kept").unwrap();
    let mut found = Vec::new();
    for backend in backends.all() {
        found.push(backend.prepare(&progress()).await.unwrap());
    }
    let foreign = Found::Foreign { path: home.path().join("data/etcd") };
    assert_eq!(found, [Found::Formatted { owner: Some(NODE.to_owned()) }, foreign]);
}
