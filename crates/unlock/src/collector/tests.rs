//! What a locked node does with what it is answered.

use polis_secret::Secret32;

use super::*;
use crate::scene::{Node, Peer as Answering, at, list, signed};
use crate::{ClusterWord, Recovery};

const OWNER: Node = Node(1);

/// A collector with peers that answer at once, and all that it wanted done beside asking.
struct Run {
    collector: Collector,
    peers: Vec<Answering>,
    done: Vec<Action>,
    asked: usize,
}

impl Run {
    fn new(settings: Settings, peers: Vec<Answering>) -> Self {
        Self { collector: Collector::new(settings), peers, done: Vec::new(), asked: 0 }
    }

    /// Lets something happen, and all that follows from it at once.
    fn event(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.collector.handle(event) {
                match action {
                    Action::Ask { peer, request } => {
                        self.asked += 1;
                        assert!(self.asked < 10_000, "it asks without a pause");
                        let answering = self.peers.iter_mut().find(|answering| answering.node.id() == peer);
                        let answer = answering.map(|answering| answering.answer(OWNER, &request));
                        events.insert(0, answer.map_or(Event::NoAnswer(peer), |answer| Event::Reply(peer, answer)));
                    }
                    Action::Report(_) => {}
                    done @ (Action::Persist(_) | Action::Open { .. } | Action::Alarm(_)) => self.done.push(done),
                }
            }
        }
    }

    fn ticks(&mut self, ticks: usize) -> &mut Self {
        (0..ticks).for_each(|_| self.event(Event::Tick));
        self
    }

    fn done(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.done)
    }

    fn counts(&self) -> Option<Counts> {
        self.collector.progress().counts
    }
}

fn opens(node: Node) -> Action {
    Action::Open { key: node.key_of_data(), proof: Proof::CheckValue }
}

fn locked(nodes: &[u8], list: &SignedMemberList) -> Vec<Answering> {
    nodes.iter().map(|node| Answering::locked(*node, list)).collect()
}

#[test]
fn exactly_the_needed_number_of_peers_opens_for_every_number_of_voters() {
    for voters in 3..=9_u8 {
        let members = list(at(1, 2), &(1..=voters).collect::<Vec<_>>());
        let needed = voters / 2;
        let too_few: Vec<_> = (2..2 + needed - 1).collect();
        let mut run = Run::new(OWNER.settings(&members), locked(&too_few, &members));
        assert_eq!(run.ticks(50).done(), [], "{too_few:?} of {voters}");
        assert_eq!(run.counts(), Some(Counts { have: needed - 1, need: needed }));
        // The missing one arrives.
        run.peers.push(Answering::locked(voters, &members));
        assert_eq!(run.ticks(LONGEST_PAUSE_TICKS as usize + 1).done(), [opens(OWNER)], "{voters}");
    }
}

#[test]
fn a_member_that_runs_opens_alone_and_at_once() {
    let members = list(at(1, 2), &[1, 2, 3, 4, 5]);
    let mut peers = locked(&[2], &members);
    peers[0].word = ClusterWord::Key(OWNER.key_of_data());
    let mut run = Run::new(OWNER.settings(&members), peers);
    assert_eq!(run.ticks(1).done(), [opens(OWNER)]);
    // While the key is tried nobody is asked.
    let asked = run.asked;
    assert_eq!((run.ticks(20).done(), run.asked), (vec![], asked));
}

#[test]
fn it_asks_patiently_and_for_ever_and_says_who_is_silent() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let mut run = Run::new(OWNER.settings(&members), Vec::new());
    run.ticks(1000);
    let least = 2 * 1000 / LONGEST_PAUSE_TICKS as usize;
    assert!((least..least + 20).contains(&run.asked), "{}", run.asked);
    let progress = run.collector.progress();
    assert!(progress.peers.iter().all(|peer| peer.silent_since == Some(1) && peer.answer.is_none()), "{progress:?}");
    // What is reported is reported once.
    assert_eq!(
        run.collector.handle(Event::Tick).iter().filter(|action| matches!(action, Action::Report(_))).count(),
        0
    );
}

