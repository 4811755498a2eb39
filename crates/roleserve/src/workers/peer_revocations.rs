//! Keeps this node's consensus member from speaking to members that were removed: hands the list of what the peers' authority has
//! revoked to etcd as soon as it changes in the cluster, and keeps it with the credentials.

use std::sync::Arc;

use polis_consensus::{Change, Consensus, PeerPki};
use polis_curator::layout;
use polis_identity::RevocationList;
use polis_supervisor::{BoxError, Context, RunnableResult, with_causes};

use crate::identity::Identity;
use crate::pause::Pause;
use crate::shared::{Shared, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    context.healthy();
    let mut member = shared.settings.control_plane.member();
    loop {
        let present = member.borrow_and_update().clone();
        let follow = async {
            match &present {
                Some(present) => follow(&shared, &context, &identity, present).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            cancelled = context.cancelled() => return Err(cancelled.into()),
            () = changed(&mut member) => {}
            error = follow => return Err(error),
        }
    }
}

/// Follows the list in the cluster until something fails that another life may do better.
async fn follow(shared: &Shared, context: &Context, identity: &Identity, member: &Consensus) -> BoxError {
    let (root, key) = (member.kv_root(), layout::peer_revocation_list());
    let mut pause = Pause::default();
    loop {
        member.ready().await;
        let found = match root.get(&key).await {
            Ok(Some(found)) => found,
            // It is there from the birth of the cluster on.
            Ok(None) => {
                pause.wait().await;
                continue;
            }
            Err(error) => {
                tracing::debug!(reason = with_causes(&error), "cannot read which consensus members are revoked");
                pause.wait().await;
                continue;
            }
        };
        pause.reset();
        let mut watch = root.watch_key(&key, found.mod_revision);
        let mut list = found.value;
        loop {
            if let Err(error) = take(shared, context, identity, member, list).await {
                return error;
            }
            let changes = match watch.next().await {
                Ok(changes) => changes,
                // It is read again.
                Err(_) => break,
            };
            let newest = changes.into_iter().rev().find_map(|change| match change {
                Change::Put(pair) => Some(pair.value),
                Change::Delete { .. } => None,
            });
            match newest {
                Some(newest) => list = newest,
                None => break,
            }
        }
    }
}

/// Hands a list on, first to etcd: what it keeps out is out, also should the disk fail.
async fn take(
    shared: &Shared,
    context: &Context,
    identity: &Identity,
    member: &Consensus,
    list: Vec<u8>,
) -> Result<(), BoxError> {
    let (key, member) = (identity.key.clone(), member.clone());
    shared
        .on_member_files(context, move |_, layout| {
            let file = &layout.data.etcd.credentials;
            // Nothing is stored for a member that is being put away.
            let Some(known) = PeerPki::load(file, &key)? else { return Ok(()) };
            let list = match RevocationList::read(list, known.authority_certificate()) {
                Ok(list) => list,
                Err(error) => {
                    tracing::warn!(
                        reason = with_causes(&error),
                        "ignored a list of revoked consensus members that is not the cluster's"
                    );
                    return Ok(());
                }
            };
            member.replace_revocations(list.clone())?;
            if known.revocations().number() < list.number() {
                known.with_revocations(list).store(file, "etcd/credentials/revocations")?;
            }
            Ok(())
        })
        .await
}
