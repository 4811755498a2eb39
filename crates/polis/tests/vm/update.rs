//! Another image in the other slot: one that works stays, and one whose kernel hangs goes back to the last that was good.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use polis_testkit::processes;
use polis_testkit::scratch::Scratch;
use polis_testkit::seed::is_soak;
use polis_testkit::vm::{Disk, program, turn};

use crate::site::{END, Machine, START, Site, image, running, running_after, text};
use crate::witnesses::output;

/// Where the images are served from: the test's own place in the network.
const SERVER: &str = "10.78.0.1:8080";

/// What the kernel says when it gives up and has been told to stay as it is.
const HANGS: &str = "end Kernel panic";

/// A web server of files, in the network of the machines.
struct Server(Child);

impl Server {
    fn start(site: &Site, directory: &Path) -> Self {
        let mut command = site.network.command(&program("python3"));
        command.args(["-m", "http.server", "8080", "--bind", "10.78.0.1", "--directory"]).arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(processes::spawn(command))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An image that can be served.
struct Published {
    /// How it is named on the wire.
    reference: String,
    /// What is served.
    directory: PathBuf,
}

/// Writes kernel and system with another command line of the same length, as something that can be served.
fn publish(site: &Site, system: &Path, changes: &[(&str, &str)], name: &str, scratch: &Path) -> Published {
    let mut bytes = fs::read(system).expect("it is there");
    for (from, to) in changes {
        assert_eq!(from.len(), to.len(), "the sections stay where they are");
        let places: Vec<usize> =
            (0..=bytes.len() - from.len()).filter(|place| bytes[*place..].starts_with(from.as_bytes())).collect();
        assert_eq!(places.len(), 1, "{from:?} is in it {} times", places.len());
        bytes[places[0]..places[0] + to.len()].copy_from_slice(to.as_bytes());
    }
    let (file, directory) = (scratch.join(format!("{name}.efi")), scratch.join(name));
    fs::write(&file, bytes).expect("it can be written");
    let line = format!("image artifact --repository {name} --image-version {name}");
    let run = site.polis(&line, &["--image", text(&file), "-o", text(&directory)]);
    let digest = run.succeeds().lines().find(|line| line.starts_with("sha256:")).expect("it has a digest").to_owned();
    Published { reference: format!("http://{SERVER}/{name}@{digest}"), directory }
}

/// Names of the boot loader's entries.
fn entries(disk: &Disk) -> Vec<String> {
    let said = output("mdir", &["-b", "-i", &format!("{}@@1M", disk.path().display()), "::/loader/entries/"]);
    said.lines().filter_map(|line| line.rsplit('/').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn an_image_that_works_stays_and_one_that_hangs_goes_back() {
    if !is_soak() {
        eprintln!(
            "left out of the short form, which tries the boot loader with images of a shell: POLIS_SOAK=1 runs it"
        );
        return;
    }
    let Some(image) = image(&[]) else { return };
    let turn = turn();
    let (site, machine, scratch) = (Site::new(1), Machine::without_tpm(&image), Scratch::new());
    let working = publish(&site, &image.system, &[(" panic=10 ", " panic=11 ")], "working", scratch.path());
    let hanging = [(" panic=10 ", " panic=00 "), (" random.trust_cpu=on ", " rdinit=/not-there   ")];
    let hanging = publish(&site, &image.system, &hanging, "hanging", scratch.path());

    let vm = machine.start(&site, &turn, Some(&site.bootstrap("authenticated", "disabled")));
    let id = running(&vm);
    site.take_ownership();

    let server = Server::start(&site, &working.directory);
    let position = vm.serial().position();
    let line = format!("node update {id} --bypass-quorum --image-ref {}", working.reference);
    site.asks(&line);
    assert_eq!(running_after(&vm, position), id);
    drop(server);
    vm.power_off(END);
    let good = entries(&machine.disk);
    assert!(good.iter().any(|name| name.ends_with("-b.conf")), "the other slot is good: {good:?}");

    let vm = machine.start(&site, &turn, None);
    assert_eq!(running(&vm), id);
    let server = Server::start(&site, &hanging.directory);
    let line = format!("node update {id} --bypass-quorum --activation-mode none --image-ref {}", hanging.reference);
    site.asks(&line);
    drop(server);
    let position = vm.serial().position();
    site.asks(&format!("node reboot {id} --bypass-quorum"));
    vm.serial().wait_for_after(position, HANGS, START);
    vm.power_cut();

    // Whoever finds it hanging switches it off and on.
    let vm = machine.start(&site, &turn, None);
    assert_eq!(running(&vm), id, "{}", vm.serial().tail());
    vm.power_off(END);
    let back = entries(&machine.disk);
    // What was good and ran stays; in place of what it had replaced is one whose only try is spent.
    let is_there = |wanted: &str| back.iter().any(|name| name.ends_with(wanted));
    assert!(is_there("-b.conf") && is_there("-a+0-1.conf") && back.len() == 2, "before {good:?}, and now {back:?}");
}
