//! The network between the members is cut, in both directions or in one; it heals by itself.

use std::time::Duration;

use polis_testkit::{Cluster, world};

use crate::writer::Writer;
use crate::{all_healthy, binary};

/// How long the majority may take to go on.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn the_majority_goes_on_and_the_rest_comes_back() {
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    let written = cluster.id(0);
    let mut writer = Writer::new(&written);
    let operator = 3;
    for cut in 0..3 {
        let others: Vec<usize> = (0..3).filter(|number| *number != cut).collect();
        // One that is cut off from all, one that reaches the operator only, one that hears the others but is not heard.
        for how in 0..3 {
            match how {
                0 => world.unplug(cut),
                1 => world.separate(&[cut], &others),
                _ => others.iter().for_each(|other| world.block(cut, *other)),
            }
            let took = writer.write(&cluster, PATIENCE);
            println!("node {cut} cut off in way {how}: a write succeeded after {took:?}");
            writer.check(&cluster);
            world.heal();
            all_healthy(&cluster, 3);
            writer.write(&cluster, PATIENCE);
        }
    }
    writer.check(&cluster);
    world.unplug(operator);
    let run = cluster.polis("node list --timeout 2s");
    assert_eq!(run.code, Some(1), "{run:#?}");
    for host in &cluster.hosts {
        assert!(run.stderr.contains(&host.ip().to_string()), "every endpoint is named with its fault: {run:#?}");
    }
}
