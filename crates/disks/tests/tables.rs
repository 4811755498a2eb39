//! Partition tables on image files, with `sgdisk` as the witness.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use polis_disks::{
    Copies, Device, DiskLayout, Growth, GrowthError, Guids, LayoutRequest, MIB, Region, Role, SectorSize, Table,
    TableError, Told,
};

/// An image file of this size.
fn image(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

fn layout(disk_size: u64) -> DiskLayout {
    let request = LayoutRequest {
        disk_size,
        sector_size: SectorSize::Bytes512,
        esp_size: 64 * MIB,
        least_data_size: MIB,
        guids: Guids::from_seed(b"tables"),
    };
    DiskLayout::plan(&request).unwrap()
}

fn laid_out(size: u64) -> tempfile::NamedTempFile {
    let file = image(size);
    layout(size).write(&Device::open_writable(file.path()).unwrap()).unwrap();
    file
}

fn read(path: &Path) -> Result<Option<Table>, TableError> {
    Table::read(&Device::open(path).unwrap())
}

/// What `sgdisk` says with these arguments; none where it is not installed.
fn sgdisk(arguments: &[&str], path: &Path) -> Option<String> {
    let output = match std::process::Command::new("sgdisk").args(arguments).arg(path).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(
                std::env::var_os("CI").is_none(),
                "nothing is skipped where CI is set, but sgdisk is not installed"
            );
            eprintln!("skipped: sgdisk is not installed");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn verify(path: &Path) {
    if let Some(said) = sgdisk(&["-v"], path) {
        assert!(said.contains("No problems found"), "{said}");
    }
}

fn growth(path: &Path) -> Growth {
    Growth::plan(&read(path).unwrap().unwrap()).unwrap()
}

fn grow(path: &Path) -> Result<Told, GrowthError> {
    let Growth::Plan(plan) = growth(path) else { panic!("nothing to do") };
    plan.execute(&Device::open_writable(path).unwrap())
}

#[test]
fn a_new_disk_is_what_the_plan_says_and_others_agree() {
    let file = laid_out(200 * MIB);
    let table = read(file.path()).unwrap().unwrap();
    assert_eq!(table, layout(200 * MIB).table);
    assert_eq!(table.find(Role::Esp).unwrap().unwrap().1.region, Region { start: MIB, length: 64 * MIB });
    assert_eq!(table.find(Role::Data).unwrap().unwrap().0, 2);
    verify(file.path());
    if let Some(said) = sgdisk(&["-i", "2"], file.path()) {
        assert!(said.contains("9EEEC464-6885-414A-B278-4305C51F7966"), "{said}");
        assert!(said.contains("'Polis data'"), "{said}");
    }
    // The same plan gives the same bytes.
    assert!(std::fs::read(file.path()).unwrap() == std::fs::read(laid_out(200 * MIB).path()).unwrap());
}

#[test]
fn a_disk_without_a_table_has_none() {
    assert_eq!(read(image(64 * MIB).path()).unwrap(), None);
    assert_eq!(read(image(512).path()).unwrap(), None);
    assert_eq!(read(image(0).path()).unwrap(), None);
}

#[test]
fn a_data_partition_grows_with_its_disk() {
    let file = laid_out(100 * MIB);
    assert_eq!(growth(file.path()), Growth::Nothing);
    file.as_file().write_all_at(b"precious", 65 * MIB).unwrap();
    file.as_file().set_len(300 * MIB + 512).unwrap();
    let Growth::Plan(plan) = growth(file.path()) else { panic!("nothing to do") };
    assert_eq!(
        plan.to_string(),
        "partition 2 (data) grows from 34 MiB from 65 MiB to 234 MiB from 65 MiB; the copy of the partition table at the end of the \
         disk is written anew"
    );
    assert_eq!(grow(file.path()).unwrap(), Told::NotNeeded);
    verify(file.path());
    let table = read(file.path()).unwrap().unwrap();
    assert_eq!(table.find(Role::Data).unwrap().unwrap().1.region, Region { start: 65 * MIB, length: 234 * MIB });
    assert_eq!(table.copies, Copies::Both);
    assert_eq!(growth(file.path()), Growth::Nothing);
    let mut kept = [0; 8];
    file.as_file().read_exact_at(&mut kept, 65 * MIB).unwrap();
    assert_eq!(&kept, b"precious");
}

#[test]
fn numbers_of_partitions_stay_when_there_are_gaps() {
    let file = image(200 * MIB);
    let arguments =
        ["-n", "3:1M:+40M", "-t", "3:ef00", "-n", "7:41M:+40M", "-t", "7:9eeec464-6885-414a-b278-4305c51f7966"];
    if sgdisk(&arguments, file.path()).is_none() {
        return;
    }
    let before = read(file.path()).unwrap().unwrap();
    assert_eq!(before.partitions.keys().copied().collect::<Vec<u32>>(), [3, 7]);
    grow(file.path()).unwrap();
    verify(file.path());
    let after = read(file.path()).unwrap().unwrap();
    assert_eq!(after.partitions.keys().copied().collect::<Vec<u32>>(), [3, 7]);
    assert_eq!(after.partitions[&3], before.partitions[&3]);
    assert_eq!(after.partitions[&7].region, Region { start: 41 * MIB, length: 158 * MIB });
    assert_eq!(after.guid, before.guid);
}

#[test]
fn a_plan_is_not_executed_on_a_disk_that_has_changed() {
    let file = laid_out(100 * MIB);
    file.as_file().set_len(200 * MIB).unwrap();
    let Growth::Plan(plan) = growth(file.path()) else { panic!("nothing to do") };
    file.as_file().set_len(300 * MIB).unwrap();
    let before = std::fs::read(file.path()).unwrap();
    let error = plan.execute(&Device::open_writable(file.path()).unwrap()).unwrap_err();
    assert!(matches!(error, GrowthError::Changed), "{error:?}");
    assert!(std::fs::read(file.path()).unwrap() == before);
}

#[test]
fn either_copy_is_enough_and_the_other_is_written_anew() {
    let sector = [0x5a_u8; 512];
    let end = 100 * MIB - 512;
    for (offset, copies) in [
        (512, Copies::EndOnly),
        (1024, Copies::EndOnly),
        (end, Copies::BeginningOnly),
        (end - 32 * 512, Copies::BeginningOnly),
    ] {
        let file = laid_out(100 * MIB);
        file.as_file().write_all_at(&sector, offset).unwrap();
        let table = read(file.path()).unwrap().unwrap();
        assert_eq!(table, Table { copies, ..layout(100 * MIB).table }, "{offset}");
        grow(file.path()).unwrap();
        assert_eq!(read(file.path()).unwrap().unwrap(), layout(100 * MIB).table, "{offset}");
        verify(file.path());
    }
}

#[test]
fn a_table_with_no_whole_copy_is_damaged_and_not_absent() {
    for (first, second) in [(1024, 100 * MIB - 33 * 512), (520, 100 * MIB - 500)] {
        let file = laid_out(100 * MIB);
        for offset in [first, second] {
            file.as_file().write_all_at(&[0x5a; 16], offset).unwrap();
        }
        let error = read(file.path()).unwrap_err();
        assert!(matches!(error, TableError::Damaged { .. }), "{error:?}");
    }
}

/// Growth writes a few sectors, and any prefix of them can be what a power cut leaves; the sector that is being written may be torn.
#[test]
fn a_power_cut_while_it_grows_leaves_the_old_or_the_new_table() {
    let before = {
        let file = laid_out(100 * MIB);
        file.as_file().set_len(200 * MIB).unwrap();
        file
    };
    let after = image(0);
    std::fs::copy(before.path(), after.path()).unwrap();
    grow(after.path()).unwrap();
    let (old, new) = (std::fs::read(before.path()).unwrap(), std::fs::read(after.path()).unwrap());
    let changed: Vec<usize> =
        (0..old.len() / 512).filter(|sector| old[sector * 512..][..512] != new[sector * 512..][..512]).collect();
    // The end is written and flushed before the beginning.
    let half = old.len() / 1024;
    let (beginning, end): (Vec<usize>, Vec<usize>) = changed.iter().partition(|&&sector| sector < half);
    assert!(!beginning.is_empty() && !end.is_empty(), "{changed:?}");
    let old_table = read(before.path()).unwrap().unwrap();
    let new_table = read(after.path()).unwrap().unwrap();
    let torn = image(0);
    // The protective MBR comes between the two.
    let (mbr, beginning) = beginning.split_first().unwrap();
    assert_eq!(*mbr, 0);
    let (mbr, ended) = ([*mbr], [&end[..], &[*mbr]].concat());
    for (done, pending) in [(&[][..], &end[..]), (&end, &mbr), (&ended, beginning)] {
        // Of what is not flushed, any part may have been written: here each sector alone, all but each, and a half of each.
        for &sector in pending {
            for kind in 0..3 {
                let mut bytes = old.clone();
                let mut write = |sector: usize, length: usize| {
                    let range = sector * 512..sector * 512 + length;
                    bytes[range.clone()].copy_from_slice(&new[range]);
                };
                done.iter().for_each(|&sector| write(sector, 512));
                match kind {
                    0 => write(sector, 512),
                    1 => pending.iter().filter(|&&other| other != sector).for_each(|&other| write(other, 512)),
                    _ => write(sector, 256),
                }
                std::fs::write(torn.path(), &bytes).unwrap();
                let table = read(torn.path()).unwrap().unwrap();
                assert!(
                    table.partitions == old_table.partitions || table.partitions == new_table.partitions,
                    "sector {sector}, {kind}: {table:?}"
                );
                // And the next start completes it, unless the cut came after the last sector.
                match growth(torn.path()) {
                    Growth::Nothing => assert!(std::fs::read(torn.path()).unwrap() == new, "sector {sector}, {kind}"),
                    Growth::Plan(plan) => {
                        plan.execute(&Device::open_writable(torn.path()).unwrap()).unwrap();
                    }
                }
                assert_eq!(read(torn.path()).unwrap().unwrap(), new_table, "sector {sector}, {kind}");
            }
        }
    }
}
