//! The promise: whatever is done, and wherever power fails, the machine starts, and from an image that was good unless it is a try.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// An ESP: names and contents of the two directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Esp {
    entries: BTreeMap<String, Vec<u8>>,
    images: BTreeMap<String, [u8; 32]>,
}

impl Esp {
    fn new_disk() -> Self {
        let mut esp = Self::default();
        let entry = Slots::first(&NewImage { sha256: [1; 32], version: "1".to_owned() });
        esp.images.insert(entry.image.to_string(), entry.sha256);
        esp.entries.insert(entry.file_name(), entry.text().into_bytes());
        esp
    }

    fn slots(&self) -> Slots {
        let entries = self.entries.iter().map(|(name, text)| (name.as_str(), text.as_slice()));
        Slots::read(entries, self.images.keys().map(String::as_str))
    }

    fn execute(&mut self, steps: &[Step], sha256: [u8; 32]) {
        for step in steps {
            match step {
                Step::WriteImage(image) => drop(self.images.insert(image.to_string(), sha256)),
                Step::WriteEntry(entry) => drop(self.entries.insert(entry.file_name(), entry.text().into_bytes())),
                Step::RemoveEntry { name } => drop(self.entries.remove(name)),
                Step::RemoveImage(image) => drop(self.images.remove(&image.to_string())),
                Step::Sync => {}
            }
        }
    }

    /// What can be on the ESP after a power cut after `done` steps: each step since the last sync has happened or not, and the step in
    /// hand may have left half a file.
    fn after_power_cut(&self, steps: &[Step], done: usize, kept: u32, sha256: [u8; 32]) -> Self {
        let durable = steps[..done].iter().rposition(|step| *step == Step::Sync).unwrap_or(0);
        let mut esp = self.clone();
        esp.execute(&steps[..durable], sha256);
        for (number, step) in steps[durable..done].iter().enumerate() {
            if kept >> (number % 32) & 1 == 1 {
                esp.execute(std::slice::from_ref(step), sha256);
            }
        }
        match steps.get(done) {
            Some(Step::WriteImage(image)) => drop(esp.images.insert(image.to_string(), [0xff; 32])),
            Some(Step::WriteEntry(entry)) => {
                let text = entry.text().into_bytes();
                let cut = kept as usize % text.len();
                esp.entries.entry(entry.file_name()).or_insert_with(|| text[..cut].to_vec());
            }
            Some(Step::RemoveEntry { .. } | Step::RemoveImage(_) | Step::Sync) | None => {}
        }
        esp
    }

    /// The boot loader: takes the first by its own rules (not those of `Slots`), counts, and gives what it tells the image and whether the
    /// image is whole. An entry without the line `efi` is none.
    fn boot(&mut self) -> Option<(String, bool)> {
        let line = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.lines().find_map(|line| line.strip_prefix("efi /")).map(str::to_owned)
        };
        let mut candidates: Vec<(String, String)> =
            self.entries.iter().filter_map(|(name, text)| Some((name.clone(), line(text)?))).collect();
        // Checks that the image is there, as the loader does.
        candidates.retain(|(_, path)| self.images.contains_key(path.rsplit('/').next().unwrap()));
        candidates.sort_by(|(one, _), (other, _)| {
            (one.contains("+0"), std::cmp::Reverse(one)).cmp(&(other.contains("+0"), std::cmp::Reverse(other)))
        });
        let (name, path) = candidates.first()?.clone();
        if let Some((stem, counters)) = name.strip_suffix(".conf").unwrap().split_once('+') {
            let (left, done) = counters.split_once('-').unwrap();
            let (left, done): (u32, u32) = (left.parse().unwrap(), done.parse().unwrap());
            let text = self.entries.remove(&name).unwrap();
            self.entries.insert(format!("{stem}+{}-{}.conf", left.saturating_sub(1), done + 1), text);
        }
        let image = path.rsplit('/').next().unwrap();
        Some((name, self.images[image] != [0xff; 32]))
    }
}

fn new_image(number: u8) -> NewImage {
    NewImage { sha256: [number; 32], version: number.to_string() }
}

