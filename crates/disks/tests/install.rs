//! Images onto disks, which are image files here; `fsck.vfat` and `sgdisk` are the witnesses.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use polis_disks::{
    Content, Device, DiskLayout, Guids, InstallError, InstallPlan, InstallRequest, LEAST_DATA_SIZE, LayoutRequest, MIB,
    Places, Region, Role, SectorSize, Table,
};

const ESP: u64 = 64 * MIB;
/// EFI system partition, the least data partition, and tables at both ends.
const LEAST_DISK: u64 = MIB + ESP + LEAST_DATA_SIZE + 33 * 512;

/// Runs a program; false where it is not installed.
fn run(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(
                std::env::var_os("CI").is_none(),
                "nothing is skipped where CI is set, but {program} is not installed"
            );
            eprintln!("skipped: {program} is not installed");
            false
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
            true
        }
    }
}

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self { directory: tempfile::tempdir().unwrap() };
        let image = case.file("image", 80 * MIB);
        let request = LayoutRequest {
            disk_size: 80 * MIB,
            sector_size: SectorSize::Bytes512,
            esp_size: ESP,
            least_data_size: MIB,
            guids: Guids::from_seed(b"image"),
        };
        DiskLayout::plan(&request).unwrap().write(&Device::open_writable(&image).unwrap()).unwrap();
        case
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn plan(&self, disk: &Path, accept_loss: bool) -> Result<InstallPlan, InstallError> {
        let request = InstallRequest { image: self.image(), disk: disk.to_owned(), accept_loss };
        InstallPlan::new(&request, &Places::default())
    }
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// All blocks of a sparse file with their content, so that files of gigabytes can be compared.
fn content(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = std::fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut block = vec![0; 1 << 20];
    let zeroes = block.clone();
    let mut found = Vec::new();
    for offset in (0..size).step_by(1 << 20) {
        let length = block.len().min(usize::try_from(size - offset).unwrap());
        file.read_exact_at(&mut block[..length], offset).unwrap();
        if block[..length] != zeroes[..length] {
            found.push((offset, block[..length].to_vec()));
        }
    }
    found
}

#[test]
fn an_image_is_installed_on_a_blank_disk() {
    let case = Case::new();
    let esp = case.file("esp", ESP);
    if !run("mkfs.vfat", &["-F", "32", "-i", "12345678", esp.to_str().unwrap()]) {
        return;
    }
    let bytes = std::fs::read(&esp).unwrap();
    write(&case.image(), MIB, &bytes);
    let disk = case.file("disk", LEAST_DISK + 100 * MIB);
    let plan = case.plan(&disk, false).unwrap();
    let text = plan.to_string();
    assert!(text.contains(&format!("disk {}: nothing on it\n", disk.display())), "{text}");
    assert!(text.contains("partition 1: EFI system, 64 MiB from 1 MiB"), "{text}");
    assert_eq!(content(&disk), [], "a plan changes nothing");
    let mut steps = Vec::new();
    plan.execute(&Places::default(), |progress| steps.push(progress)).unwrap();
    assert!(steps.windows(2).all(|pair| pair[0].done <= pair[1].done), "{steps:?}");
    assert_eq!(steps.last().unwrap().done, ESP);

    let device = Device::open(&disk).unwrap();
    let table = Table::read(&device).unwrap().unwrap();
    assert_ne!(table.guid, Guids::from_seed(b"image").disk, "each disk has GUIDs of its own");
    let (_, data) = table.find(Role::Data).unwrap().unwrap();
    assert_eq!(data.region, Region { start: 65 * MIB, length: LEAST_DATA_SIZE + 100 * MIB });
    assert_eq!(Content::of(&device, data.region).unwrap(), Content::Blank);
    run("sgdisk", &["-v", disk.to_str().unwrap()]);
    let installed = case.file("installed", 0);
    let mut bytes = vec![0; usize::try_from(ESP).unwrap()];
    device.read_at(MIB, &mut bytes).unwrap();
    std::fs::write(&installed, &bytes).unwrap();
    run("fsck.vfat", &["-n", installed.to_str().unwrap()]);
}

