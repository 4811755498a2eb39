//! The disk that was booted from, among others.

use std::path::{Path, PathBuf};

use polis_disks::{BootDisk, BootDiskError, Device, DiskLayout, Guids, LayoutRequest, MIB, Places, Role, SectorSize};

const VARIABLE: &str = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// A machine whose disks are image files.
struct Machine {
    directory: tempfile::TempDir,
    places: Places,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| -> PathBuf {
            let path = directory.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let places = Places { dev: below("dev"), sysfs: below("sys"), proc: below("proc"), efivars: below("efivars") };
        std::fs::create_dir_all(places.sysfs.join("block")).unwrap();
        Self { directory, places }
    }

    fn disk(&self, name: &str, seed: &str) -> Guids {
        let guids = Guids::from_seed(seed.as_bytes());
        let request = LayoutRequest {
            disk_size: 100 * MIB,
            sector_size: SectorSize::Bytes512,
            esp_size: 64 * MIB,
            least_data_size: MIB,
            guids,
        };
        let path = self.empty_disk(name);
        DiskLayout::plan(&request).unwrap().write(&Device::open_writable(&path).unwrap()).unwrap();
        for number in [1, 2] {
            let directory = self.places.sysfs.join("block").join(name).join(format!("{name}{number}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("partition"), format!("{number}\n")).unwrap();
        }
        guids
    }

    fn empty_disk(&self, name: &str) -> PathBuf {
        let path = self.places.dev.join(name);
        std::fs::File::create(&path).unwrap().set_len(100 * MIB).unwrap();
        std::fs::create_dir_all(self.places.sysfs.join("block").join(name)).unwrap();
        path
    }

    fn booted_from(&self, text: &str) {
        let mut bytes = vec![6, 0, 0, 0];
        bytes.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        std::fs::write(self.places.efivars.join(VARIABLE), bytes).unwrap();
    }

    fn find(&self) -> Result<BootDisk, BootDiskError> {
        BootDisk::find(&self.places)
    }
}

#[test]
fn it_is_the_one_with_the_partition_that_was_booted_from() {
    let machine = Machine::new();
    machine.disk("vda", "first");
    let guids = machine.disk("vdb", "second");
    machine.empty_disk("vdc");
    // A copy of the right disk in a file that somebody has attached is none.
    machine.disk("loop0", "second");
    // Firmware writes GUIDs in upper case.
    machine.booted_from(&guids.esp.to_string().to_uppercase());
    let disk = machine.find().unwrap();
    assert_eq!((disk.path.as_path(), disk.booted), (machine.places.dev.join("vdb").as_path(), 1));
    assert_eq!(disk.find_role(&machine.places, Role::Data).unwrap(), machine.places.dev.join("vdb2"));
    assert_eq!(disk.find_role(&machine.places, Role::Esp).unwrap(), machine.places.dev.join("vdb1"));
    std::fs::remove_dir_all(machine.places.sysfs.join("block/vdb/vdb2")).unwrap();
    let error = disk.find_role(&machine.places, Role::Data).unwrap_err();
    assert!(matches!(error, BootDiskError::Unknown { number: 2, .. }), "{error:?}");
}

#[test]
fn what_is_not_clear_is_an_error_that_says_so() {
    let machine = Machine::new();
    let guids = machine.disk("vda", "first");
    assert!(matches!(machine.find(), Err(BootDiskError::NotSaid { .. })));
    machine.booted_from("nonsense");
    assert!(matches!(machine.find(), Err(BootDiskError::Nonsense { text, .. }) if text == "nonsense"));
    machine.booted_from(&Guids::from_seed(b"other").esp.to_string());
    assert!(matches!(machine.find(), Err(BootDiskError::NotFound { .. })));
    machine.booted_from(&guids.esp.to_string());
    assert!(machine.find().is_ok());
    machine.disk("vdb", "first");
    let error = machine.find().unwrap_err();
    assert!(matches!(error, BootDiskError::Several { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("vda") && said.contains("vdb") && said.contains("nothing was changed"), "{said}");
}

#[test]
fn a_broken_disk_does_not_hide_the_right_one_and_is_named_when_that_is_missing() {
    let machine = Machine::new();
    let guids = machine.disk("vdb", "right");
    // It is listed, and there is no device node.
    std::fs::create_dir_all(machine.places.sysfs.join("block/vda")).unwrap();
    machine.booted_from(&guids.esp.to_string());
    assert_eq!(machine.find().unwrap().name, "vdb");
    remove(&machine.places.dev.join("vdb"));
    std::fs::remove_dir_all(machine.places.sysfs.join("block/vdb")).unwrap();
    let said = machine.find().unwrap_err().to_string();
    assert!(said.contains("could not be read: vda: cannot use the device"), "{said}");
    assert!(machine.directory.path().exists());
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}
