//! Whether this node leads, for how long, and what others are told if it does not.

use std::net::IpAddr;

use polis_identity::NodeId;
use polis_proto::rpc_detail::LeaderHint;
use polis_rpc::{CURATOR_PORT, detail};
use tokio::sync::watch;
use tonic::Status;

use crate::LeaderState;
use crate::leadership::Leadership;

/// The time in which this node leads, for calls that last.
pub(super) struct Tenure {
    pub(super) leader: LeaderState,
    leadership: watch::Receiver<Leadership>,
}

impl Tenure {
    /// The present one.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, naming the leader, if this node does not lead.
    pub(super) fn of(mut leadership: watch::Receiver<Leadership>) -> Result<Self, Status> {
        let leader = {
            let present = leadership.borrow_and_update();
            present.leader().cloned().ok_or_else(|| no_leader(&present))?
        };
        Ok(Self { leader, leadership })
    }

    /// Waits until this node no longer leads, or leads anew. Returns what those are told whom it served. May be cancelled at any
    /// time.
    pub(super) async fn ended(&mut self) -> Status {
        let own = Leadership::Leader(self.leader.clone());
        match self.leadership.wait_for(|present| *present != own).await {
            Ok(present) => no_leader(&present),
            Err(_) => Status::unavailable("this node is stopping"),
        }
    }
}

/// What a client is told that this node cannot serve.
pub(super) fn no_leader(leadership: &Leadership) -> Status {
    match leadership {
        Leadership::Unsettled => Status::unavailable(
            "no leader is known: there is none yet, or this node has no contact with a quorum of the cluster; ask again, or \
             another node",
        ),
        Leadership::Follower { leader, address } => {
            let status = Status::unavailable(match address {
                Some(address) => format!("{leader} at {address} leads the cluster, not this node"),
                None => format!("{leader} leads the cluster, not this node; where it is, is not known here"),
            });
            detail::with_leader(status, &hint(leader, *address))
        }
        Leadership::Leader(_) => Status::unavailable("this node has just begun to lead the cluster; ask again"),
    }
}

fn hint(leader: &NodeId, address: Option<IpAddr>) -> LeaderHint {
    LeaderHint {
        node_id: leader.to_string(),
        host: address.map(|address| address.to_string()).unwrap_or_default(),
        port: CURATOR_PORT.into(),
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_follower_names_the_leader() {
        let id = NodeId::of(&NodeKey::generate().public());
        for (address, host) in [(Some("127.1.2.3".parse().unwrap()), "127.1.2.3"), (None, "")] {
            let status = no_leader(&Leadership::Follower { leader: id, address });
            assert_eq!(status.code(), Code::Unavailable);
            let expected = LeaderHint { node_id: id.to_string(), host: host.into(), port: 7835 };
            assert_eq!(detail::leader(&status), Some(expected));
        }
        let status = no_leader(&Leadership::Unsettled);
        assert_eq!((status.code(), detail::leader(&status)), (Code::Unavailable, None));
    }

    #[tokio::test]
    async fn who_does_not_lead_has_no_tenure() {
        let leadership = watch::Sender::new(Leadership::Unsettled);
        assert_eq!(Tenure::of(leadership.subscribe()).err().map(|status| status.code()), Some(Code::Unavailable));
    }
}
