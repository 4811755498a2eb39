//! Puts together whom the cluster has let go: on a node with a curator that is what the curator sees in etcd, on any other what
//! the leader has told.

use std::sync::Arc;

use polis_curator::Curator;
use polis_rpc::{News, Trust};
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;

use super::never;
use crate::contact::Contact;
use crate::shared::{Shared, TrustParts, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    context.healthy();
    let mut curator = shared.settings.control_plane.curator();
    let merge = async {
        loop {
            let present = curator.borrow_and_update().clone();
            let publish = async {
                match &present {
                    Some(present) => forward(&shared, present).await,
                    None => combine(&shared).await,
                }
            };
            tokio::select! {
                () = changed(&mut curator) => {}
                () = publish => {}
            }
        }
    };
    never(context.unless_cancelled(merge).await?)
}

/// Hands on what the curator sees, for as long as it is awaited.
async fn forward(shared: &Shared, curator: &Curator) {
    let mut trust = curator.nodes().trust();
    loop {
        let now = trust.borrow_and_update().clone();
        publish(&shared.trust, now);
        changed(&mut trust).await;
    }
}

/// Puts together what the leader has told, for as long as it is awaited.
async fn combine(shared: &Shared) {
    let (mut parts, mut contact) = (shared.trust_parts.subscribe(), shared.contact.subscribe());
    loop {
        let now = trust(&parts.borrow_and_update(), &contact.borrow_and_update());
        publish(&shared.trust, Arc::new(now));
        tokio::select! {
            () = changed(&mut parts) => {}
            () = changed(&mut contact) => {}
        }
    }
}

/// What the leader has told counts in any case. That it would have told more is sure only while it answers and both streams
/// have told all that there was when they began.
fn trust(parts: &TrustParts, contact: &Contact) -> Trust {
    Trust {
        revocations: parts.revocations.clone(),
        removed_nodes: parts.removed_nodes.clone(),
        news: match contact.established {
            false => News::CutOff,
            true if parts.orders_fresh && parts.nodes_fresh => News::UpToDate,
            true => News::CatchingUp,
        },
    }
}

fn publish(sender: &watch::Sender<Arc<Trust>>, trust: Arc<Trust>) {
    sender.send_if_modified(|known| {
        let news = **known != *trust;
        *known = trust;
        news
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_missed_by_who_is_up_to_date() {
        for bits in 0..8_u8 {
            let parts = TrustParts { orders_fresh: bits & 1 != 0, nodes_fresh: bits & 2 != 0, ..TrustParts::default() };
            let contact = Contact { established: bits & 4 != 0, ..Contact::default() };
            let expected = match bits {
                7 => News::UpToDate,
                4..7 => News::CatchingUp,
                _ => News::CutOff,
            };
            assert_eq!(trust(&parts, &contact).news, expected, "{bits:03b}");
        }
    }
}