#[test]
fn a_new_disk_starts_from_slot_a_for_ever() {
    let mut esp = Esp::new_disk();
    for _ in 0..3 {
        let (path, whole) = esp.boot().unwrap();
        assert!(whole);
        assert_eq!(esp.slots().running(&path).unwrap().slot, Slot::A);
    }
    assert_eq!(esp, Esp::new_disk());
}

#[test]
fn an_update_is_tried_once_and_then_stays_or_goes() {
    for good in [true, false] {
        let mut esp = Esp::new_disk();
        let (path, _) = esp.boot().unwrap();
        let slots = esp.slots();
        let steps = slots.plan_installation(slots.running(&path), &new_image(2), Room::Enough).unwrap();
        esp.execute(&steps, [2; 32]);
        assert_eq!(esp.slots().next().unwrap().slot, Slot::B);
        assert_eq!(esp.slots().last_good().unwrap().slot, Slot::A);
        let (path, _) = esp.boot().unwrap();
        let slots = esp.slots();
        let running = slots.running(&path).unwrap();
        assert_eq!((running.slot, running.standing), (Slot::B, Standing::Spent { done: 1 }));
        if good {
            let steps = slots.plan_good(Some(running)).unwrap();
            esp.execute(&steps, [0; 32]);
            assert_eq!(esp.slots().plan_good(esp.slots().running(&path)).unwrap(), []);
        }
        let (path, _) = esp.boot().unwrap();
        let slots = esp.slots();
        let running = slots.running(&path).unwrap();
        assert_eq!(running.slot, if good { Slot::B } else { Slot::A });
        assert_eq!(running.standing, Standing::Good);
    }
}

#[test]
fn while_on_trial_the_last_good_one_is_not_replaced() {
    let mut esp = Esp::new_disk();
    let (path, _) = esp.boot().unwrap();
    let slots = esp.slots();
    let steps = slots.plan_installation(slots.running(&path), &new_image(2), Room::Enough).unwrap();
    esp.execute(&steps, [2; 32]);
    let (path, _) = esp.boot().unwrap();
    let slots = esp.slots();
    let refused = slots.plan_installation(slots.running(&path), &new_image(3), Room::Enough);
    assert_eq!(refused, Err(PlanRefused::OnTrial { slot: Slot::B }));
    // Going back needs no step: the try is spent.
    assert_eq!(slots.plan_rollback(slots.running(&path)), Ok(Vec::new()));
}

#[test]
fn a_rollback_is_a_try_too() {
    for works in [true, false] {
        let mut esp = Esp::new_disk();
        let (path, _) = esp.boot().unwrap();
        let refused = esp.slots().plan_rollback(esp.slots().running(&path));
        assert_eq!(refused, Err(PlanRefused::OtherNotGood { slot: Slot::B }));
        let slots = esp.slots();
        esp.execute(&slots.plan_installation(slots.running(&path), &new_image(2), Room::Enough).unwrap(), [2; 32]);
        let (path, _) = esp.boot().unwrap();
        let slots = esp.slots();
        esp.execute(&slots.plan_good(slots.running(&path)).unwrap(), [0; 32]);
        let slots = esp.slots();
        esp.execute(&slots.plan_rollback(slots.running(&path)).unwrap(), [0; 32]);
        let (path, _) = esp.boot().unwrap();
        let slots = esp.slots();
        assert_eq!(slots.running(&path).unwrap().slot, Slot::A);
        if works {
            esp.execute(&slots.plan_good(slots.running(&path)).unwrap(), [0; 32]);
        }
        let (path, _) = esp.boot().unwrap();
        assert_eq!(esp.slots().running(&path).unwrap().slot, if works { Slot::A } else { Slot::B });
    }
}

#[test]
fn a_damaged_entry_counts_for_nothing_and_an_installation_removes_it() {
    let mut esp = Esp::new_disk();
    let (path, _) = esp.boot().unwrap();
    esp.entries.insert("polis-00000009-b.conf".to_owned(), b"\0\0\0".to_vec());
    let slots = esp.slots();
    assert_eq!(slots.damaged().len(), 1);
    let running = slots.running(&path);
    assert!(matches!(slots.plan_rollback(running), Err(PlanRefused::Damaged { .. })));
    assert_eq!(slots.plan_good(running), Ok(Vec::new()));
    assert_eq!(slots.next().unwrap().slot, Slot::A);
    let steps = slots.plan_installation(running, &new_image(2), Room::Enough).unwrap();
    assert_eq!(steps[0], Step::RemoveEntry { name: "polis-00000009-b.conf".to_owned() });
    esp.execute(&steps, [2; 32]);
    assert_eq!(esp.slots().damaged(), []);
    assert_eq!(esp.slots().next().unwrap().slot, Slot::B);
}

