//! Members that have lost each other say on their link who they are and where.
//!
//! A member announces itself while there is no leader, and once in a while when it hears another do so: whoever announces itself
//! has lost the others, and they need not have noticed. Nobody else says anything, and while all is well nobody does.
//!
//! A node whose data are locked takes part as well ([`announce_while_locked`]), as far as it knows who it is: it looks for the
//! others, which may have moved while it was off, and they answer.

mod locked;
mod message;
mod schedule;

pub use locked::{LockedNode, announce_while_locked};

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use polis_identity::{ClusterId, JoinKey, NodeId, PublicKey};
use polis_network::Announcements;
use polis_storage::{AnnouncementCounter, Layout};
use polis_supervisor::{BoxError, Context, RunnableResult, with_causes};
use polis_unlock::SignedMemberList;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::kept::Kept;
use crate::shared::{Shared, changed};
use crate::workers::locate::{is_lost, until_lost};
use message::{Announcement, Judge, Unbelievable};
use schedule::{BURST_PAUSE, Budget, Schedule};

/// Whether a node announces itself on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// It does, unless its address is one of loopback: there, nobody else is on the link.
    WhereOthersAre,
    /// It does everywhere.
    Everywhere,
    /// It does not, and does not listen.
    Nowhere,
}

/// Numbers that are taken at a time: so many announcements cost one write to the disk, an hour of them.
const NUMBERS: u64 = 1200;

/// Pause before sockets that failed are opened again, unless the address changes before.
const REOPEN_PAUSE: Duration = Duration::from_secs(10);

impl Announce {
    const fn applies(self, address: IpAddr) -> bool {
        match self {
            Self::WhereOthersAre => !address.is_loopback(),
            Self::Everywhere => true,
            Self::Nowhere => false,
        }
    }
}

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    context.healthy();
    let speaker = Speaker {
        cluster_id: identity.cluster_id(),
        public_key: identity.public_key(),
        join_key: identity.join_key.clone(),
    };
    let mut worker = Worker::new(&*shared, &context, &speaker, Numbers::of(&shared.layout));
    context.unless_cancelled(worker.serve(shared.settings.address.clone(), shared.settings.announce)).await?
}

/// Whom a worker works for.
trait Host: Sync {
    /// The members of the cluster, as far as they are known.
    fn members(&self) -> watch::Receiver<Option<Arc<SignedMemberList>>>;

    /// Whether this node has lost the others.
    fn is_lost(&self) -> bool;

    /// Waits until this node has lost the others, or has not.
    fn until_lost(&self, wanted: bool) -> impl Future<Output = ()> + Send;

    /// A member is at this address.
    fn heard(&self, node: NodeId, address: IpAddr);
}

impl Host for Shared {
    fn members(&self) -> watch::Receiver<Option<Arc<SignedMemberList>>> {
        self.members.subscribe()
    }

    fn is_lost(&self) -> bool {
        is_lost(self)
    }

    async fn until_lost(&self, wanted: bool) {
        until_lost(self, wanted).await;
    }

    fn heard(&self, node: NodeId, address: IpAddr) {
        self.addresses.change(|known| known.announce(node, address));
    }
}

/// Who announces itself.
struct Speaker {
    cluster_id: ClusterId,
    public_key: PublicKey,
    join_key: JoinKey,
}

struct Worker<'a, H> {
    host: &'a H,
    context: &'a Context,
    speaker: &'a Speaker,
    numbers: Numbers,
    judge: Judge,
    /// Whether the log says that another version of the format is spoken on this link.
    told_of_other_version: bool,
}

/// Numbers of announcements, none of which is used twice, also over starts.
struct Numbers {
    kept: Kept<AnnouncementCounter>,
    /// Those that are taken and not used yet; absent before the first is needed, which most nodes never do.
    free: Option<Range<u64>>,
}

impl Numbers {
    fn of(layout: &Layout) -> Self {
        let file = layout.esp.polis.announced.clone();
        Self { kept: Kept::new(file, "the counter of this node's announcements", "announcements-damaged"), free: None }
    }

    async fn next(&mut self, context: &Context) -> Result<u64, BoxError> {
        let mut free = match self.free.take() {
            Some(free) => free,
            None => {
                let used = self.kept.load(context).await?.unwrap_or_default().reserved;
                used..used
            }
        };
        if free.is_empty() {
            let reserved = free.end.saturating_add(NUMBERS);
            self.kept.store(context, AnnouncementCounter { reserved }, "announced").await?;
            free.end = reserved;
        }
        let number = free.next().ok_or("there are no numbers of announcements left")?;
        self.free = Some(free);
        Ok(number)
    }
}

impl<'a, H: Host> Worker<'a, H> {
    fn new(host: &'a H, context: &'a Context, speaker: &'a Speaker, numbers: Numbers) -> Self {
        let judge = Judge::new(speaker.cluster_id, NodeId::of(&speaker.public_key));
        Self { host, context, speaker, numbers, judge, told_of_other_version: false }
    }

    /// Serves until the disk fails.
    async fn serve(&mut self, mut address: watch::Receiver<Option<IpAddr>>, announce: Announce) -> RunnableResult {
        loop {
            let present = *address.borrow_and_update();
            let own = present.filter(|address| announce.applies(*address));
            let Some(own) = own else {
                changed(&mut address).await;
                continue;
            };
            let ended = match Announcements::open(own) {
                Ok(sockets) => tokio::select! {
                    () = changed(&mut address) => continue,
                    ended = self.take_part(&sockets, own) => ended?,
                },
                Err(error) => error.into(),
            };
            tracing::debug!(reason = with_causes(&*ended), "no announcements on the link for now");
            tokio::select! {
                () = changed(&mut address) => {}
                () = sleep(REOPEN_PAUSE) => {}
            }
        }
    }

