//! A network of hosts that a test makes for itself: each host is a network namespace with an address of its own, all of them
//! on one switch. Links go down, packets are dropped in one direction only, addresses change; nothing of it reaches the
//! machine's own network.
//!
//! A namespace lives as long as the process that holds it, which ends with the test process, however that ends. Nothing has a
//! name in the file system, so nothing can be left behind.

use std::fs::{self, File};
use std::io::Write as _;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::processes;

/// How long a namespace may take to be there. It takes a millisecond.
const NAMESPACE_DEADLINE: Duration = Duration::from_secs(10);

/// Network of the hosts, by its first three octets. It exists in the test's own namespaces only.
const NETWORK: [u8; 3] = [10, 77, 0];

/// The network namespace of the thread that looks.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Most hosts of one world.
const MAX_HOSTS: usize = 100;

/// Whether this process may make worlds. When not, it says so and the test is to return; where nothing may be skipped (`CI`
/// is set), it panics instead.
///
/// # Panics
///
/// When the environment variable `CI` is set and this process may not make a network.
#[must_use]
pub fn available() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "it needs root, to make network namespaces"
    } else if find_tool("ip").is_none() {
        "it needs the command `ip`: scripts/setup test"
    } else if find_tool("nft").is_none() {
        "it needs the command `nft`: scripts/setup test"
    } else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but this test cannot run: {reason}");
    eprintln!("skipped: {reason}");
    false
}

/// Hosts on one switch. Dropping it ends the namespaces; nodes in them must have ended before.
#[derive(Debug)]
pub struct World {
    switch: Namespace,
    hosts: Vec<WorldHost>,
}

/// One host of a [`World`].
#[derive(Debug)]
pub struct WorldHost {
    number: usize,
    namespace: Namespace,
    address: Mutex<Ipv4Addr>,
}

/// A stay of a thread on a host.
#[derive(Debug)]
pub struct Visit {
    /// Namespace that the thread was in before.
    home: File,
    /// It is about one thread, and must end there.
    thread: PhantomData<*const ()>,
}

/// A network namespace, held by a process.
#[derive(Debug)]
struct Namespace {
    holder: Child,
    path: PathBuf,
}

impl World {
    /// Makes `count` hosts, numbered from 0, with the addresses 10.77.0.1 and upwards.
    ///
    /// # Panics
    ///
    /// When the system does not give what it takes; see [`available`].
    #[must_use]
    pub fn new(count: usize) -> Self {
        assert!(count <= MAX_HOSTS, "a world has at most {MAX_HOSTS} hosts");
        let switch = Namespace::new();
        switch.ip("link set lo up\nlink add bridge0 type bridge\nlink set bridge0 up\n");
        let mut world = Self { switch, hosts: Vec::new() };
        for _ in 0..count {
            world.add_host();
        }
        world
    }

    /// Adds one more host, with the next address.
    ///
    /// # Panics
    ///
    /// When the system does not give what it takes.
    pub fn add_host(&mut self) -> &WorldHost {
        let number = self.hosts.len();
        assert!(number < MAX_HOSTS, "a world has at most {MAX_HOSTS} hosts");
        let namespace = Namespace::new();
        let (port, holder, address) = (port(number), namespace.holder.id(), numbered(number + 1));
        self.switch.ip(&format!(
            "link add {port} type veth peer name eth0 netns {holder}\nlink set {port} master bridge0\nlink set {port} up\n"
        ));
        namespace.ip(&format!("link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n"));
        self.hosts.push(WorldHost { number, namespace, address: Mutex::new(address) });
        &self.hosts[number]
    }

    /// A host.
    #[must_use]
    pub fn host(&self, number: usize) -> &WorldHost {
        &self.hosts[number]
    }

    /// All hosts.
    #[must_use]
    pub fn hosts(&self) -> &[WorldHost] {
        &self.hosts
    }

    /// Takes the link of a host down: it reaches nobody and nobody reaches it.
    pub fn unplug(&self, number: usize) {
        self.switch.ip(&format!("link set {} down\n", port(number)));
    }

    /// Brings the link of a host up again.
    pub fn plug(&self, number: usize) {
        self.switch.ip(&format!("link set {} up\n", port(number)));
    }

    /// Drops all packets from host `from` at host `to`; those the other way still go.
    pub fn block(&self, from: usize, to: usize) {
        let source = self.hosts[from].ip();
        self.hosts[to].namespace.nft(&format!(
            "add table inet polis\nadd chain inet polis input {{ type filter hook input priority 0; }}\n\
             add rule inet polis input ip saddr {source} drop\n"
        ));
    }

    /// Separates two groups of hosts from each other, in both directions.
    pub fn separate(&self, one: &[usize], other: &[usize]) {
        for (&left, &right) in one.iter().flat_map(|left| other.iter().map(move |right| (left, right))) {
            self.block(left, right);
            self.block(right, left);
        }
    }

    /// Ends all that [`World::block`], [`World::separate`] and [`World::unplug`] did.
    pub fn heal(&self) {
        for host in &self.hosts {
            // The table is made first, as deleting one that is not there is an error.
            host.namespace.nft("add table inet polis\ndelete table inet polis\n");
            self.plug(host.number);
        }
    }

