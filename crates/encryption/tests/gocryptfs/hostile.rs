//! What is somebody else's stays as it is, and a disk that is full is a clear error and cured by making room.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use polis_storage::data::{DataError, DataPartition as _, Found};
use polis_storage::{Disk as _, DiskError, DiskPath, FILE_MODE, durable};

use crate::common::{Home, World, can_run, is_mounted, is_root, keys, path, skip, snapshot};

/// Refuses to look at it as free, to format it and to open it, and changes nothing.
async fn is_refused(root: &Path, foreign: &str) {
    let before = snapshot(root);
    let world = World::at(root);
    assert_eq!(world.prepare().await.unwrap(), Found::Foreign { path: root.join(foreign) });
    let error = world.format(&keys(1)).await.unwrap_err();
    assert!(matches!(&error, DataError::ForeignContent { found, .. } if *found == root.join(foreign)), "{error:?}");
    assert!(world.open(&keys(1)).await.is_err());
    assert!(snapshot(root) == before, "{foreign}: nothing was changed");
    assert!(!is_mounted(&root.join("data")));
}

#[tokio::test]
async fn what_the_node_did_not_make_is_left_alone() {
    if !can_run() {
        return;
    }
    for foreign in [
        "data/photograph",
        "data",
        "encrypted/photograph",
        "encrypted/slot.0.old",
        "encrypted/work/photograph",
        "encrypted/cipher/photographs/photograph/of/the/sea",
        "encrypted/cipher/a/b/c/d",
    ] {
        let home = Home::new();
        let file = home.path().join(foreign);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        // More than a marker.
        fs::write(&file, vec![1; 100_000]).unwrap();
        let seen = match foreign {
            "encrypted/cipher/photographs/photograph/of/the/sea" => "encrypted/cipher/photographs/photograph/of/the",
            foreign => foreign,
        };
        is_refused(home.path(), seen).await;
    }
}

#[tokio::test]
async fn a_partition_whose_marker_is_gone_is_not_taken_for_a_half_format() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    for name in ["a", "b", "c"] {
        world.write(&format!("data/node/{name}"), b"must not be lost");
    }
    world.data.close().await.unwrap();
    fs::remove_file(home.path().join("encrypted/partition")).unwrap();
    let before = snapshot(home.path());
    let world = home.world();
    assert!(matches!(world.prepare().await.unwrap(), Found::Foreign { .. }));
    for keys in [keys(1), keys(2)] {
        assert!(matches!(world.format(&keys).await, Err(DataError::ForeignContent { .. })));
        assert!(matches!(world.open(&keys).await, Err(DataError::NotFormatted { .. })));
    }
    assert!(snapshot(home.path()) == before, "nothing was changed");
}

#[tokio::test]
async fn a_damaged_marker_is_never_read_as_none() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.data.close().await.unwrap();
    fs::write(home.path().join("encrypted/partition"), "damaged").unwrap();
    let world = home.world();
    assert!(matches!(world.prepare().await, Err(DataError::Marker { .. })));
    assert!(matches!(world.format(&keys(1)).await, Err(DataError::Marker { .. })));
    assert!(matches!(world.open(&keys(1)).await, Err(DataError::Marker { .. })));
}

/// A small file system in memory, mounted until the value is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(place: &Path, kibibytes: u32) -> Self {
        let options = format!("size={kibibytes}k,mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(place).status().unwrap();
        assert!(mounted.success());
        Self(place.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_mount_of_someone_else_is_an_error_and_stays() {
    if !can_run() || (!is_root() && !skip("to mount something needs root")) {
        return;
    }
    let home = Home::new();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let small = Small::mount(&data, 64);
    let world = home.world();
    for error in [
        world.prepare().await.unwrap_err(),
        world.format(&keys(1)).await.unwrap_err(),
        world.open(&keys(1)).await.unwrap_err(),
    ] {
        let DataError::Tool { source, .. } = error else { panic!("{error:?}") };
        assert!(source.to_string().contains("something else is mounted: tmpfs from small"), "{source}");
    }
    assert!(is_mounted(&data));
    drop(small);
    world.born(&keys(1)).await;
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_said_so_and_costs_nothing() {
    if !can_run() || (!is_root() && !skip("to mount something needs root")) {
        return;
    }
    let home = Home::new();
    let root = home.path().join("root");
    fs::create_dir(&root).unwrap();
    let _small = Small::mount(&root, 1024);
    // A place of its own for the mounts below it, so that they are gone before it.
    let inner = root.join("node");
    fs::create_dir(&inner).unwrap();
    let ballast = root.join("ballast");
    let fill = || {
        let file = fs::File::create(&ballast).unwrap();
        let mut position = 0;
        while file.write_all_at(&[1; 4096], position).is_ok() {
            position += 4096;
        }
    };
    fill();
    let world = World::at(&inner);
    assert_eq!(world.prepare().await.unwrap(), Found::Nothing);
    let error = world.format(&keys(1)).await.unwrap_err();
    assert!(error.disk_error().is_some_and(DiskError::is_full), "{error:?}");
    fs::remove_file(&ballast).unwrap();
    world.born(&keys(1)).await;
    world.write("data/node/file", &[7; 10_000]);

    fill();
    let error = durable::write(&world.disk, "test", &path("data/node/file"), FILE_MODE, &[8; 50_000]).unwrap_err();
    assert!(error.is_full(), "{error:?}");
    assert_eq!(world.read("data/node/file"), [7; 10_000]);
    // What is reserved in advance, as etcd does it, fails in advance.
    let reserved = fs::OpenOptions::new().write(true).open(inner.join("data/node/file")).unwrap();
    let reserved = rustix::fs::fallocate(reserved, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1 << 21);
    assert_eq!(reserved, Err(rustix::io::Errno::NOSPC));
    let old = keys(1);
    let error = world.data.add_key(&old, &keys(2)).await.unwrap_err();
    assert!(error.disk_error().is_some_and(DiskError::is_full), "{error:?}");
    fs::remove_file(&ballast).unwrap();
    assert!(world.data.test_open(&old).await.unwrap(), "the old key still opens");
    world.data.add_key(&old, &keys(2)).await.unwrap();
    world.write("data/node/file", &[8; 50_000]);
    let temporaries = world.disk.list(&DiskPath::parse("data/node").unwrap()).unwrap();
    assert_eq!(temporaries, ["file"], "what did not fit has left nothing");
    world.data.close().await.unwrap();
}