#[test]
fn a_request_without_any_answer_is_repeated() {
    let members = list(at(1, 2), &[1, 2]);
    let settings = Settings { file: None, ..OWNER.settings(&members) };
    let mut collector = Collector::new(settings);
    let mut asked = Vec::new();
    for tick in 1..=60 {
        let actions = collector.handle(Event::Tick);
        if actions.iter().any(|action| matches!(action, Action::Ask { .. })) {
            asked.push(tick);
        }
    }
    assert_eq!(asked, [1, 1 + ANSWER_TICKS + 1, 1 + 2 * ANSWER_TICKS + 3]);
    // An answer to a request that was given up is not waited for any more, and one that was not asked for does nothing.
    assert_eq!(collector.handle(Event::Reply(Node(5).id(), UnlockReply::Full(OWNER.key_of_data()))), []);
}

#[test]
fn a_wrong_share_is_known_with_its_sender_and_another_one_taken() {
    let members = list(at(1, 2), &[1, 2, 3, 4]);
    let mut run = Run::new(OWNER.settings(&members), locked(&[3], &members));
    let bad = Node(2).id();
    let held_x = |run: &Run| run.collector.collections[0].split.held_by(&bad).unwrap().x;
    run.ticks(1);
    // Peer 2 answers as if it were honest, with something else; each of these is told apart.
    let x = held_x(&run);
    let others = run.collector.collections[0].shares.values().next().unwrap().clone();
    let wrong = [Share::new(x, Secret32::random()), Share::new(x, others.y().clone()), others];
    for share in wrong {
        run.collector.handle(Event::NoAnswer(bad));
        let actions = run.collector.handle(Event::PeerUp(bad));
        assert!(actions.iter().any(|action| matches!(action, Action::Ask { peer, .. } if *peer == bad)), "{actions:?}");
        let actions = run.collector.handle(Event::Reply(bad, UnlockReply::Share(share)));
        assert!(actions.contains(&Action::Alarm(Alarm::BadShare { peer: bad })), "{actions:?}");
        assert_eq!(run.counts(), Some(Counts { have: 1, need: 2 }));
    }
    run.peers.push(Answering::locked(4, &members));
    assert_eq!(run.ticks(10).done(), [opens(OWNER)]);
}

#[test]
fn a_wrong_key_is_tried_and_the_collecting_goes_on() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let mut peers = locked(&[2], &members);
    let dead = ClusterUnlockKey::new(Secret32::random());
    peers[0].word = ClusterWord::Key(dead.clone());
    let mut run = Run::new(OWNER.settings(&members), peers);
    let tried = Action::Open { key: dead, proof: Proof::Word };
    assert_eq!(run.ticks(1).done(), [Action::Alarm(Alarm::WrongKey { peer: Node(2).id() }), tried]);
    run.event(Event::DidNotOpen);
    // The same peer has a share as well.
    assert_eq!(run.ticks(4).done(), [opens(OWNER)]);
    assert_eq!(run.collector.progress().dead_keys, 1);
}

#[test]
fn without_an_unlock_file_only_a_member_that_runs_can_help() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let mut run = Run::new(Settings { file: None, ..OWNER.settings(&members) }, locked(&[2, 3], &members));
    assert_eq!((run.ticks(20).done(), run.counts()), (vec![], None));
    run.peers[0].word = ClusterWord::Key(OWNER.key_of_data());
    let word = Action::Open { key: OWNER.key_of_data(), proof: Proof::Word };
    assert_eq!(run.ticks(LONGEST_PAUSE_TICKS as usize + 1).done(), [word]);
}

