//! What systemd-boot makes of the slots: the model of [`polis_image::slots`] is that of the real boot loader.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use polis_disks::MIB;
use polis_image::slots::{ENTRY_DIRECTORY, Entry, IMAGE_DIRECTORY, NewImage, Room, Slot, Slots, Standing, Step};
use polis_testkit::scratch::Scratch;
use polis_testkit::vm::{self, BOOT, Boot, Disk, Firmware, SecureBoot, Served, Turn, Vm};

use crate::made::{Made, NEEDS, made, output};

/// Size of a machine's disk in bytes.
const DISK: u64 = 1024 * MIB;

/// The EFI system partition of a disk that no machine runs from.
struct Esp<'a> {
    disk: &'a Disk,
    scratch: Scratch,
}

impl<'a> Esp<'a> {
    fn of(disk: &'a Disk) -> Self {
        Self { disk, scratch: Scratch::new() }
    }

    fn image(&self) -> String {
        format!("{}@@1M", self.disk.path().display())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let text = output("mdir", &["-b", "-i", &self.image()], Path::new(&format!("::/{directory}/")));
        text.lines()
            .filter_map(|line| line.rsplit('/').next())
            .map(str::to_owned)
            .filter(|name| !name.is_empty())
            .collect()
    }

    fn slots(&self) -> Slots {
        let entries: BTreeMap<String, String> = self
            .names(ENTRY_DIRECTORY)
            .into_iter()
            .map(|name| {
                let text = output("mtype", &["-i", &self.image()], Path::new(&format!("::/{ENTRY_DIRECTORY}/{name}")));
                (name, text)
            })
            .collect();
        let images = self.names(IMAGE_DIRECTORY);
        let slots = Slots::read(
            entries.iter().map(|(name, text)| (name.as_str(), text.as_bytes())),
            images.iter().map(String::as_str),
        );
        assert_eq!(slots.damaged(), []);
        slots
    }

    fn write(&self, path: &str, source: &Path) {
        let arguments = ["-o", "-i", &self.image(), &source.display().to_string()];
        output("mcopy", &arguments, Path::new(&format!("::/{path}")));
    }

    fn execute(&self, steps: &[Step], new: Option<&Made>) {
        for step in steps {
            match step {
                Step::WriteImage(image) => self.write(&format!("{IMAGE_DIRECTORY}/{image}"), &new.unwrap().image),
                Step::WriteEntry(entry) => {
                    let text = self.scratch.path().join("entry");
                    fs::write(&text, entry.text()).unwrap();
                    self.write(&format!("{ENTRY_DIRECTORY}/{}", entry.file_name()), &text);
                }
                Step::RemoveEntry { name } => {
                    output("mdel", &["-i", &self.image()], Path::new(&format!("::/{ENTRY_DIRECTORY}/{name}")));
                }
                Step::RemoveImage(image) => {
                    output("mdel", &["-i", &self.image()], Path::new(&format!("::/{IMAGE_DIRECTORY}/{image}")));
                }
                Step::Sync => {}
            }
        }
    }
}

/// What the loader told an image, as the image says it: `RUNS ENTRY END`.
const SAY: &str = "insmod /lib/modules/$(uname -r)/kernel/fs/efivarfs/efivarfs.ko; mount -t efivarfs efivarfs /sys/firmware/efi/efivars; \
                   echo RUNS $(tr -d '\\000' </sys/firmware/efi/efivars/LoaderEntrySelected-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f | tail -c +2) END";

/// Starts the machine once; gives the entry that it was started by, or nothing for one that hangs.
fn start(turn: &Turn, firmware: &Firmware, disk: &Disk) -> Option<String> {
    let machine = Vm::builder("slots").boot(Boot::Firmware(firmware)).disk(disk, Served::Plainly).start(turn);
    let (found, _) = machine.serial().wait_for_any(&[" END", "HANGS"], BOOT);
    if found == 1 {
        machine.power_cut();
        return None;
    }
    let text = machine.serial().text();
    assert!(machine.wait_for_end(Duration::from_secs(60)).success());
    let selected = text.split("RUNS ").nth(1)?.split(" END").next()?;
    Some(selected.trim().to_owned())
}

fn install(esp: &Esp<'_>, running: &Entry, new: &Made) {
    let steps = esp
        .slots()
        .plan_installation(
            Some(running),
            &NewImage { sha256: new.built.image_sha256, version: "2".to_owned() },
            Room::Enough,
        )
        .unwrap();
    esp.execute(&steps, Some(new));
}

#[test]
fn a_new_slot_is_tried_once_and_a_hanging_one_goes_back_to_the_last_good() {
    if !vm::available(NEEDS) {
        return;
    }
    let turn = vm::turn();
    let good = made(&format!("{SAY}; poweroff -f"), None);
    let hanging = made("echo HANGS; while true; do sleep 100; done", None);
    let (firmware, disk) = (Firmware::new(SecureBoot::Off), Disk::with_image(&good.disk, DISK));
    let esp = Esp::of(&disk);
    let running = |selected: Option<String>| {
        let selected = selected.expect("this image does not hang");
        esp.slots().running(&selected).unwrap_or_else(|| panic!("{selected} is of no slot")).clone()
    };

    let first = running(start(&turn, &firmware, &disk));
    assert_eq!((first.slot, first.standing), (Slot::A, Standing::Good));

    // An image that hangs: its one try is counted before it runs, and the reset after it goes back.
    install(&esp, &first, &hanging);
    assert_eq!(esp.slots().next().map(|entry| entry.slot), Some(Slot::B));
    assert_eq!(start(&turn, &firmware, &disk), None);
    assert_eq!(esp.slots().of(Slot::B).map(|entry| entry.standing), Some(Standing::Spent { done: 1 }));
    let back = running(start(&turn, &firmware, &disk));
    assert_eq!(back, first);

    // One that works, and is marked as good.
    install(&esp, &back, &good);
    let tried = running(start(&turn, &firmware, &disk));
    assert_eq!((tried.slot, tried.standing), (Slot::B, Standing::Spent { done: 1 }));
    esp.execute(&esp.slots().plan_good(Some(&tried)).unwrap(), None);
    let stays = running(start(&turn, &firmware, &disk));
    assert_eq!((stays.slot, stays.standing), (Slot::B, Standing::Good));

    // Back by hand.
    esp.execute(&esp.slots().plan_rollback(Some(&stays)).unwrap(), None);
    let rolled_back = running(start(&turn, &firmware, &disk));
    assert_eq!((rolled_back.slot, rolled_back.standing), (Slot::A, Standing::Spent { done: 1 }));
}
