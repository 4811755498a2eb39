//! The life of one machine with a TPM and an encrypted and authenticated disk, from its first start on.

use polis_testkit::vm::{Need, turn};

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
    site.polis(&format!("node set label {id} site=lab"), &[]).succeeds();

    // The operator restarts it.
    let position = vm.serial().position();
    site.polis(&format!("node reboot {id} --bypass-quorum"), &[]).succeeds();
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
