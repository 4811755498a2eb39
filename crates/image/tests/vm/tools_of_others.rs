//! The image is what other tools say it is, and the same inputs give the same bytes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use polis_disks::MIB;
use polis_image::LONGEST_IMAGE;
use polis_testkit::scratch::Scratch;
use polis_testkit::vm;

use crate::made::{NEEDS, made, output, plan};

/// Most bytes of an image that are no hole.
const MOST_CONTENT: u64 = 64 * MIB;

#[test]
fn partition_table_file_system_and_sections_are_sound() {
    if !vm::available(NEEDS) {
        return;
    }
    let made = made("poweroff -f", None);
    assert!(made.built.image_size <= LONGEST_IMAGE && made.built.content_size <= MOST_CONTENT, "{:?}", made.built);
    let table = output("sgdisk", &["--verify"], &made.disk);
    assert!(table.contains("No problems found"), "{table}");
    let partitions = output("sgdisk", &["--print"], &made.disk);
    assert!(partitions.contains("EF00  EFI system") && partitions.contains("Polis data"), "{partitions}");

    let scratch = Scratch::new();
    let esp = scratch.path().join("esp");
    let (disk, copy) = (File::open(&made.disk).unwrap(), File::create(&esp).unwrap());
    let (start, length) = (MIB, polis_disks::DEFAULT_ESP_SIZE);
    copy.set_len(length).unwrap();
    let mut chunk = vec![0; usize::try_from(MIB).unwrap()];
    for offset in (0..length).step_by(chunk.len()) {
        disk.read_exact_at(&mut chunk, start + offset).unwrap();
        if chunk.iter().any(|byte| *byte != 0) {
            copy.write_all_at(&chunk, offset).unwrap();
        }
    }
    // It ends with 1 when it finds anything to mend.
    output("fsck.vfat", &["-n", "-v"], &esp);
    let files = output("mdir", &["-/", "-b", "-i"], &esp);
    for path in [
        "::/EFI/BOOT/BOOTX64.EFI",
        "::/loader/loader.conf",
        "::/loader/entries/polis-00000001-a.conf",
        "::/EFI/polis/polis-a-00000001.efi",
    ] {
        assert!(files.lines().any(|line| line == path), "{path} is not in\n{files}");
    }

    let sections = output("objdump", &["-h"], &made.image);
    for section in [".sdmagic", ".osrel", ".cmdline", ".uname", ".initrd", ".linux"] {
        assert!(sections.contains(section), "{section} is not in\n{sections}");
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    if !vm::available(NEEDS) {
        return;
    }
    let same = |one: &std::path::Path, other: &std::path::Path| {
        std::process::Command::new("cmp").arg("--quiet").args([one, other]).status().unwrap().success()
    };
    let (one, other) = (made("poweroff -f", None), made("poweroff -f", None));
    assert!(same(&one.image, &other.image), "two images differ");
    assert!(same(&one.disk, &other.disk), "two disks differ");
    let different = made("reboot -f", None);
    assert!(!same(&one.disk, &different.disk));
}

#[test]
fn what_is_there_is_not_replaced_unasked() {
    if !vm::available(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.path().join("disk.raw");
    fs::write(&path, b"precious").unwrap();
    let error = plan("poweroff -f", None).build(&path, None, false).unwrap_err();
    assert!(error.to_string().contains("is there already"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    plan("poweroff -f", None).build(&path, None, true).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 8);
}
