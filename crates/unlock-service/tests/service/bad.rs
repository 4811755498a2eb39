//! Requests that nobody should make, and those that only look like it.

use std::sync::atomic::Ordering;

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, JoinKey};
use polis_proto::unlock::get_lock_response::State;
use polis_proto::unlock::refused::Reason as ReasonMessage;
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_proto::unlock::unlock_response::Answer;
use polis_proto::unlock::{self, RecoverRequest};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, KeyIdentity};
use polis_unlock::{Epoch, Reason, SealedShare, SignedMemberList, UnlockReply, UnlockRequest, Want};
use polis_unlock_service::Lock;
use tokio::sync::watch;
use tonic::Code;
use tonic::transport::Channel;

use crate::world::{Node, World, all_open, finish, list};

fn request(of: &Node, list: &SignedMemberList) -> UnlockRequest {
    UnlockRequest { owner: of.id, share: None, list_epoch: Some(list.list().epoch()), want: Want::Any, list: None }
}

async fn ask(channel: &Channel, request: UnlockRequest) -> UnlockReply {
    UnlockReply::try_from(ask_wire(channel, request.into()).await).unwrap()
}

async fn ask_wire(channel: &Channel, request: unlock::UnlockRequest) -> unlock::UnlockResponse {
    UnlockClient::new(channel.clone()).unlock(request).await.unwrap().into_inner()
}

