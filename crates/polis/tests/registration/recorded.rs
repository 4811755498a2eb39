//! A recorded life passes the sites of the table, and no other.

use std::collections::BTreeSet;

use crate::points::{OF_A_NODE_ALONE, SITES};
use crate::scene::{FOUNDER, Goal, JOINER, Scene};

#[test]
fn a_life_passes_exactly_the_sites_of_the_table() {
    let mut scene = Scene::new();
    scene.restart_founder();
    let id = scene.join(Goal::Member);
    scene.check(Goal::Member, &id);
    let joiner = scene.passed(JOINER);
    scene.clear(Goal::Member, &id);
    for (node, passed) in [(JOINER, joiner), (FOUNDER, scene.passed(FOUNDER))] {
        let own = || SITES.iter().filter(|site| site.node == node);
        for site in own().filter(|site| site.is_certain) {
            for step in site.steps.names() {
                let point = format!("{}/{step}", site.name);
                let passes = passed.iter().filter(|passed| **passed == point).count();
                assert!(passes >= site.pass, "{point} was passed {passes} times");
            }
        }
        let known = |site: &str| own().any(|known| known.name == site);
        let sites: BTreeSet<&str> = passed.iter().filter_map(|point| Some(point.rsplit_once('/')?.0)).collect();
        let unknown: Vec<&str> =
            sites.into_iter().filter(|site| !known(site) && !is_of_a_node_alone(node, site)).collect();
        assert!(unknown.is_empty(), "node {node} passed what is not in the table: {unknown:?}");
    }
}

/// Whether a founder passes this for itself.
fn is_of_a_node_alone(node: usize, site: &str) -> bool {
    const FILES: [&str; 4] = ["node/", "members/", "etcd/credentials/", "curator/node/status"];
    node == FOUNDER && (OF_A_NODE_ALONE.contains(&site) || FILES.iter().any(|prefix| site.starts_with(prefix)))
        || node == JOINER && site.starts_with("curator/node/")
}
