//! The promise: whatever is interrupted, and wherever, the machine starts from an image that is whole: the old one or the new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_image::slots::{ENTRY_DIRECTORY, IMAGE_DIRECTORY, NewImage, PlanRefused, Slot, Slots, Standing};
use polis_storage::simulation::{Failure, Image, Node, SimulatedDisk};
use polis_storage::{Disk, DiskPath, HostDisk};
use polis_update::{BootSlots, Digest, Fetched, Installed, SelectedEntry, SlotsError};

const PLENTY: u64 = 1 << 30;

fn image(number: u8) -> Fetched {
    let image: Vec<u8> = b"MZ".iter().copied().chain(std::iter::repeat_n(number, 5000)).collect();
    Fetched { version: format!("1.0.{number}"), digest: Digest::of(&image), image }
}

fn path(text: &str) -> DiskPath {
    DiskPath::parse(text).unwrap()
}

/// A machine that has just been installed, in a real directory.
fn new_machine() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let first = image(1);
    let entry = Slots::first(&NewImage { sha256: first.digest.0, version: first.version });
    let write = |directory: &str, name: String, content: &[u8]| {
        let directory = place.path().join("esp").join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(name), content).unwrap();
    };
    write(ENTRY_DIRECTORY, entry.file_name(), entry.text().as_bytes());
    write(ENTRY_DIRECTORY, "debian.conf".into(), b"title Debian");
    write(IMAGE_DIRECTORY, entry.image.to_string(), &first.image);
    write("EFI/BOOT", "BOOTX64.EFI".into(), b"the boot loader");
    place
}

fn simulated(image: Image) -> Arc<SimulatedDisk> {
    Arc::new(SimulatedDisk::new(image, vec![path("esp")]))
}

fn slots_on(disk: Arc<dyn Disk>, free: u64) -> BootSlots {
    BootSlots::with_free_space(disk, path("esp"), Arc::new(move |_| Ok(free)))
}

/// What the boot loader does, by its own rules: takes the first entry whose image is there, and counts. Gives what it tells the image,
/// the content of the image, and what is on the disk then.
fn boot(disk: &Image) -> (SelectedEntry, Vec<u8>, Image) {
    let files: BTreeMap<String, Vec<u8>> = disk
        .files()
        .into_iter()
        .filter_map(|path| match disk.get(&path) {
            Some(Node::File { content, .. }) => Some((path.to_string(), content.clone())),
            Some(Node::Directory { .. }) | None => None,
        })
        .collect();
    let prefix = format!("esp/{ENTRY_DIRECTORY}/");
    let mut candidates: Vec<(String, String)> = files
        .iter()
        .filter_map(|(path, text)| {
            let name = path.strip_prefix(&prefix)?;
            let text = String::from_utf8_lossy(text);
            let image = text.lines().find_map(|line| line.strip_prefix("efi /"))?;
            let image = format!("esp/{image}");
            files.contains_key(&image).then(|| (name.to_owned(), image))
        })
        .collect();
    candidates.sort_by(|(one, _), (other, _)| {
        (one.contains("+0"), std::cmp::Reverse(one)).cmp(&(other.contains("+0"), std::cmp::Reverse(other)))
    });
    let (name, image) = candidates.first().cloned().expect("there is always something to start");
    let content = files[&image].clone();
    let after = simulated(disk.clone());
    if let Some((stem, counters)) = name.strip_suffix(".conf").unwrap().split_once('+') {
        let (left, done) = counters.split_once('-').unwrap();
        let (left, done): (u32, u32) = (left.parse().unwrap(), done.parse().unwrap());
        let counted = format!("{stem}+{}-{}.conf", left.saturating_sub(1), done + 1);
        after.rename(&path(&format!("{prefix}{name}")), &path(&format!("{prefix}{counted}"))).unwrap();
    }
    (SelectedEntry(Some(name)), content, after.image())
}

fn start(disk: &Image, expected: &Fetched) -> (SelectedEntry, Image) {
    let (selected, content, after) = boot(disk);
    assert!(content == expected.image, "another image was started: {selected:?}");
    (selected, after)
}

