//! Three raw etcds with mutual TLS between them: what a cluster is measured against.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use etcd_client::{Channel, Client};
use polis_testkit::address::TestAddress;
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::transport::Endpoint;

use crate::BenchError;
use crate::child::{Child, PATIENCE};
use crate::contestant::{ALL, Contestant, MEMBERS};
use crate::peer_certificates::{PeerAuthority, files};
use crate::place::Place;
use crate::poll;
use crate::raw_etcd::{PEER_PORT, SOCKET};

const KEY: &str = "bench";

/// How the etcds are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Everything as it comes.
    Default,
    /// A second member is not refused for the five seconds after the first.
    Off,
}

impl Check {
    /// What it is called in the table.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Default => "raw etcd, defaults",
            Self::Off => "raw etcd, no strict check",
        }
    }
}

/// Three etcds.
pub(crate) struct RawCluster<'a> {
    place: &'a Place,
    check: Check,
    members: Vec<Member>,
}

/// Place of an etcd, and the etcd if it runs.
struct Member {
    /// Before its directory, which is removed after it has ended.
    child: Option<Child>,
    address: TestAddress,
    directory: TempDir,
    /// Open for its name under /proc, which is short: a socket's address is, and the directory may be deep.
    _handle: File,
    client: Client,
}

impl<'a> RawCluster<'a> {
    async fn new(place: &'a Place, check: Check) -> Result<Self, BenchError> {
        let authority = PeerAuthority::new()?;
        let mut members = Vec::new();
        for _ in 0..MEMBERS {
            let (address, directory) = (TestAddress::claim(), place.scratch()?);
            authority.equip(directory.path(), address.ip)?;
            let handle = File::open(directory.path())?;
            let socket = format!("unix:///proc/self/fd/{}/{SOCKET}", handle.as_raw_fd());
            let channel = Endpoint::from_shared(socket)?.connect_lazy();
            let client = Client::from_channel(Channel::Tonic(channel), None).await?;
            members.push(Member { child: None, address, directory, _handle: handle, client });
        }
        Ok(Self { place, check, members })
    }

    /// One etcd that answers, and places for two more.
    pub(crate) async fn with_one_member(place: &'a Place, check: Check) -> Result<Self, BenchError> {
        let mut cluster = Self::new(place, check).await?;
        cluster.launch_as(0, "new", 1).await?;
        cluster.write_at(0).await?;
        Ok(cluster)
    }

    /// Three etcds that answer.
    pub(crate) async fn with_three_members(place: &'a Place) -> Result<Self, BenchError> {
        let mut cluster = Self::new(place, Check::Default).await?;
        cluster.launch(ALL).await?;
        cluster.whole().await?;
        Ok(cluster)
    }

