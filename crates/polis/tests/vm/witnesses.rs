//! What the tools of others say of a disk that a machine has used, and of the image it came from.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use polis_testkit::scratch::Scratch;
use polis_testkit::vm::{self, Disk, Need};

use crate::site::{image, text};

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// How much of the data partition is looked at: the header of LUKS with its key slots.
const HEADER: u64 = 16 << 20;

/// Most bytes of an image that are no hole, and of kernel and system.
const MOST_IMAGE: u64 = 64 << 20;
const MOST_SYSTEM: u64 = 48 << 20;

/// Runs a program, which must succeed, and gives its output.
#[track_caller]
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(vm::program(program));
    let output = command.args(arguments).output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// First sector and size in sectors of a partition, as sgdisk has them.
#[track_caller]
fn partition(disk: &Path, number: u32) -> (u64, u64) {
    let said = output("sgdisk", &["--info", &number.to_string(), text(disk)]);
    let value = |name: &str| -> u64 {
        let line =
            said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {said}"));
        line.trim().split(' ').next().unwrap_or_default().parse().expect("it is a number")
    };
    (value("First sector:"), value("Partition size:"))
}

/// Copies the beginning of a partition into a file of the partition's size.
pub(crate) fn copy_of_partition(disk: &Path, number: u32, most: u64, path: &Path) {
    let (first, sectors) = partition(disk, number);
    let (from, to) = (File::open(disk).expect("the disk is there"), File::create(path).expect("a file can be made"));
    to.set_len(sectors * SECTOR).expect("it can be sized");
    let mut chunk = vec![0; 1 << 20];
    for offset in (0..most.min(sectors * SECTOR)).step_by(chunk.len()) {
        let read = from.read_at(&mut chunk, first * SECTOR + offset).expect("the disk can be read");
        if chunk[..read].iter().any(|byte| *byte != 0) {
            to.write_all_at(&chunk[..read], offset).expect("it can be written");
        }
    }
}

/// A disk that was used with encrypted and authenticated data, of a machine that is off.
pub(crate) fn look_at_disk(disk: &Disk) {
    let scratch = Scratch::new();
    let table = output("sgdisk", &["--verify", text(disk.path())]);
    assert!(table.contains("No problems found"), "{table}");
    // The partition has grown to the end of the disk.
    let (first, sectors) = partition(disk.path(), 2);
    let size = fs::metadata(disk.path()).expect("the disk is there").len() / SECTOR;
    assert!(size - (first + sectors) < 4096, "{first} + {sectors} of {size} sectors");

    let esp = scratch.path().join("esp");
    copy_of_partition(disk.path(), 1, u64::MAX, &esp);
    // It ends with 1 when it finds anything to mend.
    output("fsck.vfat", &["-n", "-v", text(&esp)]);

    if vm::find("cryptsetup").is_some() {
        let data = scratch.path().join("data");
        copy_of_partition(disk.path(), 2, HEADER, &data);
        let said = output("cryptsetup", &["luksDump", text(&data)]);
        let words = said.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        for expected in ["Version: 2", "cipher: aes-gcm-random", "integrity: aead", "sector: 4096 [bytes]", "pbkdf2"] {
            assert!(words.contains(expected), "{expected} is not in\n{said}");
        }
    }
}

#[test]
fn the_image_is_what_it_says() {
    let Some(image) = image(&[Need::DiskTools]) else { return };
    let table = output("sgdisk", &["--verify", text(&image.disk)]);
    assert!(table.contains("No problems found"), "{table}");
    let scratch = Scratch::new();
    let esp = scratch.path().join("esp");
    copy_of_partition(&image.disk, 1, u64::MAX, &esp);
    output("fsck.vfat", &["-n", "-v", text(&esp)]);
    let sections = output("objdump", &["-h", text(&image.system)]);
    for section in [".osrel", ".cmdline", ".uname", ".initrd", ".linux"] {
        assert!(sections.contains(section), "{section} is not in\n{sections}");
    }
    let content = content(&image.disk);
    let system = fs::metadata(&image.system).expect("it is there").len();
    println!("image: {content} bytes that are no hole, kernel and system: {system} bytes");
    assert!(content <= MOST_IMAGE, "the image has {content} bytes that are no hole");
    assert!(system <= MOST_SYSTEM, "kernel and system have {system} bytes");
}

/// Bytes in blocks that are not all zero.
fn content(path: &Path) -> u64 {
    let file = File::open(path).expect("it is there");
    let mut chunk = vec![0; 4096];
    let (mut offset, mut content) = (0, 0);
    loop {
        let read = file.read_at(&mut chunk, offset).expect("it can be read");
        if read == 0 {
            return content;
        }
        offset += read as u64;
        if chunk[..read].iter().any(|byte| *byte != 0) {
            content += read as u64;
        }
    }
}
