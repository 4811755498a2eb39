//! Looks for the other members when there is no leader: at every address that anybody has named, by connecting to it and seeing who
//! answers. The key decides; an address is a hint.
//!
//! Where an operator says that a member is, it is looked for in any case: he knows of one that has moved and that nobody has heard from
//! since, and the cluster would go on dialing it where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use polis_consensus::Consensus;
use polis_identity::NodeId;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer, NODE_MANAGEMENT_PORT};
use polis_supervisor::{Context, RunnableResult};
use tokio::time::{sleep, timeout};

use super::never;
use crate::identity::Identity;
use crate::shared::{Shared, changed};

/// How long there must be no leader before others are looked for: longer than an election takes.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_secs(3);

/// Pause between two looks where an operator says that a member is, while there is a leader: whoever is not there may have been off
/// for long.
const TOLD_INTERVAL: Duration = Duration::from_secs(15);

/// How long an address may take to answer. Those of one node are asked at the same time.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Ports at which a node shows who it is.
const PORTS: [u16; 2] = [CURATOR_PORT, NODE_MANAGEMENT_PORT];

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let shown = ClientIdentity::node(&identity.key, &identity.certificate)?;
    context.healthy();
    let look = async {
        tokio::select! {
            never = look_when_lost(&shared, &identity, &shown) => never,
            never = look_where_told(&shared, &identity, &shown) => never,
        }
    };
    never(context.unless_cancelled(look).await?)
}

async fn look_when_lost(shared: &Shared, identity: &Identity, shown: &ClientIdentity) -> Infallible {
    loop {
        until_lost(shared, true).await;
        // An election takes its time, and needs nobody's help.
        let _ = timeout(PATIENCE, until_lost(shared, false)).await;
        while is_lost(shared) {
            // Who has no member only asks for the leader, and does that at all addresses.
            let has_member = shared.settings.control_plane.member().borrow().is_some();
            let members = if has_member { shared.addresses.known().other_members() } else { BTreeSet::new() };
            join_all(members.into_iter().map(|node_id| prove(shared, identity, shown, node_id, &[]))).await;
            tokio::select! {
                () = until_lost(shared, false) => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }
}

/// Looks for each node of which an operator says where it is, until it is found; and again when he says something else.
async fn look_where_told(shared: &Shared, identity: &Identity, shown: &ClientIdentity) -> Infallible {
    let mut operator = shared.settings.peers.clone();
    let mut member = shared.settings.control_plane.member();
    loop {
        let told = operator.borrow_and_update().clone();
        let has_member = member.borrow_and_update().is_some();
        let look = async {
            let told = told.iter().filter(|_| has_member);
            let mut missing: BTreeMap<NodeId, Vec<IpAddr>> = BTreeMap::new();
            told.for_each(|(node_id, address)| missing.entry(*node_id).or_default().push(*address));
            while !missing.is_empty() {
                let proofs = missing.iter().map(|(node_id, told)| prove(shared, identity, shown, *node_id, told));
                let mut proofs = join_all(proofs).await.into_iter();
                missing.retain(|_, _| proofs.next() == Some(false));
                if !missing.is_empty() {
                    sleep(TOLD_INTERVAL).await;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = changed(&mut operator) => {}
            () = changed(&mut member) => {}
            () = look => {}
        }
    }
}

/// Finds out at which of its addresses a node is, if there is a choice. Returns whether that is known.
async fn prove(shared: &Shared, identity: &Identity, shown: &ClientIdentity, node_id: NodeId, told: &[IpAddr]) -> bool {
    let mut candidates = shared.addresses.known().candidates(&node_id);
    // Those who keep the addresses hear of an operator's word at the same time, and perhaps later.
    candidates.extend(told.iter().filter(|address| !candidates.contains(address)).copied().collect::<Vec<_>>());
    if candidates.len() < 2 {
        return true;
    }
    let connector = Connector::new(shown, ExpectedServer::Node(identity.authority.clone(), node_id));
    let asked = candidates.iter().map(|address| answers(&connector, *address));
    let answers = join_all(asked).await;
    let proven = candidates.iter().zip(answers).find(|(_, answers)| *answers).map(|(address, _)| *address);
    if let Some(address) = proven {
        shared.addresses.change(|known| known.prove(node_id, address));
    }
    proven.is_some()
}

/// Whether the node that is expected answers at an address.
async fn answers(connector: &Connector, address: IpAddr) -> bool {
    let mut asked: FuturesUnordered<_> = PORTS
        .map(|port| timeout(ANSWER_DEADLINE, connector.connect(SocketAddr::new(address, port))))
        .into_iter()
        .collect();
    while let Some(answer) = asked.next().await {
        if matches!(answer, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// Whether there is no leader, as far as this node can see: its consensus member if it has one, else its heartbeats.
pub(crate) fn is_lost(shared: &Shared) -> bool {
    let member = shared.settings.control_plane.member().borrow().clone();
    match member {
        Some(member) => member.status().borrow().leader.is_none(),
        None => !shared.contact.borrow().established,
    }
}

/// Waits until there is no leader, or until there is one.
pub(crate) async fn until_lost(shared: &Shared, wanted: bool) {
    let mut member = shared.settings.control_plane.member();
    let mut contact = shared.contact.subscribe();
    loop {
        contact.borrow_and_update();
        let present = member.borrow_and_update().clone();
        let mut status = present.as_ref().map(Consensus::status);
        if let Some(status) = &mut status {
            status.borrow_and_update();
        }
        if is_lost(shared) == wanted {
            return;
        }
        let of_member = async {
            match &mut status {
                Some(status) => {
                    if status.wait_for(|status| status.leader.is_none() == wanted).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed(&mut member) => {}
            () = changed(&mut contact), if present.is_none() => {}
            () = of_member => {}
        }
    }
}