fn reason(reply: &UnlockReply) -> Option<Reason> {
    match reply {
        UnlockReply::Refused(refusal) => Some(refusal.reason),
        UnlockReply::Full(_) | UnlockReply::Share(_) | UnlockReply::NewerMembers(_) | UnlockReply::OlderMembers(_) => {
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_learn_nothing_and_a_newer_list_is_all_that_they_can_bring() {
    let mut world = World::new(3);
    let newcomer = world.add();
    let later = world.later_list();
    let node = world.start(0);
    let stranger = JoinKey::generate();
    let of_stranger = node.node.channel(&stranger);
    let of_newcomer = node.node.channel(&newcomer.join_key);

    // Whoever names a member and is none, and whoever shows nothing.
    let unknown = ask(&of_stranger, request(&world.nodes[1], &world.list)).await;
    assert_eq!(reason(&unknown), Some(Reason::UnknownKey));
    let anonymous = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Key(node.node.join_key.public()));
    let nobody = ask(&anonymous.channel(node.node.address), request(&world.nodes[1], &world.list)).await;
    assert_eq!(reason(&nobody), Some(Reason::UnknownKey));

    // Lists that the cluster has not signed, that do not name who shows them, or that are not newer.
    let foreign = list(&CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME), Epoch::FIRST.next(), &world.nodes);
    for (channel, list, expected) in [
        (&of_newcomer, &foreign, Some(Reason::BadList)),
        (&of_stranger, &later, Some(Reason::BadList)),
        (&of_newcomer, &world.list, Some(Reason::BadList)),
    ] {
        let shown = UnlockRequest { list: Some(list.wire().clone()), ..request(&newcomer, list) };
        assert_eq!(reason(&ask(channel, shown).await), expected);
    }
    assert!(node.store.lists.lock().unwrap().is_empty());
    assert_eq!(node.members.known().list.as_ref(), Some(&world.list));

    // A list that cannot be stored is not gone by, and its bearer is told so.
    let shown = || UnlockRequest { list: Some(later.wire().clone()), ..request(&newcomer, &later) };
    node.store.fails.store(true, Ordering::SeqCst);
    let not_stored = UnlockClient::new(of_newcomer.clone()).unlock(unlock::UnlockRequest::from(shown())).await;
    let status = not_stored.map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().ends_with("the ESP is full"), "{status:?}");
    assert_eq!(node.members.known().list.as_ref(), Some(&world.list));
    assert_eq!(reason(&ask(&of_newcomer, request(&newcomer, &later)).await), Some(Reason::UnknownKey));

    node.store.fails.store(false, Ordering::SeqCst);
    assert_eq!(reason(&ask(&of_newcomer, shown()).await), Some(Reason::NothingToGive));
    assert_eq!(*node.store.lists.lock().unwrap(), [Epoch::FIRST.next()]);
    assert_eq!(node.members.known().list.as_ref(), Some(&later));
    // The one who asks has heard of it too.
    node.wait_status("it knows of the newcomer", |status| status.progress.peers.len() == 3).await;
    finish([node]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newer_list_wins_in_both_directions() {
    for newer in [0, 1] {
        let world = World::new(3);
        let later = world.later_list();
        let lists = [0, 1].map(|index| if index == newer { &later } else { &world.list });
        let nodes = [0, 1].map(|index| world.start_with(index, lists[index], |_| {}));
        all_open(&nodes).await;
        for node in &nodes {
            assert_eq!(node.members.known().list.as_ref(), Some(&later));
        }
        assert_eq!(*nodes[1 - newer].store.lists.lock().unwrap(), [Epoch::FIRST.next()]);
        finish(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_get_what_is_theirs_and_as_often_as_they_need() {
    let world = World::new(3);
    let node = world.start(0);
    let [second, third] = [1, 2].map(|index| world.node(index));
    let of_second = node.node.channel(&second.join_key);
    let of_third = node.node.channel(&third.join_key);
    assert_eq!(reason(&ask(&of_second, request(third, &world.list)).await), Some(Reason::OtherOwner));
    // What a node sends for its own share.
    let with_share = |node_of: &Node| {
        let file = world.file(node_of, &world.list);
        let held = file.current.held_by(&node.node.id).unwrap();
        let share = SealedShare { x: held.x, epoch: Epoch::FIRST, ciphertext: held.ciphertext.clone() };
        UnlockRequest { share: Some(share), ..request(node_of, &world.list) }
    };
    let of_another = UnlockRequest { owner: second.id, ..with_share(third) };
    let wire = unlock::UnlockRequest::from(of_another);
    // The third one's share, in the name of the second.
    let other = ask_wire(&of_second, wire.clone()).await;
    assert_eq!(reason(&other.try_into().unwrap()), Some(Reason::NotForMe));
    for malformed in [
        unlock::UnlockRequest { want: 0, ..wire.clone() },
        unlock::UnlockRequest { x: 0, ..wire.clone() },
        unlock::UnlockRequest { x: 256, ..wire.clone() },
        unlock::UnlockRequest { share_epoch: None, ..wire.clone() },
        unlock::UnlockRequest { owner: "metropolis-1".into(), ..wire.clone() },
    ] {
        let Some(Answer::Refused(refused)) = ask_wire(&of_second, malformed.clone()).await.answer else {
            panic!("{malformed:?}")
        };
        assert_eq!(refused.reason(), ReasonMessage::Malformed, "{malformed:?}");
    }

    // One that asks without end is told to wait, and the other one is not.
    let many = (0..400).map(|_| ask(&of_second, with_share(second)));
    let replies = futures::future::join_all(many).await;
    let too_often = replies.iter().filter(|reply| reason(reply) == Some(Reason::TooOften)).count();
    assert!(too_often <= 200, "{too_often} of 400 requests were refused");
    let reply = ask(&of_third, with_share(third)).await;
    assert!(matches!(reply, UnlockReply::Share(_)), "{reply:?}");
    finish([node]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_unseal_says_so_and_takes_a_recovery() {
    let world = World::new(3);
    let reason_of_seal = "the TPM finds another firmware";
    let momentary = JoinKey::generate();
    let identity = KeyIdentity::new(&momentary);
    let sealed = watch::Sender::new(Lock::Sealed { reason: reason_of_seal.into() });
    let node = world.start_with(0, &world.list, |parts| {
        parts.server.holder = None;
        parts.server.identity = identity.clone();
        parts.server.lock = sealed.subscribe();
        parts.server.oneself.id = None;
    });
    let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
    // The port may not be open yet.
    let key = loop {
        match connector.learn_key(node.node.address).await {
            Ok(key) => break key,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    };
    assert_eq!(key, momentary.public());
    let lock = node.node.lock().await;
    assert_eq!((lock.state(), &lock.reason[..], &lock.node_id[..]), (State::Sealed, reason_of_seal, ""));
    let channel = Connector::new(
        &KeyIdentity::new(&world.node(1).join_key).client_identity(),
        ExpectedServer::Key(momentary.public()),
    )
    .channel(node.node.address);
    assert_eq!(reason(&ask(&channel, request(world.node(1), &world.list)).await), Some(Reason::NothingToGive));

    let mut client = UnlockClient::new(connector.channel(node.node.address));
    for (content_key, blob_sha256, expected) in [
        (vec![1; 32], vec![2; 32], Code::FailedPrecondition),
        (vec![1; 31], vec![2; 32], Code::InvalidArgument),
        (vec![1; 32], Vec::new(), Code::InvalidArgument),
    ] {
        let status = client.recover(RecoverRequest { content_key, blob_sha256 }).await.unwrap_err();
        assert_eq!(status.code(), expected, "{status:?}");
    }
    finish([node]).await;
}