#[test]
fn what_is_on_a_disk_is_lost_only_when_that_was_said() {
    let case = Case::new();
    let disk = case.file("disk", LEAST_DISK);
    write(&disk, 1080, b"\x53\xef");
    // Where the data partition of the installed disk begins and ends, something is left of before.
    write(&disk, 65 * MIB, b"XFSB");
    write(&disk, LEAST_DISK - 33 * 512 - 4096, b"old");
    let before = content(&disk);
    let error = case.plan(&disk, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the disk {} is not blank: there is an ext2, ext3 or ext4 file system on it; nothing was changed: if all of it may be lost, \
             give --yes",
            disk.display()
        )
    );
    let plan = case.plan(&disk, true).unwrap();
    assert!(plan.to_string().contains("an ext2, ext3 or ext4 file system on it, WHICH WILL BE LOST"), "{plan}");
    assert!(content(&disk) == before, "a plan changes nothing");
    plan.execute(&Places::default(), |_| ()).unwrap();
    let device = Device::open(&disk).unwrap();
    let table = Table::read(&device).unwrap().unwrap();
    let (_, data) = table.find(Role::Data).unwrap().unwrap();
    assert_eq!(Content::of(&device, data.region).unwrap(), Content::Blank, "a node must be able to format it");
    // Now it is the disk of a node, and the message says so.
    let error = case.plan(&disk, false).unwrap_err().to_string();
    assert!(error.contains("a partition table (GPT) on it, with the data partition of a node"), "{error}");
}

#[test]
fn a_disk_that_is_too_small_is_refused_always() {
    let case = Case::new();
    let disk = case.file("disk", LEAST_DISK - 512);
    for accept_loss in [false, true] {
        let error = case.plan(&disk, accept_loss).unwrap_err();
        assert!(matches!(error, InstallError::Layout { .. }), "{error:?}");
    }
    assert!(case.plan(&case.file("other", LEAST_DISK), false).is_ok());
}

#[test]
fn a_plan_is_executed_on_no_other_disk() {
    let case = Case::new();
    let disk = case.file("disk", LEAST_DISK);
    let plan = case.plan(&disk, false).unwrap();
    write(&disk, MIB - 1, b"x");
    let before = content(&disk);
    let error = plan.execute(&Places::default(), |_| ()).unwrap_err();
    assert!(matches!(error, InstallError::Changed { .. }), "{error:?}");
    assert!(content(&disk) == before);
    write(&disk, MIB - 1, b"\0");
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(LEAST_DISK + MIB).unwrap();
    assert!(matches!(plan.execute(&Places::default(), |_| ()), Err(InstallError::Changed { .. })));
}

#[test]
fn what_is_no_image_and_what_is_no_disk_is_refused() {
    let case = Case::new();
    let disk = case.file("disk", LEAST_DISK);
    let request = InstallRequest { image: disk.clone(), disk: disk.clone(), accept_loss: true };
    let error = InstallPlan::new(&request, &Places::default()).unwrap_err();
    assert!(matches!(error, InstallError::NoImage { .. }), "{error:?}");
    assert!(matches!(case.plan(case.directory.path(), true), Err(InstallError::Device(_))));
    assert!(matches!(case.plan(Path::new("/dev/null"), true), Err(InstallError::Device(_))));
}

/// With a real loop device, which only root can make.
#[test]
fn a_disk_that_is_in_use_is_refused_always() {
    let case = Case::new();
    let disk = case.file("disk", LEAST_DISK);
    let file = std::fs::File::options().read(true).write(true).open(&disk).unwrap();
    let (path, _attached) = match polis_sys::attach_loop(std::os::fd::AsFd::as_fd(&file)) {
        Ok(attached) => attached,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "nothing is skipped where CI is set, but no loop device can be made: {error}"
            );
            eprintln!("skipped: no loop device can be made: {error}");
            return;
        }
    };
    let error = case.plan(&disk, true).unwrap_err();
    let InstallError::InUse { uses, .. } = error else { panic!("{error:?}") };
    assert_eq!(uses[0].to_string(), format!("{} is part of {}", disk.display(), path.file_name().unwrap().display()));
    // The loop device itself is free.
    assert!(case.plan(&path, false).is_ok());
}
