//! Coming back, with a consensus member and without one.

use std::sync::Arc;

use polis_manager::{Failure, Outcome};
use polis_storage::simulation::{Image, SimulatedDisk};
use polis_storage::{DiskPath, FILE_MODE, Layout, LocalRoles, MemberJoin, durable};

use crate::cluster::{Cluster, Script};
use crate::common::{Life, NO_VOTE, ParametersFile, disk_with, live, live_beside, register_parameters};

/// A node that others have let in, its parameters, and its cluster.
fn guest() -> (Image, ParametersFile, Cluster) {
    let cluster = Cluster::new();
    let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
    let life = live_beside(Image::default(), file.source(), cluster, Script::default());
    assert!(life.runs(), "{}", life.describe());
    (life.end(), file, life.cluster().clone())
}

/// The same disk after this.
fn changed(image: &Image, change: impl FnOnce(&Arc<SimulatedDisk>, &Layout)) -> Image {
    let disk = disk_with(image.clone());
    change(&disk, &Layout::new(disk.clone()));
    disk.image()
}

fn give_role(layout: &Layout) {
    let roles = LocalRoles { consensus_member: true, ..LocalRoles::default() };
    layout.data.node.roles.store(&roles, "test").unwrap();
}

/// A later start beside a cluster that hears the node, or does not.
fn start(image: Image, file: &ParametersFile, cluster: &Cluster) -> Life {
    live_beside(image, file.source(), cluster.clone(), Script::default())
}

#[test]
fn a_node_without_a_member_runs_once_the_leader_has_heard_it() {
    let (image, file, cluster) = guest();
    let life = start(image.clone(), &file, &cluster);
    assert!(life.runs(), "{}", life.describe());
    assert_eq!(life.clusters.len(), 1, "it has asked for admission again");

    // A cluster without a leader is waited for, however long it takes.
    let life = start(image, &file, &Cluster::new());
    assert!(life.outcome.is_none(), "{}", life.describe());
    let condition = life.condition("cluster-unreachable").expect("it says what it waits for");
    assert!(condition.message.contains("looks for its leader"), "{condition:?}");
    assert!(life.identified, "nobody could look for the cluster");
}

#[test]
fn a_node_that_is_about_to_have_a_member_does_not_wait_for_it() {
    let (image, file, cluster) = guest();
    let node_id = start(image.clone(), &file, &cluster).node_id.unwrap();
    let image = changed(&image, |_, layout| {
        layout.data.etcd.joining.store(&MemberJoin { node_id }, "test").unwrap();
        give_role(layout);
    });
    let life = start(image.clone(), &file, &cluster);
    assert!(life.runs(), "{}", life.describe());
    assert!(life.acknowledged.is_empty(), "a member was made");
}

#[test]
fn a_member_of_which_nothing_is_left_is_lost_and_not_made_anew() {
    let (image, file, cluster) = guest();
    let life = start(changed(&image, |_, layout| give_role(layout)), &file, &cluster);
    let Some(Outcome::Failed(failure)) = &life.outcome else { panic!("{}", life.describe()) };
    assert!(matches!(&**failure, Failure::File { what: "credentials of the consensus member", .. }), "{failure}");
    assert!(!life.identified, "others could have acted for it");
}

#[test]
fn a_member_without_a_vote_runs_as_one_that_has_none() {
    let file = ParametersFile::new();
    let founder = live(Image::default(), file.source());
    assert!(founder.runs(), "{}", founder.describe());
    let image = changed(&founder.end(), |disk, _| {
        durable::write(&**disk, "test", &DiskPath::parse(NO_VOTE).unwrap(), FILE_MODE, b"").unwrap();
    });
    // It is heard as any other node is.
    let (_, _, heard) = guest();
    let life = start(image.clone(), &file, &heard);
    assert!(life.runs(), "{}", life.describe());
    assert_eq!(life.node_id, founder.node_id);
    let life = start(image, &file, &Cluster::new());
    assert!(life.outcome.is_none() && life.identified, "{}", life.describe());
}