#[test]
fn an_update_is_installed_tried_and_kept() {
    let place = new_machine();
    let disk = simulated(Image::read_from(place.path()).unwrap());
    let slots = slots_on(disk.clone(), PLENTY);
    let (first, second) = (image(1), image(2));
    let (selected, _) = start(&disk.image(), &first);
    assert!(!slots.mark_good(&selected).unwrap(), "what came with the disk is good");
    let installed = slots.install(&selected, &second).unwrap();
    assert!(matches!(&installed, Installed::ToBeTried(entry) if entry.version == "1.0.2"), "{installed:?}");
    // Again: there is nothing to do.
    assert_eq!(slots.install(&selected, &second).unwrap(), Installed::AlreadyNext(installed.entry().clone()));
    let (entry, content) = slots.next_image().unwrap();
    assert_eq!((&entry, &content), (installed.entry(), &second.image));

    let (selected, after) = start(&disk.image(), &second);
    let disk = simulated(after);
    let slots = slots_on(disk.clone(), PLENTY);
    let refused = slots.install(&selected, &image(3)).unwrap_err();
    assert!(matches!(refused, SlotsError::Refused(PlanRefused::OnTrial { slot: Slot::B })), "{refused}");
    assert!(slots.mark_good(&selected).unwrap());
    assert!(!slots.mark_good(&selected).unwrap());
    start(&disk.image(), &second);

    // Back, which is a try too.
    slots.roll_back(&selected).unwrap();
    let (selected, after) = start(&disk.image(), &first);
    start(&after, &second);
    let disk = simulated(after);
    let slots = slots_on(disk.clone(), PLENTY);
    slots.mark_good(&selected).unwrap();
    start(&disk.image(), &first);
    // What is not ours is as it was.
    assert!(disk.image().get(&path("esp/loader/entries/debian.conf")).is_some());
    assert!(disk.image().get(&path("esp/EFI/BOOT/BOOTX64.EFI")).is_some());
}

#[test]
fn without_knowing_what_runs_nothing_is_touched() {
    let place = new_machine();
    let disk = simulated(Image::read_from(place.path()).unwrap());
    let slots = slots_on(disk.clone(), PLENTY);
    for selected in [None, Some("debian.conf".to_owned()), Some("polis-00000007-b.conf".to_owned())] {
        let selected = SelectedEntry(selected);
        let errors = [
            slots.install(&selected, &image(2)).map(drop).unwrap_err(),
            slots.mark_good(&selected).map(drop).unwrap_err(),
            slots.roll_back(&selected).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, SlotsError::Refused(PlanRefused::RunningUnknown)), "{error}");
        }
    }
    assert_eq!(disk.position(), 0);
}

#[test]
fn a_full_partition_is_told_before_anything_is_changed() {
    let place = new_machine();
    let initial = Image::read_from(place.path()).unwrap();
    let disk = simulated(initial.clone());
    let (selected, _) = start(&initial, &image(1));
    let error = slots_on(disk.clone(), 5000).install(&selected, &image(2)).unwrap_err();
    assert!(matches!(error, SlotsError::NoRoom { free: 5000, .. }), "{error}");
    assert_eq!(disk.position(), 0);
    // Room enough once the image that is replaced is gone.
    let slots = slots_on(disk.clone(), PLENTY);
    slots.install(&selected, &image(2)).unwrap();
    slots_on(disk.clone(), 1024 * 1024).install(&selected, &image(3)).unwrap();
    start(&disk.image(), &image(3));
}

