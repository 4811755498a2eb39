//! A node as a real process, on an address and in a directory of its own.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polis_control::{Client, NodeState, Status};

use crate::address::TestAddress;
use crate::checks::faults;
use crate::scratch::Scratch;
use crate::storage_security::StorageSecurity;
use crate::world::World;
use crate::{etcd, processes, trace};

/// How long a test waits for what should take well under a second: long enough for a loaded machine, short enough that a
/// hang is seen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A place for a node: a root directory and an address that belong to one test.
#[derive(Debug)]
pub struct Host {
    /// The `polis` binary.
    pub binary: PathBuf,
    place: Place,
    directory: Scratch,
}

/// Where a node is reached.
#[derive(Debug)]
enum Place {
    /// On a loopback address of this machine.
    Loopback(TestAddress),
    /// On a host of a network of the test's own.
    World(Arc<World>, usize),
}

/// A node that was started. Dropping it kills it.
#[derive(Debug)]
pub struct NodeProcess {
    child: Child,
    root: PathBuf,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Host {
    /// Makes a place for a node that will run `binary`.
    ///
    /// # Panics
    ///
    /// When there is no temporary directory to be had.
    #[must_use]
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self { binary: binary.into(), place: Place::Loopback(TestAddress::claim()), directory: Scratch::new() }
    }

    /// Makes a place on host `number` of `world` for a node that will run `binary`.
    ///
    /// # Panics
    ///
    /// When there is no temporary directory to be had.
    #[must_use]
    pub fn in_world(binary: impl Into<PathBuf>, world: Arc<World>, number: usize) -> Self {
        Self { binary: binary.into(), place: Place::World(world, number), directory: Scratch::new() }
    }

    /// A directory beside the root, for files of the test.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Root directory of the node. The node makes it.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Address of the node.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        match &self.place {
            Place::Loopback(address) => address.ip,
            Place::World(world, number) => world.host(*number).ip(),
        }
    }

    /// A command on this host that ends with the test process, if it is started with [`processes::spawn`].
    fn on_host(&self, program: &Path) -> Command {
        match &self.place {
            Place::Loopback(_) => processes::bound_to_test(program),
            Place::World(world, number) => world.host(*number).command(program),
        }
    }

    /// Gives the node another loopback address, from its next start on. Without effect on a host of a [`World`], which is
    /// moved with [`World::readdress`].
    pub fn move_to(&mut self, address: TestAddress) {
        if let Place::Loopback(place) = &mut self.place {
            *place = address;
        }
    }

    /// Puts a parameters file beside the root.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write_parameters(&self, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join("parameters.pb");
        std::fs::write(&path, bytes).expect("the parameters can be written");
        path
    }

    /// Makes parameters for a cluster of this node alone, as its owner would, and gives their path.
    ///
    /// # Panics
    ///
    /// When `polis` does not make them.
    #[must_use]
    pub fn bootstrap_parameters(&self) -> PathBuf {
        self.bootstrap_parameters_for(StorageSecurity::of_this_run())
    }

    /// The same for a cluster whose nodes protect their data so, whatever this run of the suites is for.
    ///
    /// # Panics
    ///
    /// When `polis` does not make them.
    #[must_use]
    pub fn bootstrap_parameters_for(&self, storage: StorageSecurity) -> PathBuf {
        let (keys, parameters) = (self.directory().join("owner"), self.directory().join("parameters.pb"));
        let run = |command: &mut Command| {
            let output = command.stdin(Stdio::null()).output().expect("polis can be started");
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(Command::new(&self.binary).args(["owner", "create", "--config"]).arg(&keys));
        let mut bootstrap = Command::new(&self.binary);
        bootstrap.args(["parameters", "bootstrap"]).args(storage.bootstrap_arguments());
        run(bootstrap.arg("--owner-key").arg(keys.join("owner-key.pem")).arg("-o").arg(&parameters));
        parameters
    }

    /// The command that runs the node; add arguments and environment to it. Start it with [`Host::spawn`].
    #[must_use]
    pub fn command(&self) -> Command {
        self.command_with_etcd(&etcd::binary())
    }

    /// The command that runs the node with another etcd.
    #[must_use]
    pub fn command_with_etcd(&self, etcd: &Path) -> Command {
        self.complete(self.on_host(&self.binary), etcd)
    }

    /// The command that runs the node under strace, with the trace in the file `trace` ([`mod@trace`]).
    #[must_use]
    pub fn traced_command(&self, trace: &Path) -> Command {
        self.complete(trace::traced(&self.binary, trace), &etcd::binary())
    }

    fn complete(&self, mut command: Command, etcd: &Path) -> Command {
        command.args(["node", "run", "--root"]).arg(self.root());
        command.arg("--address").arg(self.ip().to_string());
        command.arg("--etcd").arg(etcd);
        command
    }

    /// Runs another command of `polis` to its end.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn polis<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> std::process::Output {
        Command::new(&self.binary).args(arguments).stdin(Stdio::null()).output().expect("polis can be started")
    }

    /// Starts a command made by [`Host::command`]. The node ends with the test process, however that ends.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(&self, mut command: Command) -> NodeProcess {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = processes::spawn(command);
        let stderr = child.stderr.take().expect("stderr is piped");
        let log = Arc::new(Mutex::new(String::new()));
        let writer = log.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = writer.lock().unwrap_or_else(PoisonError::into_inner);
                log.push_str(&line);
                log.push('\n');
            }
        });
        NodeProcess { child, root: self.root(), log, reader: Some(reader) }
    }

    /// Starts the node with a parameters file.
    #[must_use]
    pub fn start(&self, parameters: &Path) -> NodeProcess {
        let mut command = self.command();
        command.arg("--parameters").arg(parameters);
        self.spawn(command)
    }
}

