//! The simulated power cut: it takes what may be taken, in every way, and nothing that is durable.

use std::collections::BTreeSet;

use polis_storage::simulation::{Failure, Image, Node, SimulatedDisk};
use polis_storage::{Disk as _, DiskPath, durable};

const SEEDS: u64 = 200;

fn path(text: &str) -> DiskPath {
    DiskPath::parse(text).unwrap()
}

fn content(image: &Image, file: &str) -> Option<Vec<u8>> {
    match image.get(&path(file)) {
        Some(Node::File { content, .. }) => Some(content.clone()),
        Some(Node::Directory { .. }) => panic!("{file} is a directory"),
        None => None,
    }
}

/// What is in these files after power cuts now.
fn outcomes<const N: usize>(disk: &SimulatedDisk, files: [&str; N]) -> BTreeSet<[Option<Vec<u8>>; N]> {
    let recording = disk.recording();
    (0..SEEDS)
        .map(|seed| {
            let image = recording.power_cut(recording.operations.len(), seed).unwrap();
            files.map(|file| content(&image, file))
        })
        .collect()
}

#[test]
fn content_that_was_not_synced_is_kept_dropped_cut_or_garbage() {
    let disk = SimulatedDisk::default();
    let whole = vec![7; 1000];
    disk.create_exclusive(&path("file"), 0o600, &whole).unwrap();
    disk.sync_directory("test", &DiskPath::root()).unwrap();
    let found: Vec<Vec<u8>> = outcomes(&disk, ["file"]).into_iter().map(|[content]| content.unwrap()).collect();
    assert!(found.contains(&whole), "kept");
    assert!(found.contains(&Vec::new()), "dropped");
    let cut = |content: &Vec<u8>| (1..1000).contains(&content.len()) && whole.starts_with(content);
    assert!(found.iter().any(cut), "cut");
    assert!(found.iter().any(|content| content.len() == 1000 && *content != whole), "garbage");
    disk.sync_file("test", &path("file")).unwrap();
    assert_eq!(outcomes(&disk, ["file"]), BTreeSet::from([[Some(whole)]]), "synced");
}

#[test]
fn a_name_that_was_not_synced_is_kept_or_lost_with_all_below_it() {
    let disk = SimulatedDisk::default();
    disk.create_directory(&path("a"), 0o700).unwrap();
    durable::write(&disk, "test", &path("a/file"), 0o600, b"content").unwrap();
    assert_eq!(outcomes(&disk, ["a/file"]), BTreeSet::from([[None], [Some(b"content".to_vec())]]));
    disk.sync_directory("test", &DiskPath::root()).unwrap();
    assert_eq!(outcomes(&disk, ["a/file"]), BTreeSet::from([[Some(b"content".to_vec())]]));
    disk.remove_file(&path("a/file")).unwrap();
    assert_eq!(outcomes(&disk, ["a/file"]), BTreeSet::from([[None], [Some(b"content".to_vec())]]), "it may come back");
}

/// A disk where `new` was renamed to `old`, all else being durable.
fn renamed(directory: &str) -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    disk.create_directory(&path(directory), 0o700).unwrap();
    for name in ["old", "new"] {
        durable::write(&disk, "test", &path(directory).child(name).unwrap(), 0o600, name.as_bytes()).unwrap();
    }
    let disk = SimulatedDisk::new(disk.image(), vec![path("esp")]);
    let [new, old] = ["new", "old"].map(|name| path(directory).child(name).unwrap());
    disk.rename(&new, &old).unwrap();
    disk
}

#[test]
fn a_rename_is_atomic_but_on_fat() {
    let [old, new] = [b"old", b"new"].map(|content| Some(content.to_vec()));
    let before = [old.clone(), new.clone()];
    let after = [new.clone(), None];
    let both = [new.clone(), new.clone()];
    let gone = [None, new];
    let disk = renamed("data");
    let found = outcomes(&disk, ["data/old", "data/new"]);
    assert_eq!(found, BTreeSet::from([before.clone(), after.clone()]));
    let disk = renamed("esp");
    disk.sync_file("test", &path("esp/old")).unwrap();
    let found = outcomes(&disk, ["esp/old", "esp/new"]);
    assert_eq!(found, BTreeSet::from([before, after.clone(), both, gone]));
    disk.sync_directory("test", &path("esp")).unwrap();
    assert_eq!(outcomes(&disk, ["esp/old", "esp/new"]), BTreeSet::from([after]));
}

#[test]
fn on_fat_a_new_name_leads_to_the_file_once_that_is_synced_again() {
    let disk = renamed("esp");
    disk.sync_directory("test", &path("esp")).unwrap();
    let found = outcomes(&disk, ["esp/old"]);
    let [old, new] = [b"old", b"new"].map(|content| [Some(content.to_vec())]);
    assert!(found.contains(&new) && found.contains(&old), "the new file, or still the one that was replaced");
    assert!(found.iter().any(|[content]| *content != old[0] && *content != new[0]), "or what was written there since");
    disk.sync_file("test", &path("esp/old")).unwrap();
    assert_eq!(outcomes(&disk, ["esp/old"]), BTreeSet::from([new]));

    let disk = SimulatedDisk::new(Image::default(), vec![path("esp")]);
    disk.create_directory(&path("esp"), 0o700).unwrap();
    disk.create_exclusive(&path("esp/temporary"), 0o600, b"new").unwrap();
    disk.sync_file("test", &path("esp/temporary")).unwrap();
    disk.rename(&path("esp/temporary"), &path("esp/first")).unwrap();
    for directory in ["", "esp"] {
        disk.sync_directory("test", &path(directory)).unwrap();
    }
    let found = outcomes(&disk, ["esp/first"]);
    assert_eq!(found, BTreeSet::from([[Some(b"new".to_vec())], [Some(Vec::new())]]), "whole, or empty");
    disk.sync_file("test", &path("esp/first")).unwrap();
    assert_eq!(outcomes(&disk, ["esp/first"]), BTreeSet::from([[Some(b"new".to_vec())]]));
}

#[test]
fn the_same_seed_is_the_same_power_cut() {
    let disk = SimulatedDisk::default();
    for number in 0..10 {
        disk.create_exclusive(&path(&number.to_string()), 0o600, &[number; 600]).unwrap();
    }
    let recording = disk.recording();
    for seed in 0..SEEDS {
        assert!(recording.power_cut(7, seed).unwrap() == recording.power_cut(7, seed).unwrap(), "{seed}");
    }
    let cuts = recording.cuts().unwrap();
    assert_eq!(cuts.len(), 11);
    assert!(cuts[7].power_cut(9) == recording.power_cut(7, 9).unwrap());
    assert!(cuts[0].is_settled() && !cuts[7].is_settled());
}

#[test]
fn a_disk_fails_when_it_is_told_to_and_is_cured() {
    let disk = SimulatedDisk::default();
    let create = |name: &str| disk.create_exclusive(&path(name), 0o600, b"content");
    disk.fail_once(1, Failure::Full);
    create("a").unwrap();
    assert!(create("b").unwrap_err().is_full());
    assert_eq!(content(&disk.image(), "b").unwrap(), b"con", "a part is left");
    create("c").unwrap();
    disk.fail_from(0, Failure::Forbidden);
    assert!(create("d").unwrap_err().is_forbidden());
    assert!(disk.remove_file(&path("a")).unwrap_err().is_forbidden());
    disk.damage_medium(&path("a"));
    assert!(disk.read(&path("a"), 100).unwrap_err().is_medium_failure());
    disk.cure();
    create("d").unwrap();
    assert_eq!(disk.read(&path("a"), 100).unwrap(), b"content");
}