#[test]
fn a_failing_disk_is_an_error_and_the_machine_starts_as_before_or_anew() {
    let place = new_machine();
    let initial = Image::read_from(place.path()).unwrap();
    let (selected, _) = start(&initial, &image(1));
    let whole = simulated(initial.clone());
    slots_on(whole.clone(), PLENTY).install(&selected, &image(2)).unwrap();
    for failure in [Failure::Full, Failure::Forbidden, Failure::Medium] {
        for after in 0..whole.position() {
            let disk = simulated(initial.clone());
            disk.fail_from(after, failure);
            let slots = slots_on(disk.clone(), PLENTY);
            let error = slots.install(&selected, &image(2)).unwrap_err();
            assert!(matches!(error, SlotsError::Disk(_)), "{error}");
            let (_, content, _) = boot(&disk.image());
            assert!(content == image(1).image || content == image(2).image, "{failure:?} after {after}");
            disk.cure();
            slots.install(&selected, &image(2)).unwrap();
            start(&disk.image(), &image(2));
        }
    }
}

#[test]
fn a_power_cut_at_any_point_leaves_a_whole_image_to_start() {
    let place = new_machine();
    let initial = Image::read_from(place.path()).unwrap();
    // The machine has had an update before, so that there is something to replace.
    let (selected, _) = start(&initial, &image(1));
    let disk = simulated(initial);
    slots_on(disk.clone(), PLENTY).install(&selected, &image(2)).unwrap();
    let (selected, after) = start(&disk.image(), &image(2));

    let mut count = 0;
    for free in [PLENTY, 1024 * 1024] {
        let good = simulated(after.clone());
        slots_on(good.clone(), PLENTY).mark_good(&selected).unwrap();
        let installed = simulated(good.image());
        slots_on(installed.clone(), free).install(&selected, &image(3)).unwrap();
        let rolled_back = simulated(good.image());
        slots_on(rolled_back.clone(), free).roll_back(&selected).unwrap();
        for (what, disk, allowed, last_good) in [
            ("marking", &good, &[1, 2][..], &[1, 2][..]),
            ("installing", &installed, &[2, 3], &[2]),
            ("going back", &rolled_back, &[1, 2], &[2]),
        ] {
            for cut in disk.recording().cuts().unwrap() {
                for seed in 0..if cut.is_settled() { 1 } else { 16 } {
                    let left = cut.power_cut(seed);
                    let (_, content, after) = boot(&left);
                    let started = allowed.iter().find(|number| image(**number).image == content);
                    assert!(started.is_some(), "{what}, cut after {}, seed {seed}: no whole image", cut.prefix);
                    // If that was a try, and fails: the reset after it goes to one that is good.
                    let (selected, content, _) = boot(&after);
                    let found = last_good.iter().any(|number| image(*number).image == content);
                    assert!(found, "{what}, cut after {}, seed {seed}: {selected:?} is not good", cut.prefix);
                    // Whatever was left, the next installation finds its way once the running one is good.
                    let (selected, _, now) = boot(&after);
                    let disk = simulated(now);
                    let slots = slots_on(disk.clone(), PLENTY);
                    slots.mark_good(&selected).unwrap();
                    slots.install(&selected, &image(9)).unwrap();
                    start(&disk.image(), &image(9));
                    assert_eq!(slots.read().unwrap().damaged(), []);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 200, "{count} cuts were tried");
}

#[test]
fn a_forgotten_sync_would_be_found() {
    let place = new_machine();
    let initial = Image::read_from(place.path()).unwrap();
    let (selected, _) = start(&initial, &image(1));
    let disk = simulated(initial);
    slots_on(disk.clone(), PLENTY).install(&selected, &image(2)).unwrap();
    let recording = disk.recording();
    let end = recording.operations.len();
    // When the call has returned, the new image is what starts: were one of the syncs of the entry missing, it might not be.
    assert!((0..64).all(|seed| boot(&recording.power_cut(end, seed).unwrap()).1 == image(2).image));
    let mut found = 0;
    for site in recording.sync_sites() {
        let mut without = recording.clone();
        for other in recording.sync_sites() {
            if other.site == site.site || (site.site.starts_with("slots/") && other.site.starts_with("slots/entr")) {
                without = without.without_sync(other);
            }
        }
        let lost = (0..64).any(|seed| boot(&without.power_cut(end, seed).unwrap()).1 != image(2).image);
        found += usize::from(lost);
    }
    assert!(found > 0, "no missing sync makes a difference");
}

#[test]
fn on_a_real_directory_it_does_the_same() {
    let place = new_machine();
    let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(place.path()).unwrap());
    let slots = BootSlots::new(disk, path("esp"));
    let (selected, _) = start(&Image::read_from(place.path()).unwrap(), &image(1));
    slots.install(&selected, &image(2)).unwrap();
    let (_, after) = start(&Image::read_from(place.path()).unwrap(), &image(2));
    let standing = slots.read().unwrap().of(Slot::B).map(|entry| entry.standing);
    assert_eq!(standing, Some(Standing::OnTrial { left: 1, done: 0 }));
    start(&after, &image(1));
    // An image that was damaged afterwards is not taken for the one that was installed.
    let name = slots.read().unwrap().next().unwrap().image.to_string();
    std::fs::write(place.path().join("esp").join(IMAGE_DIRECTORY).join(name), b"MZ other").unwrap();
    assert!(matches!(slots.next_image(), Err(SlotsError::NoNext)));
    assert!(matches!(slots.install(&selected, &image(2)).unwrap(), Installed::ToBeTried(_)));
    assert_eq!(slots.next_image().unwrap().1, image(2).image);
}

/// Names the root for the process that is to be killed.
const VICTIM: &str = "POLIS_TEST_VICTIM_ROOT";

/// What the process that is to be killed does; nothing when it is only run among the tests.
#[test]
fn victim() {
    let Some(root) = std::env::var_os(VICTIM) else { return };
    let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(root.as_ref()).unwrap());
    let slots = BootSlots::new(disk, path("esp"));
    let (selected, _, _) = boot(&Image::read_from(root.as_ref()).unwrap());
    // One that has been started by a try before: it is good, and another one replaces the one before it.
    slots.mark_good(&selected).unwrap();
    slots.install(&selected, &image(3)).unwrap();
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_a_whole_image_to_start() {
    use std::os::unix::process::ExitStatusExt as _;

    let victim = |root: &std::path::Path, fault: Option<&str>, log: Option<&std::path::Path>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "victim"]).env(VICTIM, root).stdout(std::process::Stdio::null());
        if let Some(fault) = fault {
            command.env("POLIS_FAULT", fault);
        }
        if let Some(log) = log {
            command.env("POLIS_FAULT_LOG", log);
        }
        command.status().unwrap()
    };
    // The machine has been updated, and runs the second image on trial.
    let place = new_machine();
    let disk = simulated(Image::read_from(place.path()).unwrap());
    let (selected, _) = start(&disk.image(), &image(1));
    slots_on(disk.clone(), PLENTY).install(&selected, &image(2)).unwrap();
    let on_trial = disk.image();
    let root = |name: &str| place.path().join(name);

    let log = root("log");
    on_trial.materialise(&root("whole")).unwrap();
    assert!(victim(&root("whole"), None, Some(&log)).success());
    start(&Image::read_from(&root("whole")).unwrap(), &image(3));
    let passed = std::fs::read_to_string(&log).unwrap();
    let mut counts = BTreeMap::new();
    for (number, point) in passed.lines().enumerate() {
        let count: &mut u32 = counts.entry(point).or_default();
        *count += 1;
        let root = root(&format!("cut-{number}"));
        on_trial.materialise(&root).unwrap();
        let status = victim(&root, Some(&format!("{point}#{count}")), None);
        assert_eq!(status.signal(), Some(9), "{point}#{count}");
        let left = Image::read_from(&root).unwrap();
        let (_, content, after) = boot(&left);
        assert!(content == image(2).image || content == image(3).image, "{point}#{count}");
        // The reset after a try that fails. Before the second image was marked, the first one is the last good.
        let (_, content, _) = boot(&after);
        assert!([1, 2].iter().any(|number| image(*number).image == content), "{point}#{count}");
        // The next process finishes it.
        assert!(victim(&root, None, None).success(), "{point}#{count}");
    }
    assert!(counts.len() > 10, "{counts:?}");
}