#[test]
fn the_pending_key_comes_first_and_the_current_one_after_it() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let pending = ClusterUnlockKey::new(Secret32::random());
    let mut settings = OWNER.settings(&members);
    let split = crate::split(&OWNER.id(), &pending, members.list(), &crate::Hpke, &mut rand::rng()).unwrap();
    settings.file.as_mut().unwrap().pending = Some(split);
    let mut run = Run::new(settings, locked(&[2], &members));
    let first = Action::Open { key: pending.clone(), proof: Proof::CheckValue };
    assert_eq!(run.ticks(1).done(), [first]);
    // It was never added to the data.
    run.event(Event::DidNotOpen);
    assert_eq!(run.ticks(3).done(), [opens(OWNER)]);
    run.event(Event::DidNotOpen);
    // Nothing opens. It goes on, but tries no key twice.
    assert_eq!(run.ticks(100).done(), []);
    assert_eq!((run.collector.progress().dead_keys, run.counts()), (2, None));
    run.peers[0].word = ClusterWord::Key(pending);
    assert_eq!(run.ticks(100).done(), []);
    let newest = ClusterUnlockKey::new(Secret32::random());
    run.peers[0].word = ClusterWord::Key(newest.clone());
    let done = run.ticks(20).done();
    assert!(done.contains(&Action::Open { key: newest, proof: Proof::Word }), "{done:?}");
}

#[test]
fn an_unlock_file_from_last_week_is_refused_by_the_peers_and_a_member_that_runs_helps() {
    let (old, new) = (list(at(1, 2), &[1, 2, 3]), list(at(1, 6), &[1, 2, 3]));
    let mut peers = locked(&[2, 3], &new);
    for peer in &mut peers {
        peer.floors.raise(OWNER.id(), at(1, 6));
    }
    let mut run = Run::new(OWNER.settings(&old), peers);
    assert_eq!(run.ticks(20).done(), [Action::Persist(new)]);
    let answers = run.collector.progress().peers;
    let is_old =
        |peer: &PeerProgress| matches!(&peer.answer, Some(PeerAnswer::Refused { reason: Reason::OldShare, .. }));
    assert!(answers.iter().all(is_old), "{answers:?}");
    // The key was replaced since: the file does not know it, and it is tried.
    let replaced = ClusterUnlockKey::new(Secret32::random());
    run.peers[1].word = ClusterWord::Key(replaced.clone());
    let done = run.ticks(20).done();
    assert!(done.contains(&Action::Open { key: replaced, proof: Proof::Word }), "{done:?}");
}

#[test]
fn the_newer_list_wins_before_anything_is_asked_with_it() {
    let (old, new) = (list(at(1, 2), &[1, 2, 3]), list(at(1, 3), &[1, 2, 4]));
    let mut collector = Collector::new(OWNER.settings(&old));
    collector.handle(Event::Tick);
    let actions = collector.handle(Event::Reply(Node(2).id(), UnlockReply::NewerMembers(new.wire().clone())));
    let persist = actions.iter().position(|action| *action == Action::Persist(new.clone())).unwrap();
    let asked: Vec<_> = (actions.iter().enumerate())
        .filter_map(|(index, action)| match action {
            Action::Ask { peer, request } => {
                assert!(persist < index);
                assert_eq!(request.list_epoch, Some(at(1, 3)));
                Some(*peer)
            }
            Action::Persist(_) | Action::Open { .. } | Action::Report(_) | Action::Alarm(_) => None,
        })
        .collect();
    let mut expected = vec![Node(2).id(), Node(4).id()];
    expected.sort();
    assert_eq!(asked, expected, "the new member is asked, the old one is not any more");
    // An older one, and the same again, change nothing.
    assert_eq!(collector.handle(Event::MembersChanged(old)), []);
    assert_eq!(collector.handle(Event::MembersChanged(new)), []);
}

#[test]
fn a_peer_that_slept_through_a_change_is_shown_the_list() {
    let (old, new) = (list(at(1, 2), &[2, 3]), list(at(1, 3), &[1, 2, 3]));
    let mut run = Run::new(OWNER.settings(&new), locked(&[2], &old));
    assert_eq!(run.ticks(1).done(), [opens(OWNER)]);
    assert_eq!(run.peers[0].list, Some(new));
}

#[test]
fn a_list_that_the_cluster_has_not_signed_is_not_taken() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let mut run = Run::new(OWNER.settings(&members), Vec::new());
    let mut forged = list(at(1, 9), &[1, 2, 3]).wire().clone();
    forged.signature[0] ^= 1;
    let peer = Node(2).id();
    run.collector.handle(Event::Tick);
    let actions = run.collector.handle(Event::Reply(peer, UnlockReply::NewerMembers(forged)));
    assert!(actions.contains(&Action::Alarm(Alarm::BadList { peer })), "{actions:?}");
    assert_eq!(run.collector.members(), Some(&members));
}

