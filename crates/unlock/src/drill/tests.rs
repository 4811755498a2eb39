//! What is tried while it is not needed.

use super::*;
use crate::scene::{Node, Peer, at, list};
use crate::{UnlockReply, Want};

const OWNER: Node = Node(1);

/// Runs a drill to its end against peers, of which none is told that it could give the key.
fn run(drill: &mut Drill, peers: &mut [Peer]) -> Vec<DrillAction> {
    let mut outcome = Vec::new();
    let mut events = vec![Event::Tick];
    for _ in 0..40 {
        let actions: Vec<_> = events.drain(..).flat_map(|event| drill.handle(event)).collect();
        for action in actions {
            match action {
                DrillAction::Ask { peer, request } => {
                    assert_eq!(request.want, Want::Share);
                    let answering = peers.iter_mut().find(|answering| answering.node.id() == peer);
                    let answer = answering.map(|answering| answering.answer(OWNER, &request));
                    events.push(answer.map_or(Event::NoAnswer(peer), |answer| Event::Reply(peer, answer)));
                }
                DrillAction::Report(_) => {}
                other @ (DrillAction::Persist(_) | DrillAction::Alarm(_) | DrillAction::Verified { .. }) => {
                    outcome.push(other);
                }
            }
        }
        events.push(Event::Tick);
    }
    outcome
}

#[test]
fn enough_shares_verify_the_split_and_end_the_drill() {
    let members = list(at(1, 4), &[1, 2, 3, 4, 5]);
    let mut drill = Drill::new(OWNER.settings(&members), OWNER.key_of_data()).unwrap();
    let mut peers: Vec<_> = [2, 3].map(|peer| Peer::locked(peer, &members)).into();
    // One could give the key, and is not asked for it.
    peers[0].word = crate::ClusterWord::Key(OWNER.key_of_data());
    assert_eq!(run(&mut drill, &mut peers), [DrillAction::Verified { epoch: at(1, 4) }]);
    assert_eq!(drill.handle(Event::Tick), []);
}

#[test]
fn too_few_peers_verify_nothing() {
    let members = list(at(1, 4), &[1, 2, 3, 4, 5]);
    let mut drill = Drill::new(OWNER.settings(&members), OWNER.key_of_data()).unwrap();
    assert_eq!(run(&mut drill, &mut [Peer::locked(2, &members)]), []);
    // And a key that is sent unasked proves nothing.
    drill.handle(Event::NoAnswer(Node(3).id()));
    let ask = drill.handle(Event::PeerUp(Node(3).id()));
    assert!(ask.iter().any(|action| matches!(action, DrillAction::Ask { peer, .. } if *peer == Node(3).id())));
    let actions = drill.handle(Event::Reply(Node(3).id(), UnlockReply::Full(OWNER.key_of_data())));
    assert!(actions.iter().all(|action| matches!(action, DrillAction::Report(_))), "{actions:?}");
}

#[test]
fn there_is_nothing_to_try_without_a_split_of_the_key() {
    let members = list(at(1, 4), &[1, 2]);
    let local = Drill::new(OWNER.settings(&members), OWNER.key_of_data()).err();
    assert_eq!(local, Some(NoDrill::Local { epoch: at(1, 4) }));
    let other = Drill::new(OWNER.settings(&members), Node(2).key_of_data()).err();
    assert_eq!(other, Some(NoDrill::OtherKey));
    let none = Settings { file: None, ..OWNER.settings(&members) };
    assert_eq!(Drill::new(none, OWNER.key_of_data()).err(), Some(NoDrill::NoFile));
}
