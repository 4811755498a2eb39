//! What a machine consists of.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{Disk, Firmware, Qmp, Serial, Served, Tpm, Turn, Vm, VmNetwork, tools};
use crate::processes;
use crate::scratch::Scratch;

/// How a machine starts.
#[derive(Clone, Debug)]
pub enum Boot<'a> {
    /// QEMU loads a kernel, without firmware: the fastest way.
    Kernel {
        /// The kernel.
        kernel: PathBuf,
        /// Its initramfs.
        initramfs: PathBuf,
        /// Its command line.
        command_line: String,
    },
    /// The firmware looks for something to start on the disks.
    Firmware(&'a Firmware),
}

/// A machine before it runs.
#[derive(Debug)]
pub struct VmBuilder<'a> {
    name: String,
    memory: u32,
    boot: Option<Boot<'a>>,
    disks: Vec<(&'a Disk, Served)>,
    tpm: Option<&'a Tpm>,
    network: Option<(&'a VmNetwork, usize)>,
    values: Vec<(String, PathBuf)>,
    stays_on_reset: bool,
    more: Vec<String>,
}

impl VmBuilder<'static> {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            memory: 512,
            boot: None,
            disks: Vec::new(),
            tpm: None,
            network: None,
            values: Vec::new(),
            stays_on_reset: true,
            more: Vec::new(),
        }
    }
}

impl<'a> VmBuilder<'a> {
    /// Memory in MiB; 512 if nothing else is said.
    #[must_use]
    pub fn memory(mut self, mebibytes: u32) -> Self {
        self.memory = mebibytes;
        self
    }

    /// How it starts.
    #[must_use]
    pub fn boot<'b>(self, boot: Boot<'b>) -> VmBuilder<'b>
    where
        'a: 'b,
    {
        VmBuilder { boot: Some(boot), ..self }
    }

    /// Adds a disk. The firmware looks at them in the order in which they are added.
    #[must_use]
    pub fn disk<'b>(self, disk: &'b Disk, served: Served) -> VmBuilder<'b>
    where
        'a: 'b,
    {
        let mut builder: VmBuilder<'b> = self;
        builder.disks.push((disk, served));
        builder
    }

    /// Gives it a TPM.
    #[must_use]
    pub fn tpm<'b>(self, tpm: &'b Tpm) -> VmBuilder<'b>
    where
        'a: 'b,
    {
        VmBuilder { tpm: Some(tpm), ..self }
    }

    /// Plugs it into a port of a network. Without, it has no network device.
    #[must_use]
    pub fn network<'b>(self, network: &'b VmNetwork, port: usize) -> VmBuilder<'b>
    where
        'a: 'b,
    {
        VmBuilder { network: Some((network, port)), ..self }
    }

    /// Gives it a file by fw_cfg, such as `dev.monogon.metropolis/parameters.pb`. Up to some 64 KiB: reading takes quadratic time.
    #[must_use]
    pub fn value(mut self, name: &str, file: &Path) -> Self {
        self.values.push((name.to_owned(), file.to_owned()));
        self
    }

    /// Makes QEMU end when the machine resets itself, instead of starting it again.
    #[must_use]
    pub fn ends_on_reset(mut self) -> Self {
        self.stays_on_reset = false;
        self
    }

    /// Adds arguments of QEMU.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.more.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Presses the power button. The console is copied to a file below the system's temporary directory until the machine is dropped.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(&self, _turn: &Turn) -> Vm {
        let directory = Scratch::new();
        let mut helpers: Vec<_> = self.tpm.map(|tpm| tpm.start(&Tpm::socket(directory.path()))).into_iter().collect();
        for (number, (disk, served)) in self.disks.iter().enumerate() {
            helpers.extend(disk.serve(*served, &disk_socket(directory.path(), number)));
        }
        for socket in self.sockets(directory.path()) {
            wait_for_socket(&socket);
        }
        let program = tools::program("qemu-system-x86_64");
        let mut command = match self.network {
            Some((network, _)) => network.command(&program),
            None => processes::bound_to_test(&program),
        };
        command.args(self.command_line(directory.path()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut qemu = processes::spawn(command);
        let log = File::create(directory.path().join("console")).expect("a file can be made");
        let (output, input) = (qemu.stdout.take(), qemu.stdin.take());
        let serial = Serial::follow(output.expect("it is a pipe"), input.expect("it is a pipe"), log);
        let name = &self.name;
        let qmp = Qmp::connect(&directory.path().join("control"), || match qemu.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("{name}: QEMU has ended: {ended:?}")),
        });
        Vm { name: name.clone(), qemu, helpers, serial, qmp, _directory: directory }
    }

    fn sockets(&self, directory: &Path) -> Vec<PathBuf> {
        let served = self.disks.iter().enumerate().filter(|(_, (_, served))| *served == Served::LosingWhatIsNotFlushed);
        let disks = served.map(|(number, _)| disk_socket(directory, number));
        disks.chain(self.tpm.map(|_| Tpm::socket(directory))).collect()
    }

    fn command_line(&self, directory: &Path) -> Vec<String> {
        let machine = match &self.boot {
            Some(Boot::Firmware(firmware)) => firmware.machine(),
            Some(Boot::Kernel { .. }) | None => "q35",
        };
        let mut line: Vec<String> =
            ["-machine", machine, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1"].map(str::to_owned).to_vec();
        line.extend(["-m", &self.memory.to_string(), "-nodefaults", "-display", "none"].map(str::to_owned));
        line.extend(["-chardev", "stdio,id=serial0,signal=off", "-serial", "chardev:serial0"].map(str::to_owned));
        line.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", directory.join("control").display())]);
        line.extend(["-device", "virtio-rng-pci"].map(str::to_owned));
        if !self.stays_on_reset {
            line.push("-no-reboot".to_owned());
        }
        match &self.boot {
            Some(Boot::Kernel { kernel, initramfs, command_line }) => {
                let (kernel, initramfs) = (kernel.display().to_string(), initramfs.display().to_string());
                line.extend(["-kernel", &kernel, "-initrd", &initramfs, "-append", command_line].map(str::to_owned));
            }
            Some(Boot::Firmware(firmware)) => line.extend(firmware.arguments()),
            None => {}
        }
        for (number, (disk, served)) in self.disks.iter().enumerate() {
            line.extend(disk.arguments(*served, &disk_socket(directory, number), number));
        }
        if self.tpm.is_some() {
            line.extend(Tpm::arguments(&Tpm::socket(directory)));
        }
        if let Some((_, port)) = self.network {
            line.extend(VmNetwork::arguments(port));
        }
        for (name, file) in &self.values {
            line.extend(["-fw_cfg".to_owned(), format!("name={name},file={}", file.display())]);
        }
        line.extend(self.more.iter().cloned());
        line
    }
}

fn disk_socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("disk{number}"))
}

/// Waits until a helper has made its socket.
fn wait_for_socket(path: &Path) {
    let end = std::time::Instant::now() + super::DEATH;
    while !path.exists() {
        assert!(std::time::Instant::now() < end, "nobody made {}", path.display());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