    /// Announces and listens until the sockets fail (which is returned) or the disk does (which is the error).
    async fn take_part(&mut self, sockets: &Announcements, own: IpAddr) -> Result<BoxError, BoxError> {
        let mut members = self.host.members();
        let mut schedule = Schedule::default();
        let mut budget = Budget::new(Instant::now());
        loop {
            let listed = members.borrow_and_update().clone();
            if let Some(listed) = &listed {
                self.judge.set_members(listed.list());
            }
            let own_id = NodeId::of(&self.speaker.public_key);
            let is_member = listed.is_some_and(|listed| listed.list().member(&own_id).is_some());
            let is_lost = self.host.is_lost();
            schedule.see(is_member && is_lost, Instant::now());
            let due = schedule.due.filter(|_| is_member);
            tokio::select! {
                Ok(()) = members.changed() => {}
                () = self.host.until_lost(!is_lost) => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    schedule.sent(Instant::now());
                    let announcement = self.announcement(own).await?;
                    if let Err(error) = sockets.send(&announcement).await {
                        return Ok(error.into());
                    }
                }
                datagram = sockets.receive() => {
                    let datagram = match datagram {
                        Ok(datagram) => datagram,
                        Err(error) => return Ok(error.into()),
                    };
                    if self.hear(&datagram) {
                        schedule.answer(Instant::now());
                    }
                    if budget.spend(Instant::now()) {
                        sleep(BURST_PAUSE).await;
                    }
                }
            }
        }
    }

    async fn announcement(&mut self, own: IpAddr) -> Result<Vec<u8>, BoxError> {
        let announcement = Announcement {
            cluster_id: self.speaker.cluster_id,
            public_key: self.speaker.public_key,
            counter: self.numbers.next(self.context).await?,
            address: own,
        };
        Ok(announcement.sign(&self.speaker.join_key))
    }

    /// Takes what was heard; returns whether another member has announced itself.
    fn hear(&mut self, datagram: &[u8]) -> bool {
        match self.judge.hear(datagram) {
            Ok(Some(Announcement { public_key, address, .. })) => {
                let node = NodeId::of(&public_key);
                tracing::debug!(%node, %address, "a member has announced itself on this link");
                self.host.heard(node, address);
                true
            }
            Ok(None) => false,
            Err(reason) => {
                // Said once, and not as a warning, as anybody can send this. Nothing depends on announcements alone.
                if matches!(reason, Unbelievable::Version { .. })
                    && !std::mem::replace(&mut self.told_of_other_version, true)
                {
                    tracing::info!(
                        reason = with_causes(&reason),
                        "announcements of another version on this link are ignored"
                    );
                }
                tracing::debug!(reason = with_causes(&reason), "ignored an announcement on this link");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_storage::Disk;
    use polis_storage::simulation::SimulatedDisk;
    use polis_supervisor::testing::Harness;
    use polis_supervisor::{BackoffSettings, Settings, runnable};
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn no_number_is_used_twice_over_starts() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::default());
        let layout = Layout::new(disk);
        layout.prepare_start().unwrap();
        let used = watch::Sender::new(Vec::new());
        // Each life of the runnable is a start: it uses a few numbers and dies.
        let root = {
            let (layout, used) = (layout.clone(), used.clone());
            runnable(move |context: Context| {
                let (layout, used) = (layout.clone(), used.clone());
                async move {
                    context.run("announcer", move |context: Context| {
                        let (file, used) = (layout.esp.polis.announced.clone(), used.clone());
                        async move {
                            let mut numbers = Numbers { kept: Kept::new(file, "the counter", "damaged"), free: None };
                            for _ in 0..3 {
                                let number = numbers.next(&context).await?;
                                used.send_modify(|used| used.push(number));
                            }
                            Err("again".into())
                        }
                    })?;
                    context.healthy();
                    Err(context.cancelled().await.into())
                }
            })
        };
        let backoff = BackoffSettings { initial: Duration::from_millis(5), ..BackoffSettings::default() };
        let harness = Harness::start_with(Settings { backoff, ..Settings::default() }, root);
        let mut enough = used.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(20), enough.wait_for(|used| used.len() >= 9));
        let numbers = waited.await.unwrap().unwrap().clone();
        harness.finish().await;
        assert!(numbers.is_sorted_by(|first, second| first < second), "{numbers:?}");
        assert_eq!(numbers[..3], [0, 1, 2]);
        assert_eq!(numbers[3..6], [NUMBERS, NUMBERS + 1, NUMBERS + 2]);
    }

    #[test]
    fn loopback_is_a_link_of_its_own() {
        for (announce, address, expected) in [
            (Announce::WhereOthersAre, "10.0.0.1", true),
            (Announce::WhereOthersAre, "127.1.0.1", false),
            (Announce::WhereOthersAre, "::1", false),
            (Announce::Everywhere, "127.1.0.1", true),
            (Announce::Nowhere, "10.0.0.1", false),
        ] {
            assert_eq!(announce.applies(address.parse().unwrap()), expected, "{announce:?} {address}");
        }
    }
}