impl NodeProcess {
    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the node has ended. It can be waited for all the same.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error says that it was waited for already.
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).map_or(true, |status| status.is_some())
    }

    /// What the node has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the node's status satisfies `wanted` and returns that status.
    ///
    /// # Panics
    ///
    /// When the node ends or [`PATIENCE`] runs out first, with the last status and the log.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + PATIENCE;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut last = None;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                panic!("the node ended ({status}) instead of: {what}; last {last:?}; its log:\n{}", self.final_log());
            }
            let follow = async {
                let mut client = Client::connect(&self.root, true).await.ok()?;
                loop {
                    let status = client.next().await.ok()?;
                    let found = wanted(&status);
                    last = Some(status);
                    if found {
                        return last.clone();
                    }
                }
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(Some(status)) = runtime.block_on(async { tokio::time::timeout(left, follow).await }) {
                return status;
            }
            // The socket is not there yet, or the node is just going away: look again in a moment.
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the node did not come to: {what}; last {last:?}; its log:\n{}", self.log());
    }

    /// Waits for a state.
    pub fn wait_state(&mut self, state: NodeState) -> Status {
        self.wait(state.name(), |status| status.state == state)
    }

    /// Waits until the node runs and nothing is wrong. On a busy machine, a node may say for a while after its start that it has no
    /// contact with its leader.
    pub fn wait_running(&mut self) -> Status {
        self.wait_running_with(&[])
    }

    /// Waits until the node runs and exactly these faults are left.
    pub fn wait_running_with(&mut self, left: &[&str]) -> Status {
        let what = format!("Running with the faults {left:?}");
        self.wait(&what, |status| status.state == NodeState::Running && faults(status) == left)
    }

    /// Waits for a condition to be raised.
    pub fn wait_condition(&mut self, name: &str) -> Status {
        self.wait(name, |status| status.conditions.iter().any(|condition| condition.name == name))
    }

    /// Waits until the node is in contact with the leader of its cluster.
    pub fn wait_contact(&mut self) -> Status {
        self.wait("contact with the leader", |status| status.contact.as_ref().is_some_and(|contact| contact.in_contact))
    }

    /// Waits for the node to end by itself.
    ///
    /// # Panics
    ///
    /// When it does not within [`PATIENCE`].
    pub fn wait_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                if let Some(reader) = self.reader.take() {
                    reader.join().expect("the log can be read");
                }
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the node did not end; its log:\n{}", self.log());
    }

    /// Waits until the node runs or has ended by itself, and asks it to stop if it runs. Returns how it ended: by the signal
    /// of a fault point, or in order.
    ///
    /// # Panics
    ///
    /// When neither happens within [`PATIENCE`].
    pub fn wait_exit_or_stop(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        while Instant::now() < deadline {
            if self.child.try_wait().expect("the child can be waited for").is_some() {
                return self.wait_exit();
            }
            let runs = async {
                let mut client = Client::connect(&self.root, true).await.ok()?;
                while client.next().await.ok()?.state != NodeState::Running {}
                Some(())
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(Some(())) = runtime.block_on(async { tokio::time::timeout(left, runs).await }) {
                self.signal(rustix::process::Signal::TERM);
                return self.wait_exit();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the node neither ran nor ended; its log:\n{}", self.log());
    }

    /// Waits until the node has ended by itself, and returns how, or until there is nothing more to wait for, and returns
    /// nothing.
    ///
    /// # Panics
    ///
    /// When neither happens within [`PATIENCE`].
    pub fn wait_exit_or(&mut self, what: &str, done: impl Fn() -> bool) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.try_wait().expect("the child can be waited for").is_some() {
                return Some(self.wait_exit());
            }
            if done() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the node neither ended nor came to: {what}; its log:\n{}", self.log());
    }

    /// Ends the node with SIGKILL.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.wait_exit();
    }

    /// Ends the node with SIGTERM, as an operator would.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.wait_exit()
    }

    /// Sends a signal to the process of the node, and to it alone.
    ///
    /// # Panics
    ///
    /// When the process was waited for already.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).expect("a child that was not waited for can be signalled");
    }

    fn final_log(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log can be read");
        }
        self.log()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // Both fail only for a child that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
