//! Where machines of a test stand: their network, their owner, and what each consists of.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use polis_testkit::processes;
use polis_testkit::scratch::Scratch;
use polis_testkit::vm::{self, Boot, Disk, Firmware, Need, SecureBoot, Served, Tpm, Turn, Vm, VmNetwork};

use crate::common::Run;

/// Name of the environment variable with the directory of the image.
const IMAGE_VARIABLE: &str = "POLIS_TEST_IMAGE";

/// What every machine of this suite needs.
const NEEDS: &[Need] = &[Need::Qemu, Need::Firmware, Need::Network, Need::DiskTools];

/// Size of a machine's disk in bytes: room for the image, and for data that grow.
pub(crate) const DISK: u64 = 2 << 30;

/// Memory of a machine that runs alone, in MiB. The firmware and the kernel each hold a copy of the image for a moment.
const MEMORY: u32 = 768;

/// How long it may take from the power button to a running node. On a quiet machine it takes 15 to 60 s.
pub(crate) const START: Duration = Duration::from_secs(420);

/// How long an orderly end may take.
pub(crate) const END: Duration = Duration::from_secs(120);

/// How long the operator waits for something in the cluster.
const PATIENCE: Duration = Duration::from_secs(240);

/// What the operator is told while nobody listens on a port: nothing was asked, so it may be asked again.
const NOBODY_LISTENS: &str = "refuses connections";

/// What the operator is told where the very first question of a line got no answer in time: nothing was changed yet.
const NOT_ASKED: &str = "could not be asked for";

/// What the console shows of a node that runs, before its id.
pub(crate) const RUNNING: &str = "status I Running, node ";

/// What the console shows when the node's identity is on the disk, before its id.
pub(crate) const DURABLE: &str = "identity is durable node=";

/// What the console shows first of Polis.
pub(crate) const UP: &str = "the machine comes up";

/// The image to test.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The whole disk.
    pub(crate) disk: PathBuf,
    /// Kernel and system.
    pub(crate) system: PathBuf,
}

/// The image, if there is one and everything that machines need is here. If not it says why, and the test is to return.
pub(crate) fn image(more: &[Need]) -> Option<Image> {
    let Some(directory) = std::env::var_os(IMAGE_VARIABLE).map(PathBuf::from) else {
        eprintln!("skipped: {IMAGE_VARIABLE} names no directory with an image: scripts/test-vm");
        return None;
    };
    let image = Image { disk: directory.join("polis.raw"), system: directory.join("polis.efi") };
    assert!(image.disk.is_file() && image.system.is_file(), "{IMAGE_VARIABLE}={}: no image", directory.display());
    (vm::available(NEEDS) && vm::available(more)).then_some(image)
}

/// A network with a DHCP server, and an owner on it.
pub(crate) struct Site {
    pub(crate) network: VmNetwork,
    directory: Scratch,
}

impl Site {
    /// A network with this many ports for machines.
    pub(crate) fn new(ports: usize) -> Self {
        let mut network = VmNetwork::new(ports);
        network.start_dhcp(3600);
        let site = Self { network, directory: Scratch::new() };
        site.polis("owner create", &[]).succeeds();
        site
    }

    /// Runs `polis` as the owner, with the machine at port 0 as its endpoint.
    pub(crate) fn polis(&self, line: &str, more: &[&str]) -> Run {
        let mut command = self.network.command(Path::new(env!("CARGO_BIN_EXE_polis")));
        command.args(line.split_ascii_whitespace()).args(more).env("POLIS_CONFIG", self.configuration());
        command.env("POLIS_ENDPOINTS", address(0));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        processes::spawn(command).wait_with_output().expect("polis can be waited for").into()
    }

    /// The owner's directory.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// As [`Site::polis`] for a line that must succeed, once somebody listens: a node opens its services a moment after it says that it
    /// runs, and an emulated machine makes that moment long.
    #[track_caller]
    pub(crate) fn asks(&self, line: &str) -> Run {
        let end = Instant::now() + PATIENCE;
        loop {
            let run = self.polis(line, &[]);
            let may_be_repeated = [NOBODY_LISTENS, NOT_ASKED].iter().any(|reason| run.stderr.contains(reason));
            if !may_be_repeated || Instant::now() >= end {
                run.succeeds();
                return run;
            }
        }
    }

