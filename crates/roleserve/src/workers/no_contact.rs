//! Says so when this node has had no contact with the leader for so long that the cluster holds it for silent.

use std::sync::Arc;

use polis_condition::{Conditions, Severity};
use polis_curator::HEARTBEAT_TIMEOUT;
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;
use tokio::time::timeout;

use super::never;
use crate::contact::Contact;
use crate::shared::{Shared, changed};

/// Name of the condition that is raised while this node has no contact with the leader of its cluster.
pub const NO_CONTACT: &str = "no-contact-with-leader";

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    shared.identity(&context).await?;
    context.healthy();
    let mut contact = shared.contact.subscribe();
    let watch = async {
        loop {
            until(&mut contact, false).await;
            if timeout(HEARTBEAT_TIMEOUT, until(&mut contact, true)).await.is_err() {
                complain(context.conditions(), &mut contact).await;
            }
        }
    };
    never(context.unless_cancelled(watch).await?)
}

/// Raises the condition, with the present reason, until there is contact.
async fn complain(conditions: &Conditions, contact: &mut watch::Receiver<Contact>) {
    loop {
        let reason = {
            let contact = contact.borrow_and_update();
            if contact.established {
                break;
            }
            contact.last_failure.clone().unwrap_or_else(|| "it has not been tried yet".to_owned())
        };
        conditions.raise(
            NO_CONTACT,
            Severity::Error,
            format!(
                "this node has no contact with the leader of its cluster, and the others hold it for silent: {reason}. It goes on \
                 with what it knew last, and refuses other nodes what could be out of date"
            ),
            "start the other members of the consensus, or repair the network; if they have moved, tell where they are with \
             `polis node peers set`",
        );
        changed(contact).await;
    }
    conditions.clear(NO_CONTACT);
}

async fn until(contact: &mut watch::Receiver<Contact>, established: bool) {
    if contact.wait_for(|contact| contact.established == established).await.is_err() {
        // The sender is in what is shared.
        std::future::pending::<()>().await;
    }
}
