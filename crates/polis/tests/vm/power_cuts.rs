//! Power that goes at any instant, with a disk that loses what was not flushed: the machine always comes back as what it was, or has
//! not begun yet. That such a disk loses what was not flushed, and nothing else, is tested where the image is (`harness`).

use std::thread;
use std::time::{Duration, Instant};

use polis_testkit::seed::{Random, is_soak};
use polis_testkit::vm::{Need, Served, Turn, Vm, turn};

use crate::site::{DURABLE, Image, Machine, RUNNING, START, Site, UP, image, running, word_after};

/// How long after a node runs power may still go: it writes for a while, such as the cluster's lists.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// How many instants there are in each series.
fn count() -> u64 {
    if is_soak() { 20 } else { 3 }
}

/// A machine whose power goes. Each second one of the full form has a TPM, with which each start takes twice as long.
fn machine(image: &Image, number: u64) -> Machine {
    let machine = if is_soak() && number % 2 == 1 { Machine::new(image) } else { Machine::without_tpm(image) };
    Machine { served: Served::LosingWhatIsNotFlushed, ..machine }
}

fn parameters(site: &Site, machine: &Machine) -> std::path::PathBuf {
    site.bootstrap("authenticated", if machine.tpm.is_some() { "required" } else { "disabled" })
}

/// Waits until Polis is there, then for an instant, and cuts the power. Gives what was on the console.
fn cut(vm: Vm, instant: Duration) -> String {
    vm.serial().wait_for(UP, START);
    // A random instant is what is tested, so there is nothing to wait for.
    thread::sleep(instant);
    let text = vm.serial().text();
    vm.power_cut();
    // Whole lines only: the last one may be cut, too.
    text.rsplit_once('\n').map_or_else(String::new, |(lines, _)| lines.to_owned())
}

/// Starts a machine and waits until it runs; gives its id and how long that took from the first line of Polis on.
fn start(machine: &Machine, site: &Site, turn: &Turn) -> (Vm, String, Duration) {
    let vm = machine.start(site, turn, Some(&parameters(site, machine)));
    vm.serial().wait_for(UP, START);
    let up = Instant::now();
    let id = running(&vm);
    (vm, id, up.elapsed())
}

#[test]
fn power_goes_during_the_first_start() {
    let Some(image) = image(&[Need::LossyDisk, Need::Tpm]) else { return };
    let turn = turn();
    let mut random = Random::for_this_run();
    let mut longest = Duration::from_secs(30);
    for number in 0..count() {
        // Its own owner, so that the clusters have nothing to do with each other.
        let (site, machine) = (Site::new(1), machine(&image, number));
        let instant = random.span(longest + AFTERWARDS);
        let before = cut(machine.start(&site, &turn, Some(&parameters(&site, &machine))), instant);
        let was = word_after(&before, RUNNING).or_else(|| word_after(&before, DURABLE));
        let (vm, id, took) = start(&machine, &site, &turn);
        println!("first start, cut after {instant:?} as {was:?}; comes back as {id} within {took:?}");
        if let Some(was) = was {
            assert_eq!(
                id,
                was,
                "it is another node than before; its console was\n{before}\nand now is\n{}",
                vm.serial().text()
            );
        }
        if before.contains(RUNNING) {
            // Who was told that the cluster is there finds it.
            site.take_ownership();
        }
        // A first start takes longer than one that finds part of it done; the bound only steers the instants.
        longest = longest.max(took).min(START);
        vm.power_cut();
    }
}

#[test]
fn power_goes_during_a_later_start() {
    let Some(image) = image(&[Need::LossyDisk, Need::Tpm]) else { return };
    let turn = turn();
    let mut random = Random::for_this_run();
    let (site, machine) = (Site::new(1), machine(&image, 1));
    let (vm, id, mut took) = start(&machine, &site, &turn);
    site.take_ownership();
    vm.power_cut();
    for number in 0..count() {
        let instant = random.span(took + AFTERWARDS);
        let before = cut(machine.start(&site, &turn, None), instant);
        let vm = machine.start(&site, &turn, None);
        vm.serial().wait_for(UP, START);
        let up = Instant::now();
        let now = running(&vm);
        took = up.elapsed();
        println!("later start, cut after {instant:?}; comes back within {took:?}");
        assert_eq!(now, id, "its console was\n{before}\nand now is\n{}", vm.serial().text());
        // What was answered as done is there at the next start, also when power goes right after the answer.
        if number > 0 {
            site.wait_for_label(&id, "cut", &(number - 1).to_string());
        }
        site.asks(&format!("node set label {id} cut={number}"));
        vm.power_cut();
    }
}
