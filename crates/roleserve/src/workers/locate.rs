//! Looks for the other members when there is no leader: at every address that anybody has named, by connecting to it and seeing who
//! answers. The key decides; an address is a hint.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
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

/// How long an address may take to answer. Those of one node are asked at the same time.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Ports at which a node shows who it is.
const PORTS: [u16; 2] = [CURATOR_PORT, NODE_MANAGEMENT_PORT];

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let shown = ClientIdentity::node(&identity.key, &identity.certificate)?;
    context.healthy();
    never(context.unless_cancelled(look_when_lost(&shared, &identity, &shown)).await?)
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
            let proofs: FuturesUnordered<_> =
                members.into_iter().map(|node_id| prove(shared, identity, shown, node_id)).collect();
            proofs.collect::<()>().await;
            tokio::select! {
                () = until_lost(shared, false) => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }
}

/// Finds out at which of its addresses a node is, if there is a choice.
async fn prove(shared: &Shared, identity: &Identity, shown: &ClientIdentity, node_id: NodeId) {
    let candidates = shared.addresses.known().candidates(&node_id);
    if candidates.len() < 2 {
        return;
    }
    let connector = Connector::new(shown, ExpectedServer::Node(identity.authority.clone(), node_id));
    let asked = candidates.iter().map(|address| answers(&connector, *address));
    let answers = futures::future::join_all(asked).await;
    let proven = candidates.iter().zip(answers).find(|(_, answers)| *answers).map(|(address, _)| *address);
    if let Some(address) = proven {
        shared.addresses.change(|known| known.prove(node_id, address));
    }
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
