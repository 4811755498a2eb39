//! Keeps the book of addresses: begins with what the disk has, before there is any contact; hands on what follows from it; and
//! makes the directory durable when it has changed. Whoever brings a newer member list, it is told here to all others.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use polis_storage::ClusterDirectory;
use polis_supervisor::{BoxError, Context, RunnableResult};
use polis_unlock::SignedMemberList;
use polis_unlock_service::{KnownMembers, Members};
use tokio::sync::watch;

use crate::addresses::{Directory, Known, Sighting};
use crate::identity::Identity;
use crate::kept::Kept;
use crate::shared::{Shared, changed};

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let file = shared.layout.esp.polis.cluster_directory.clone();
    let kept = Kept::new(file, "the directory of the cluster's nodes", "directory-damaged");
    let members = shared.members(&context).await?;
    let stored = context.unless_cancelled(begin(&shared, &context, &identity, &kept, &members)).await??;
    context.healthy();
    tokio::select! {
        cancelled = context.cancelled() => Err(cancelled.into()),
        never = inform(&shared, members.watch()) => match never {},
        error = persist(&shared, &context, &kept, stored) => Err(error),
    }
}

/// Reads what an earlier start has kept. A life of this worker before has begun already, and knows more.
async fn begin(
    shared: &Shared,
    context: &Context,
    identity: &Identity,
    kept: &Kept<ClusterDirectory>,
    members: &Members,
) -> Result<Option<ClusterDirectory>, BoxError> {
    let own = identity.public_key();
    let stored = kept.load(context).await?;
    if shared.addresses.known().directory().is_none() {
        let directory =
            stored.as_ref().map_or_else(|| Directory::new(&own), |stored| Directory::of_record(stored, &own));
        let listed = members.known().list.clone();
        shared.addresses.change(|known| {
            known.begin(&own, directory);
            if let Some(listed) = &listed {
                take_hints(known, listed);
            }
        });
    }
    Ok(stored)
}

/// Takes over who the members of a list are, and where they were once. That somebody is not in it says nothing: the leader tells who the
/// members are exactly, and a list may be older than what he has told.
fn take_hints(known: &mut Known, listed: &SignedMemberList) {
    known.change_directory(|directory| {
        for member in listed.list().members() {
            let hint = |address: Option<IpAddr>| Sighting {
                node_id: member.node_id,
                public_key: Some(member.public_key),
                address,
            };
            directory.learn_hint(&hint(None));
            member.addresses.iter().for_each(|address| directory.learn_hint(&hint(Some(*address))));
            directory.add_member(member.node_id);
        }
    });
}

/// Publishes a list that is newer than the one that was published.
fn publish(shared: &Shared, listed: &SignedMemberList) -> bool {
    let epoch = listed.list().epoch();
    shared.members.send_if_modified(|known| {
        let is_newer = known.as_ref().is_none_or(|known| known.list().epoch() < epoch);
        if is_newer {
            *known = Some(Arc::new(listed.clone()));
        }
        is_newer
    })
}

/// Brings together what has to do with addresses, for as long as it is awaited.
async fn inform(shared: &Shared, mut members: watch::Receiver<Arc<KnownMembers>>) -> Infallible {
    let mut address = shared.settings.address.clone();
    let mut operator = shared.settings.peers.clone();
    let mut curator = shared.settings.control_plane.curator();
    let mut peers = shared.addresses.peers();
    loop {
        let own = *address.borrow_and_update();
        let told = operator.borrow_and_update().clone();
        let runs_curator = curator.borrow_and_update().is_some();
        let newest = Arc::clone(&members.borrow_and_update());
        if let Some(listed) = &newest.list
            && publish(shared, listed)
        {
            let (epoch, members) = (listed.list().epoch(), listed.list().members().len());
            tracing::info!(%epoch, members, "the newest member list that is durable here");
            shared.addresses.change(|known| take_hints(known, listed));
        }
        shared.addresses.change(|known| {
            known.change_directory(|directory| directory.set_own_address(own));
            known.set_operator(told);
            known.set_own_curator(own.filter(|_| runs_curator));
        });
        let dialed = peers.borrow_and_update().clone();
        shared.settings.control_plane.set_peers(dialed);
        tokio::select! {
            () = changed(&mut address) => {}
            () = changed(&mut operator) => {}
            () = changed(&mut curator) => {}
            () = changed(&mut peers) => {}
            () = changed(&mut members) => {}
        }
    }
}

/// Makes the directory durable when it is another than the one on the disk, until the disk fails.
async fn persist(
    shared: &Shared,
    context: &Context,
    kept: &Kept<ClusterDirectory>,
    mut stored: Option<ClusterDirectory>,
) -> BoxError {
    let mut directory = shared.addresses.directory();
    loop {
        let record = directory.borrow_and_update().as_ref().map(Directory::to_record);
        if let Some(record) = record
            && stored.as_ref() != Some(&record)
        {
            if let Err(error) = kept.store(context, record.clone(), "directory").await {
                return error.into();
            }
            stored = Some(record);
        }
        changed(&mut directory).await;
    }
}
