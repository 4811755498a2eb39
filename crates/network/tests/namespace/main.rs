//! The address of a node whose network changes, with real interfaces in a network namespace of its own.

mod namespace;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use namespace::{in_namespace, ip, ip_batch};
use polis_condition::{Condition, Conditions};
use polis_network::{AddressSource, NO_ADDRESS, Network};
use polis_supervisor::{Supervisor, runnable};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long the node may take to notice a change. It takes a tenth of a second; the rest is for a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(20);

/// A node that knows its address.
struct Node {
    supervisor: Supervisor,
    address: watch::Receiver<Option<IpAddr>>,
    conditions: watch::Receiver<BTreeMap<String, Condition>>,
}

impl Node {
    fn start(source: AddressSource) -> Self {
        let conditions = Conditions::default();
        let network = Network::new(source);
        let (address, watch) = (network.address(), conditions.watch());
        let supervisor = Supervisor::builder().conditions(conditions).start(runnable(move |context| {
            let network = network.clone();
            async move {
                context.run("network", network.runnable())?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        }));
        Self { supervisor, address, conditions: watch }
    }

    /// Waits until the node has this address (none: `""`), and the condition is raised or not as it should be.
    #[track_caller]
    fn has(&mut self, expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let expected: Option<IpAddr> = (!expected.is_empty()).then(|| expected.parse().unwrap());
            let found = timeout(DEADLINE, self.address.wait_for(|address| *address == expected)).await.map(drop);
            assert!(found.is_ok(), "{caller}: {:?} instead of {expected:?}", *self.address.borrow());
            let raised = expected.is_none();
            let found = timeout(DEADLINE, self.conditions.wait_for(|all| all.contains_key(NO_ADDRESS) == raised))
                .await
                .map(drop);
            assert!(found.is_ok(), "{caller}: {:?}", *self.conditions.borrow());
        }
    }

    fn condition(&self) -> Condition {
        self.conditions.borrow()[NO_ADDRESS].clone()
    }

    async fn stop(self) {
        assert!(self.supervisor.dump().iter().all(|report| report.restarts == 0), "{:?}", self.supervisor.dump());
        self.supervisor.shutdown().await.unwrap();
    }
}

/// Makes an interface with a cable to another one, both up, and without addresses: the link-local one would come
/// and go with the link, and make news where the kernel otherwise has none.
fn add_interface(name: &str) {
    ip(&format!("link add {name} type veth peer name {name}-peer"));
    ip(&format!("link set {name} addrgenmode none"));
    ip(&format!("link set {name}-peer addrgenmode none"));
    ip(&format!("link set {name}-peer up"));
    ip(&format!("link set {name} up"));
}

#[test]
fn an_address_comes_changes_goes_and_comes_back() {
    in_namespace("an_address_comes_changes_goes_and_comes_back", async || {
        let mut node = Node::start(AddressSource::DefaultRoute);
        node.has("").await;
        let condition = node.condition();
        let expected = "this node does not know its own address: this machine has no default route";
        assert_eq!(condition.message, expected);
        assert!(condition.hint.contains("--address"), "{condition:?}");

        // It comes: an address without a route is not enough.
        add_interface("one");
        ip("address add 10.1.0.5/24 dev one");
        ip("route add default via 10.1.0.1 metric 100");
        node.has("10.1.0.5").await;

        // It changes: another address of the interface, and the one that the route is tied to goes.
        ip("address add 10.2.0.5/24 dev one");
        ip("route add default via 10.2.0.1 metric 200");
        ip("address del 10.1.0.5/24 dev one");
        node.has("10.2.0.5").await;

        // Another default route, better than the first, with another interface.
        add_interface("two");
        ip("address add 10.3.0.5/24 dev two");
        ip("route add default via 10.3.0.1 metric 50");
        node.has("10.3.0.5").await;
        ip("route del default via 10.3.0.1");
        node.has("10.2.0.5").await;
        ip("route add default via 10.3.0.1 metric 50");
        node.has("10.3.0.5").await;

        // The link goes down, of which the kernel says nothing in terms of routes; then the other one.
        ip("link set two down");
        node.has("10.2.0.5").await;
        ip("link set one down");
        node.has("").await;

        // It comes back.
        ip("link set one up");
        ip("route add default via 10.2.0.1");
        node.has("10.2.0.5").await;

        // The interface is taken out.
        ip("link del one");
        node.has("").await;
        node.stop().await;
    });
}

#[test]
fn an_address_is_found_that_is_there_before() {
    in_namespace("an_address_is_found_that_is_there_before", async || {
        add_interface("one");
        ip("address add 10.1.0.5/24 dev one");
        ip("address add 10.1.0.6/24 dev one");
        ip("route add default via 10.1.0.1 src 10.1.0.6");
        let mut node = Node::start(AddressSource::DefaultRoute);
        node.has("10.1.0.6").await;
        ip("route replace default via 10.1.0.1 src 10.1.0.5");
        node.has("10.1.0.5").await;
        node.stop().await;
    });
}