    /// Adds two members and waits for a write through the second of them. Returns how long that took.
    pub(crate) async fn make_members(&mut self) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        for number in 1..MEMBERS {
            self.add(number).await?;
            self.launch_as(number, "existing", number + 1).await?;
        }
        Ok(self.write_at(MEMBERS - 1).await? - begin)
    }

    /// Has the first member add another, as soon as it does.
    async fn add(&self, number: usize) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        let mut client = self.members[0].client.cluster_client();
        loop {
            match client.member_add([self.peer_url(number)], None).await {
                Ok(_) => return Ok(()),
                // An attempt that failed may have had its effect.
                Err(error) if error.to_string().contains("exists") => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(format!("no member was added: {error}").into()),
                Err(_) => sleep(poll::INTERVAL).await,
            }
        }
    }

    /// The member whom all name as their leader.
    async fn leader(&self) -> Option<usize> {
        let mut found = Vec::new();
        for member in &self.members {
            let status = member.client.maintenance_client().status().await.ok()?;
            found.push((status.header()?.member_id(), status.leader()));
        }
        let leader = found[0].1;
        found.iter().all(|(_, named)| *named == leader).then_some(())?;
        found.iter().position(|(id, _)| *id == leader)
    }

    /// Raft's term.
    pub(crate) async fn term(&self) -> Result<u64, BenchError> {
        Ok(self.members[0].client.maintenance_client().status().await?.raft_term())
    }

    async fn write_at(&self, number: usize) -> Result<Instant, BenchError> {
        self.write_at_any(number, 1).await
    }

    async fn write_at_any(&self, first: usize, count: usize) -> Result<Instant, BenchError> {
        poll::until_success("write to raw etcd", count, |number| {
            let mut client = self.members[first + number].client.kv_client();
            async move { client.put(KEY, "value", None).await.is_ok() }
        })
        .await
    }

    /// Process id of the member with this number.
    pub(crate) fn process(&self, number: usize) -> Result<u32, BenchError> {
        Ok(self.members[number].child.as_ref().ok_or("the etcd does not run")?.id())
    }

    /// Starts a member that knows the first `known` ones.
    async fn launch_as(&mut self, number: usize, state: &str, known: usize) -> Result<(), BenchError> {
        let arguments = self.arguments(number, state, known);
        let member = &mut self.members[number];
        // A killed etcd leaves its socket, and the next one does not start while it is there. Mostly there is none.
        let _ = fs::remove_file(member.directory.path().join(SOCKET));
        let directory = Some(member.directory.path().to_owned());
        let arguments = arguments.into_iter().map(Into::into).collect();
        let log = self.place.log(&format!("etcd-{}", member.address.ip))?;
        member.child = Some(Child::start(&self.place.etcd, arguments, directory, log).await?);
        Ok(())
    }

    fn peer_url(&self, number: usize) -> String {
        format!("https://{}:{PEER_PORT}", self.members[number].address.ip)
    }

    fn arguments(&self, number: usize, state: &str, known: usize) -> Vec<String> {
        let peer_url = self.peer_url(number);
        let cluster: Vec<String> = (0..known).map(|other| format!("member{other}={}", self.peer_url(other))).collect();
        let mut arguments = vec![
            format!("--name=member{number}"),
            "--data-dir=data".to_owned(),
            format!("--listen-client-urls=unix://{SOCKET}"),
            format!("--advertise-client-urls=unix://{SOCKET}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster={}", cluster.join(",")),
            format!("--initial-cluster-state={state}"),
            "--peer-client-cert-auth=true".to_owned(),
            format!("--peer-trusted-ca-file={}", files::AUTHORITY),
            format!("--peer-cert-file={}", files::CERTIFICATE),
            format!("--peer-key-file={}", files::KEY),
        ];
        match self.check {
            Check::Default => {}
            Check::Off => arguments.push("--strict-reconfig-check=false".to_owned()),
        }
        arguments
    }
}

impl Contestant for RawCluster<'_> {
    /// Waits until all members have the same leader and take a write.
    async fn whole(&self) -> Result<usize, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(leader) = self.leader().await {
                for number in 0..MEMBERS {
                    self.write_at(number).await?;
                }
                return Ok(leader);
            }
            sleep(poll::INTERVAL).await;
        }
        Err(format!("three etcds had no leader within {PATIENCE:?}").into())
    }

    async fn write(&self) -> Result<Instant, BenchError> {
        self.write_at_any(0, MEMBERS).await
    }

    async fn launch(&mut self, members: Range<usize>) -> Result<(), BenchError> {
        for number in members {
            // One that has data looks there.
            self.launch_as(number, "new", MEMBERS).await?;
        }
        Ok(())
    }

    fn send_kill(&self, members: Range<usize>) {
        self.members[members].iter().filter_map(|member| member.child.as_ref()).for_each(Child::send_kill);
    }

    fn send_terminate(&self) -> Result<(), BenchError> {
        self.members.iter().filter_map(|member| member.child.as_ref()).try_for_each(Child::send_terminate)
    }

    async fn ended(&mut self, members: Range<usize>) -> Result<Instant, BenchError> {
        for member in &mut self.members[members] {
            if let Some(child) = member.child.take() {
                child.ended().await?;
            }
        }
        Ok(Instant::now())
    }
}
