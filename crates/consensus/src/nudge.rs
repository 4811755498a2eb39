//! Spares the only member of a cluster the wait for its own election after a restart.
//!
//! A member that is started waits for one to two election timeouts for others who might lead, and only then elects itself; with
//! the timing for a network that is up to half a second in which nothing can be written. When there is nobody else, the wait is
//! for nothing, and raft has a message that ends it: the one with which a leader hands over. It is sent to the member by
//! itself, over the peer port, as any other message of raft. It can do no harm: whoever gets it asks for votes at once, and
//! needs a majority as always. When etcd does not take it, it elects itself later.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::consensus::Inner;
use crate::dialer::outer_leg;
use crate::health::Run;
use crate::http;
use crate::peer_url::PEER_PORT;
use crate::version::Version;

/// Attempts, and the time between two: the member must have read its log before it knows that it may vote.
const ATTEMPTS: u32 = 20;

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// How long one attempt may take, on loopback.
const DEADLINE: Duration = Duration::from_millis(200);

/// Number of the message, `MsgTimeoutNow` (etcd's `raft.proto`, the same from 3.4 to 3.6).
const TIMEOUT_NOW: u8 = 14;

/// The oldest cluster that etcd 3.4 to 3.6 speak with; they check it.
const MIN_CLUSTER_VERSION: &str = "3.0.0";

/// Sends the message once etcd serves its peers, until there is a leader or the attempts are used up. For a member that was the
/// only one when it last answered.
pub(crate) async fn nudge(inner: &Inner, listen: IpAddr, version: Version) {
    let (member, cluster) = {
        let status = inner.status.borrow();
        let (Some(member), Some(cluster)) = (status.member_id, status.cluster_id) else { return };
        let [only] = &status.members[..] else { return };
        if only.id != member || only.is_learner {
            return;
        }
        (member, cluster)
    };
    let mut child = inner.child.subscribe();
    let is_serving = |run: &Run| run.serving_peers;
    let Ok(_) = child.wait_for(|child| child.run.as_ref().is_some_and(is_serving)).await else { return };
    let fields = [
        ("Content-Type", "application/protobuf".to_owned()),
        ("X-Server-From", format!("{member:x}")),
        ("X-Server-Version", version.to_string()),
        ("X-Min-Cluster-Version", MIN_CLUSTER_VERSION.to_owned()),
        ("X-Etcd-Cluster-ID", format!("{cluster:x}")),
    ];
    for _ in 0..ATTEMPTS {
        let sent = timeout(DEADLINE, send(inner, SocketAddr::new(listen, PEER_PORT), &fields, &message(member))).await;
        if let Ok(Err(error)) = &sent {
            tracing::debug!("etcd was not told that it is alone: {error}");
        }
        if child.borrow().run.as_ref().is_none_or(|run| run.electing_since.is_none() && run.serving) {
            return;
        }
        sleep(PAUSE).await;
    }
}

async fn send(inner: &Inner, address: SocketAddr, fields: &[(&str, String)], message: &[u8]) -> io::Result<()> {
    let stream = inner.prober.connect(inner.identity_address, outer_leg(address).await?).await?;
    http::post(stream, "/raft", fields, message).await
}

/// The message from a member to itself: its type, to whom, from whom. Without a term it is of whatever term it meets.
fn message(member: u64) -> Vec<u8> {
    let mut message = vec![1 << 3, TIMEOUT_NOW];
    for tag in [2 << 3, 3 << 3] {
        message.push(tag);
        let mut rest = member;
        while rest > 0x7f {
            message.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        message.push(rest as u8);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_as_protobuf_has_it() {
        assert_eq!(message(1), [8, 14, 16, 1, 24, 1]);
        assert_eq!(message(300), [8, 14, 16, 0xac, 2, 24, 0xac, 2]);
        assert_eq!(message(u64::MAX).len(), 2 + 2 * 11);
    }
}