#[test]
fn without_any_entry_nothing_is_assumed() {
    let slots = Slots::read([], ["polis-a-00000001.efi"]);
    assert_eq!(slots.next(), None);
    assert_eq!(slots.running("polis-00000001-a.conf"), None);
    assert_eq!(slots.plan_good(None), Err(PlanRefused::RunningUnknown));
    assert_eq!(slots.plan_rollback(None), Err(PlanRefused::RunningUnknown));
    assert_eq!(slots.plan_installation(None, &new_image(2), Room::Enough), Err(PlanRefused::RunningUnknown));
}

#[test]
fn entries_from_elsewhere_are_no_slot() {
    let esp = Esp::new_disk();
    let slots = esp.slots();
    for selected in
        ["debian.conf", "polis-00000002-a.conf", "polis-00000001-b.conf", "", "auto-reboot-to-firmware-setup"]
    {
        assert_eq!(slots.running(selected), None, "{selected}");
    }
    // As it was before the loader counted.
    assert!(slots.running("polis-00000001-a+1-0.conf\0").is_some());
}

/// What an operator or a power cut does.
#[derive(Clone, Debug)]
enum Action {
    Update { good: bool, room: Room, cut: Option<(u8, u32)> },
    Rollback { good: bool, cut: Option<(u8, u32)> },
    Reboot,
}

fn action() -> impl Strategy<Value = Action> {
    let cut = || prop::option::of((any::<u8>(), any::<u32>()));
    let room = prop_oneof![Just(Room::Enough), Just(Room::AfterRemoval)];
    prop_oneof![
        (any::<bool>(), room, cut()).prop_map(|(good, room, cut)| Action::Update { good, room, cut }),
        (any::<bool>(), cut()).prop_map(|(good, cut)| Action::Rollback { good, cut }),
        Just(Action::Reboot),
    ]
}

proptest! {
    #[test]
    fn a_machine_always_starts_from_a_whole_image_and_comes_back_to_a_good_one(actions in prop::collection::vec(action(), 1..12)) {
        let mut esp = Esp::new_disk();
        let mut number = 1;
        for action in actions {
            let (path, whole) = esp.boot().expect("there is always something to start");
            prop_assert!(whole, "a torn image was started");
            let slots = esp.slots();
            let running = slots.running(&path).cloned();
            prop_assert!(running.is_some(), "{path} is not found in {esp:?}");
            number += 1;
            let (steps, good, cut) = match action {
                Action::Update { good, room, cut } => (slots.plan_installation(running.as_ref(), &new_image(number), room), good, cut),
                Action::Rollback { good, cut } => (slots.plan_rollback(running.as_ref()), good, cut),
                Action::Reboot => (Ok(Vec::new()), true, None),
            };
            let Ok(steps) = steps else { continue };
            let before = slots.last_good().map(|entry| entry.image);
            prop_assert!(before.is_some());
            match cut {
                Some((done, kept)) if !steps.is_empty() => {
                    esp = esp.after_power_cut(&steps, usize::from(done) % steps.len(), kept, [number; 32]);
                    continue;
                }
                Some(_) | None => esp.execute(&steps, [number; 32]),
            }
            // The try.
            let (path, whole) = esp.boot().expect("there is always something to start");
            prop_assert!(whole);
            let slots = esp.slots();
            let tried = slots.running(&path).cloned();
            prop_assert!(tried.is_some());
            if good {
                esp.execute(&slots.plan_good(tried.as_ref()).unwrap(), [0; 32]);
                prop_assert_eq!(esp.slots().last_good().map(|entry| entry.image), tried.map(|entry| entry.image));
            } else {
                // It hangs, and is reset: what starts is good.
                let (path, _) = esp.boot().expect("there is always something to start");
                prop_assert_eq!(esp.slots().running(&path).map(|entry| entry.standing), Some(Standing::Good));
            }
        }
    }
}
