//! The life of one machine with a TPM and an encrypted and authenticated disk, from its first start on.

use polis_testkit::seed::is_soak;
use polis_testkit::vm::{Need, Vm, turn};

use crate::site::{END, Machine, START, Site, UP, image, running, running_after};
use crate::{keys, witnesses};

#[test]
fn a_machine_is_born_and_comes_back_as_what_it_was() {
    let Some(image) = image(&[Need::Tpm]) else { return };
    let turn = turn();
    let site = Site::new(1);
    let machine = Machine::new(&image);
    let parameters = site.bootstrap("authenticated", "required");

    let vm = machine.start(&site, &turn, Some(&parameters));
    let up = vm.serial().wait_for(UP, START);
    let id = running(&vm);
    println!("the first process after {up:?}");
    site.take_ownership();
    let nodes = site.wait("node list -o json", "there is one node", |nodes| nodes.len() == 1);
    assert_eq!(nodes[0]["node_id"], id.as_str(), "{nodes:?}");
    site.asks(&format!("node set label {id} site=lab"));

    // The operator restarts it.
    let position = vm.serial().position();
    site.asks(&format!("node reboot {id} --bypass-quorum"));
    vm.serial().wait_for_after(position, "polis: starts again", END);
    assert_eq!(running_after(&vm, position), id, "{}", vm.serial().tail());
    site.wait_for_label(&id, "site", "lab");

    // Somebody presses the button of the case, and starts it again without parameters.
    vm.power_off(END);
    let vm = machine.start(&site, &turn, None);
    assert_eq!(running(&vm), id, "{}", vm.serial().tail());
    site.wait_for_label(&id, "site", "lab");
    vm.power_off(END);

    witnesses::look_at_disk(&machine.disk);
    keys::search(&machine, &site);
}

/// What the firmware says when it starts something.
const BY_FIRMWARE: &str = "BdsDxe: starting";

#[test]
fn a_machine_goes_straight_into_the_next_kernel() {
    if !is_soak() {
        eprintln!("left out of the short form: POLIS_SOAK=1 runs it");
        return;
    }
    let Some(image) = image(&[]) else { return };
    let turn = turn();
    let (site, machine) = (Site::new(1), Machine::without_tpm(&image));
    let vm = machine.start(&site, &turn, Some(&site.bootstrap("authenticated", "disabled")));
    let id = running(&vm);
    site.take_ownership();
    let starts = |vm: &Vm| vm.serial().text().matches(BY_FIRMWARE).count();
    let (before, position) = (starts(&vm), vm.serial().position());
    site.asks(&format!("node reboot {id} --kexec --bypass-quorum"));
    assert_eq!(running_after(&vm, position), id, "{}", vm.serial().tail());
    assert_eq!(starts(&vm), before, "the firmware had no part in it: {}", vm.serial().tail());
    vm.power_off(END);
}