#[test]
fn a_node_that_was_removed_or_left_behind_says_so_and_waits() {
    let old = list(at(1, 2), &[1, 2, 3]);
    for (epoch, is_superseded) in [(at(1, 3), false), (at(2, 1), true)] {
        let new = list(epoch, &[2, 3]);
        let mut run = Run::new(OWNER.settings(&old), locked(&[2, 3], &new));
        let (taken, known) = if is_superseded { (vec![], &old) } else { (vec![Action::Persist(new.clone())], &new) };
        assert_eq!(run.ticks(30).done(), taken);
        assert_eq!(run.collector.members(), Some(known));
        assert_eq!(run.collector.progress().not_named, Some(NotNamed { epoch, is_superseded }));
    }
}

#[test]
fn a_recovered_side_leads_nobody_away_whom_it_does_not_name() {
    let old = list(at(1, 2), &[1, 2, 3]);
    let recovered = list(at(2, 1), &[2]);
    // The other member of the majority is there: the data open.
    let mut run = Run::new(OWNER.settings(&old), locked(&[2], &recovered));
    run.ticks(30);
    assert_eq!(run.collector.progress().not_named, Some(NotNamed { epoch: at(2, 1), is_superseded: true }));
    run.peers.extend(locked(&[3], &old));
    assert!(run.ticks(30).done().contains(&opens(OWNER)));
    // One that was recovered apart from its own is not that of its cluster, whoever it names.
    let recovered_as = |token, epoch| {
        let list = list(epoch, &[1, 2]).list().clone();
        signed(list.with_recoveries(vec![Recovery { incarnation: 2, token }]))
    };
    let (own, parted) = (recovered_as(7, at(2, 1)), recovered_as(8, at(2, 5)));
    let mut collector = Collector::new(OWNER.settings(&own));
    collector.handle(Event::Tick);
    collector.handle(Event::Reply(Node(2).id(), UnlockReply::NewerMembers(parted.wire().clone())));
    assert_eq!(collector.members(), Some(&own));
    assert_eq!(collector.progress().not_named, Some(NotNamed { epoch: at(2, 5), is_superseded: true }));
    // What the node has decided to follow is another matter, and so is a list that names it.
    let mut collector = Collector::new(OWNER.settings(&old));
    let followed = collector.handle(Event::MembersChanged(recovered.clone()));
    assert!(followed.contains(&Action::Persist(recovered)), "{followed:?}");
    assert_eq!(collector.progress().not_named, Some(NotNamed { epoch: at(2, 1), is_superseded: true }));
    collector.handle(Event::MembersChanged(list(at(2, 2), &[1, 2])));
    assert_eq!(collector.progress().not_named, None);
}

#[test]
fn a_peer_that_answers_in_circles_is_asked_with_pauses() {
    let members = list(at(1, 2), &[1, 2, 3]);
    let peer = Node(2).id();
    let circles = [
        UnlockReply::NewerMembers(members.wire().clone()),
        UnlockReply::OlderMembers(None),
        UnlockReply::Refused(Refusal { reason: Reason::UnknownKey, detail: String::new(), counts: None }),
        UnlockReply::Full(ClusterUnlockKey::new(Secret32::new([9; 32]))),
    ];
    for answer in circles {
        let mut collector = Collector::new(OWNER.settings(&members));
        let mut asked = 0;
        for _ in 0..100 {
            let mut events = vec![Event::Tick];
            while let Some(event) = events.pop() {
                for action in collector.handle(event) {
                    match action {
                        Action::Ask { peer: to, .. } if to == peer => {
                            asked += 1;
                            events.push(Event::Reply(peer, answer.clone()));
                        }
                        Action::Open { .. } => events.push(Event::DidNotOpen),
                        Action::Ask { .. } | Action::Persist(_) | Action::Report(_) | Action::Alarm(_) => {}
                    }
                }
            }
        }
        assert!(asked < 40, "{asked} times {answer:?}");
    }
}