    /// Gives a host another address; the old one is gone at once.
    pub fn readdress(&self, number: usize, last_octet: u8) {
        let address = numbered(last_octet.into());
        self.hosts[number].namespace.ip(&format!("address flush dev eth0\naddress add {address}/24 dev eth0\n"));
        *self.hosts[number].address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

impl WorldHost {
    /// Its address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        IpAddr::V4(*self.address.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A command that runs `program` on this host and ends with the test process; start it with [`processes::spawn`].
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = processes::bound_to_test(Path::new("nsenter"));
        command.arg(self.namespace.argument()).arg("--").arg(program);
        command
    }

    /// A command that runs `program` on this host, for a program that is waited for at once.
    #[must_use]
    pub fn plain_command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.namespace.argument()).arg("--").arg(program);
        command
    }

    /// Runs a closure on a thread of this process that is on this host: sockets that it makes are of this host.
    ///
    /// # Panics
    ///
    /// When the closure does, or the thread cannot enter the host.
    pub fn inside<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let entered = scope.spawn(move || {
                let _visit = self.visit();
                closure()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Brings this thread to this host until the result is dropped: sockets that it makes are of this host, and threads that it starts
    /// stay there.
    ///
    /// # Panics
    ///
    /// When it cannot enter the host.
    #[must_use]
    pub fn visit(&self) -> Visit {
        let open = |path: &Path| File::open(path).expect("the namespace is there as long as the world");
        let (home, namespace) = (open(Path::new(OWN_NAMESPACE)), open(&self.namespace.path));
        enter(&namespace);
        Visit { home, thread: PhantomData }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        enter(&self.home);
    }
}

/// Brings this thread into a namespace.
fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter a network namespace");
}

impl Namespace {
    fn new() -> Self {
        let mut command = processes::bound_to_test(Path::new("unshare"));
        command.args(["--net", "--", "sleep", "infinity"]).stdin(Stdio::null()).stdout(Stdio::null());
        let holder = processes::spawn(command);
        let path = PathBuf::from(format!("/proc/{}/ns/net", holder.id()));
        let outside = fs::read_link("/proc/self/ns/net").expect("this process is in a network namespace");
        let deadline = Instant::now() + NAMESPACE_DEADLINE;
        while fs::read_link(&path).map_or(true, |inside| inside == outside) {
            assert!(Instant::now() < deadline, "`unshare --net` made no network namespace");
            thread::sleep(Duration::from_millis(1));
        }
        Self { holder, path }
    }

    fn argument(&self) -> String {
        format!("--net={}", self.path.display())
    }

    fn ip(&self, commands: &str) {
        self.batch("ip", &["-batch", "-"], commands);
    }

    fn nft(&self, commands: &str) {
        self.batch("nft", &["-f", "-"], commands);
    }

    fn batch(&self, tool: &str, arguments: &[&str], commands: &str) {
        let program =
            find_tool(tool).unwrap_or_else(|| panic!("this test needs the command `{tool}`: scripts/setup test"));
        let mut command = Command::new("nsenter");
        command.arg(self.argument()).arg("--").arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter can be started");
        let mut input = child.stdin.take().expect("its input is a pipe");
        input.write_all(commands.as_bytes()).expect("it reads its input");
        drop(input);
        let output = child.wait_with_output().expect("it can be waited for");
        assert!(output.status.success(), "{tool}: {}\nfor: {commands}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Both fail only for a child that has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Name of the switch's end of a host's link.
fn port(number: usize) -> String {
    format!("port{number}")
}

fn numbered(number: usize) -> Ipv4Addr {
    let [first, second, third] = NETWORK;
    Ipv4Addr::new(first, second, third, u8::try_from(number).expect("a world is small"))
}

/// Where a tool is: in `PATH`, or where Debian has what only root calls.
#[must_use]
pub fn find_tool(name: impl AsRef<Path>) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&search).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(&name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    /// Whether host `from` can open a connection to `to`. What is dropped shows as silence.
    fn reaches(world: &World, from: usize, to: SocketAddr) -> bool {
        world.host(from).inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(300)).is_ok())
    }

    #[test]
    fn hosts_reach_each_other_until_they_are_cut_off() {
        if !available() {
            return;
        }
        let world = World::new(3);
        let listeners: Vec<TcpListener> =
            world.hosts().iter().map(|host| host.inside(|| TcpListener::bind((host.ip(), 0)).unwrap())).collect();
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let pairs = |expected: &dyn Fn(usize, usize) -> bool| {
            for from in 0..3 {
                for (to, address) in addresses.iter().enumerate() {
                    assert_eq!(reaches(&world, from, *address), expected(from, to), "{from} to {to}");
                }
            }
        };
        pairs(&|_, _| true);
        world.unplug(1);
        pairs(&|from, to| from == to || (from != 1 && to != 1));
        world.plug(1);
        world.separate(&[0], &[1, 2]);
        pairs(&|from, to| (from == 0) == (to == 0));
        world.heal();
        pairs(&|_, _| true);
        world.readdress(2, 50);
        assert_eq!(world.host(2).ip(), IpAddr::from([10, 77, 0, 50]));
        let moved = world.host(2).inside(|| TcpListener::bind((world.host(2).ip(), 0)).unwrap());
        assert!(reaches(&world, 0, moved.local_addr().unwrap()));
        assert!(!reaches(&world, 0, addresses[2]));
    }

    #[test]
    fn what_runs_on_a_host_sees_its_network_only() {
        if !available() {
            return;
        }
        let world = World::new(1);
        let output = world.host(0).plain_command(Path::new("cat")).arg("/proc/net/dev").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("eth0"), "{text}");
        let child = processes::spawn({
            let mut command = world.host(0).command(Path::new("sleep"));
            command.arg("60");
            command
        });
        let path = format!("/proc/{}/ns/net", child.id());
        let deadline = Instant::now() + NAMESPACE_DEADLINE;
        while fs::read_link(&path).unwrap() != fs::read_link(&world.host(0).namespace.path).unwrap() {
            assert!(Instant::now() < deadline, "the process is not on its host");
            thread::sleep(Duration::from_millis(1));
        }
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