    /// Becomes the owner of the cluster that the machine at port 0 has made.
    #[track_caller]
    pub(crate) fn take_ownership(&self) {
        self.asks("cluster takeownership --insecure-accept-and-persist-first-encountered-ca");
    }

    /// Parameters with which a machine makes a cluster.
    pub(crate) fn bootstrap(&self, storage_security: &str, tpm_mode: &str) -> PathBuf {
        let path = self.directory.path().join(format!("bootstrap-{storage_security}-{tpm_mode}.pb"));
        let key = self.configuration().join("owner-key.pem");
        let files = ["--owner-key", text(&key), "-o", text(&path), "--force"];
        let line = format!("parameters bootstrap --storage-security {storage_security} --tpm-mode {tpm_mode}");
        self.polis(&line, &files).succeeds();
        path
    }

    /// Parameters with which a machine registers.
    pub(crate) fn register(&self) -> PathBuf {
        let path = self.directory.path().join("register.pb");
        self.polis("parameters register", &["-o", text(&path), "--force"]).succeeds();
        path
    }

    /// Asks with a line of `polis` until its answer in JSON is as wanted.
    #[track_caller]
    pub(crate) fn wait(
        &self,
        line: &str,
        what: &str,
        wanted: impl Fn(&[serde_json::Value]) -> bool,
    ) -> Vec<serde_json::Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let run = self.polis(line, &[]);
            if run.code == Some(0) {
                let list = run.json().as_array().cloned().expect("it is a list");
                if wanted(&list) {
                    return list;
                }
            }
            assert!(Instant::now() < end, "the cluster did not come to: {what}; last {run:#?}");
        }
    }

    /// The value of a label of a node.
    #[track_caller]
    pub(crate) fn wait_for_label(&self, id: &str, key: &str, value: &str) {
        self.wait("node list -o json", &format!("{id} has {key}={value}"), |nodes| {
            nodes.iter().any(|node| node["node_id"] == id && node["labels"][key] == value)
        });
    }
}

/// Address that the machine at a port has.
pub(crate) fn address(port: usize) -> String {
    format!("10.78.0.{}", 10 + port)
}

/// A machine: what stays of it while it is off.
pub(crate) struct Machine {
    pub(crate) port: usize,
    pub(crate) firmware: Firmware,
    pub(crate) tpm: Option<Tpm>,
    pub(crate) disk: Disk,
    pub(crate) served: Served,
    pub(crate) memory: u32,
}

impl Machine {
    /// A new machine with a TPM, without Secure Boot, and with the image on its disk.
    pub(crate) fn new(image: &Image) -> Self {
        Self {
            port: 0,
            firmware: Firmware::new(SecureBoot::Off),
            tpm: Some(Tpm::new()),
            disk: Disk::with_image(&image.disk, DISK),
            served: Served::Plainly,
            memory: MEMORY,
        }
    }

    /// The same without a TPM, whose firmware has nothing to measure: it starts twice as fast.
    pub(crate) fn without_tpm(image: &Image) -> Self {
        Self { tpm: None, ..Self::new(image) }
    }

    /// Presses the power button.
    pub(crate) fn start(&self, site: &Site, turn: &Turn, parameters: Option<&Path>) -> Vm {
        let name = format!("machine {}", self.port);
        let mut builder = Vm::builder(&name)
            .memory(self.memory)
            .boot(Boot::Firmware(&self.firmware))
            .disk(&self.disk, self.served)
            .network(&site.network, self.port);
        if let Some(tpm) = &self.tpm {
            builder = builder.tpm(tpm);
        }
        if let Some(parameters) = parameters {
            builder = builder.value("dev.monogon.metropolis/parameters.pb", parameters);
        }
        builder.start(turn)
    }
}

/// Waits until the node of a machine runs; gives its id.
#[track_caller]
pub(crate) fn running(machine: &Vm) -> String {
    running_after(machine, 0)
}

/// As [`running`], for what comes after a position on the console.
#[track_caller]
pub(crate) fn running_after(machine: &Vm, position: usize) -> String {
    machine.serial().wait_for_word_after(position, RUNNING, START)
}

/// The word after the last `mark` in a text.
pub(crate) fn word_after(text: &str, mark: &str) -> Option<String> {
    let rest = text.rsplit_once(mark)?.1;
    let word: String =
        rest.chars().take_while(|character| character.is_ascii_alphanumeric() || *character == '-').collect();
    (!word.is_empty()).then_some(word)
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}