#[test]
fn ipv6_is_taken_while_there_is_no_ipv4() {
    in_namespace("ipv6_is_taken_while_there_is_no_ipv4", async || {
        let mut node = Node::start(AddressSource::DefaultRoute);
        add_interface("one");
        ip("address add fe80::5/64 dev one nodad");
        ip("route add default via fe80::1 dev one");
        // The link-local address, which every interface has, is not one that others can reach.
        node.has("").await;
        let told =
            timeout(DEADLINE, node.conditions.wait_for(|all| all[NO_ADDRESS].message.contains("by number"))).await;
        assert!(told.is_ok(), "the condition names the interface");
        drop(told);

        // The kernel first asks the link whether somebody else has the address, and uses it only then.
        ip("address add fd00:1::5/64 dev one");
        node.has("fd00:1::5").await;
        assert!(!ip("-6 address show dev one to fd00:1::5").contains("tentative"));

        ip("address add 10.1.0.5/24 dev one");
        ip("route add default via 10.1.0.1");
        node.has("10.1.0.5").await;
        ip("address flush dev one scope global");
        node.has("").await;
        node.stop().await;
    });
}

#[test]
fn routes_of_other_tables_and_to_other_places_do_not_count() {
    in_namespace("routes_of_other_tables_and_to_other_places_do_not_count", async || {
        add_interface("one");
        ip("address add 10.1.0.5/24 dev one");
        ip("route add default via 10.1.0.1 table 100");
        ip("route add 10.9.0.0/16 via 10.1.0.1");
        ip("route add unreachable default metric 1");
        let mut node = Node::start(AddressSource::DefaultRoute);
        node.has("").await;
        // Two ways with equal weight are a default route, too.
        add_interface("two");
        ip("address add 10.2.0.5/24 dev two");
        ip("route add default metric 5 nexthop via 10.2.0.1 nexthop via 10.1.0.1");
        node.has("10.2.0.5").await;
        ip("link set two down");
        node.has("10.1.0.5").await;
        node.stop().await;
    });
}

#[test]
fn many_changes_at_once_are_one() {
    in_namespace("many_changes_at_once_are_one", async || {
        add_interface("one");
        ip("address add 10.1.0.5/24 dev one");
        ip("address add 10.1.0.6/24 dev one");
        ip("route add default via 10.1.0.1");
        let mut node = Node::start(AddressSource::DefaultRoute);
        node.has("10.1.0.5").await;

        let changes = Arc::new(AtomicUsize::new(0));
        let mut watch = node.address.clone();
        watch.mark_unchanged();
        let count = Arc::clone(&changes);
        let counter = tokio::spawn(async move {
            while watch.changed().await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let batch: String = (0..5000)
            .map(|number| format!("route replace default via 10.1.0.1 src 10.1.0.{}\n", 5 + (number + 1) % 2))
            .collect();
        let start = Instant::now();
        ip_batch(&batch);
        ip("address add 10.2.0.5/24 dev one");
        ip("route replace default via 10.2.0.1 src 10.2.0.5");
        node.has("10.2.0.5").await;
        let elapsed = start.elapsed();
        node.stop().await;
        counter.await.unwrap();
        // Changes are collected for 50 ms each time, so there cannot be more than these.
        let most = usize::try_from(elapsed.as_millis() / 50).unwrap() + 1;
        let changes = changes.load(Ordering::Relaxed);
        assert!((1..=most).contains(&changes), "{changes} changes were published in {elapsed:?}");
    });
}

#[test]
fn nothing_runs_while_nothing_changes() {
    in_namespace("nothing_runs_while_nothing_changes", async || {
        add_interface("one");
        ip("address add 10.1.0.5/24 dev one");
        ip("route add default via 10.1.0.1");
        let mut node = Node::start(AddressSource::DefaultRoute);
        node.has("10.1.0.5").await;
        // The kernel finishes with the new link (addresses of IPv6) some time after that, which is news, too. Not a
        // wait for luck: whatever ticks ticks in every one of these periods.
        let quietest = (0..5).map(|_| switches_during(Duration::from_secs(1))).min().unwrap();
        assert!(quietest < 5, "{quietest} context switches in a second of idling");
        node.stop().await;
    });
}

/// How often a thread of this process went to sleep of its own accord within a time.
fn switches_during(time: Duration) -> u64 {
    let count = || -> u64 {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let status = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap());
        status
            .map(|status| {
                let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
                line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
            })
            .sum()
    };
    let before = count();
    std::thread::sleep(time);
    count() - before
}

#[test]
fn a_fixed_address_is_there_at_once_and_stays() {
    in_namespace("a_fixed_address_is_there_at_once_and_stays", async || {
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let network = Network::new(AddressSource::Fixed(address));
        assert_eq!(*network.address().borrow(), Some(address));
        let mut node = Node::start(AddressSource::Fixed(address));
        let done = |dump: &[polis_supervisor::NodeReport]| {
            dump.iter().any(|report| report.state == polis_supervisor::State::Done)
        };
        timeout(DEADLINE, node.supervisor.observer().wait_until(done)).await.unwrap();
        node.has("192.0.2.7").await;
        node.stop().await;
    });
}
