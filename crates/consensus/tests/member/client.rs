//! The client: namespaces, transactions, watches, leases.

use std::time::Duration;

use polis_consensus::{Change, KvError, NameError, Namespaced, Transaction};
use tokio::time::{Instant, timeout};

use crate::node::{Node, PATIENCE};

async fn ready_node() -> Node {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_see_their_own_keys_only() {
    let mut node = ready_node().await;
    let consensus = node.consensus();
    let curator = consensus.namespaced(&["curator"]).unwrap();
    let part = curator.sub("part").unwrap();
    // A name of which the other is the beginning.
    let curators = consensus.namespaced(&["curators"]).unwrap();
    let root = consensus.kv_root();
    for (client, value) in [(&curator, "curator"), (&part, "part"), (&curators, "curators")] {
        client.put("test/put", "/key", value).await.unwrap();
    }
    for (key, value) in [
        ("namespaced:curator//key", "curator"),
        ("namespaced:curator:part//key", "part"),
        ("namespaced:curators//key", "curators"),
    ] {
        assert_eq!(root.get(key).await.unwrap().unwrap().value, value.as_bytes(), "{key}");
    }
    let all = curator.list("").await.unwrap();
    assert_eq!(all.entries.iter().map(|entry| entry.key_text()).collect::<Vec<_>>(), ["/key"]);
    assert_eq!(curator.get_local("/key").await.unwrap().unwrap().value, b"curator");
    assert_eq!(curator.delete_all("test/delete", "").await.unwrap(), 1);
    assert_eq!(root.list("namespaced:").await.unwrap().entries.len(), 2);
    assert!(part.delete("test/delete", "/key").await.unwrap());
    assert!(!part.delete("test/delete", "/key").await.unwrap());

    for name in ["a:b", "a/b", ":"] {
        assert!(matches!(curator.sub(name), Err(NameError::Separator { .. })), "{name}");
    }
    assert!(matches!(curator.sub(""), Err(NameError::Empty)));
    assert!(matches!(consensus.namespaced(&["a:b"]), Err(NameError::Separator { .. })));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_happens_whole_or_not_at_all() {
    let mut node = ready_node().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    let birth = || Transaction::new().if_absent("/owner").put("/owner", "a").put("/nodes/1", "one").get("/nodes/1");
    let committed = kv.transact("test/birth", birth()).await.unwrap();
    assert_eq!(committed.found.len(), 1);
    assert_eq!(committed.found[0][0].value, b"one");
    let owner = kv.get("/owner").await.unwrap().unwrap();
    assert_eq!(owner.mod_revision, committed.revision);

    // The same again: nothing happens, and what is there is told.
    let error = kv.transact("test/birth", birth().otherwise_get("/owner")).await.unwrap_err();
    let KvError::PreconditionFailed { found } = error else { panic!("{error:?}") };
    assert_eq!(found[0][0], owner);
    assert_eq!(kv.get("/owner").await.unwrap().unwrap(), owner);

    let revision = owner.mod_revision;
    let check = async |transaction: Transaction, expected: bool| {
        let outcome = kv.transact("test/check", transaction).await;
        assert_eq!(outcome.is_ok(), expected, "{outcome:?}");
        assert!(matches!(outcome, Ok(_) | Err(KvError::PreconditionFailed { .. })), "{outcome:?}");
    };
    check(Transaction::new().if_present("/owner").if_absent("/none"), true).await;
    check(Transaction::new().if_present("/none"), false).await;
    check(Transaction::new().if_modified_at("/owner", revision), true).await;
    check(Transaction::new().if_modified_at("/owner", revision + 1), false).await;
    check(Transaction::new().if_created_at("/owner", revision), true).await;
    check(Transaction::new().if_created_at("/none", revision), false).await;
    check(Transaction::new().if_value("/owner", "a"), true).await;
    check(Transaction::new().if_value("/owner", "b"), false).await;
    check(Transaction::new().if_value("/none", ""), false).await;

    let swap = Transaction::new().if_modified_at("/owner", revision).put("/owner", "b").delete("/nodes/1");
    kv.transact("test/swap", swap.clone()).await.unwrap();
    check(swap, false).await;
    // Still the same key for those who hold on to its creation.
    check(Transaction::new().if_created_at("/owner", revision).list("/"), true).await;
    assert_eq!(kv.get("/nodes/1").await.unwrap(), None);
    kv.transact("test/empty", Transaction::new().delete_all("")).await.unwrap();
    assert_eq!(kv.list("").await.unwrap().entries, []);
    let refused = kv.transact("test/twice", Transaction::new().put("/a", "1").put("/a", "2")).await;
    assert!(matches!(refused, Err(KvError::Refused { .. })), "{refused:?}");
    node.stop().await;
}

/// Writes `/<number>` exactly once, whatever happens to etcd meanwhile; it fails when that takes longer than any death of etcd.
async fn write_once(kv: &Namespaced, number: u32) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let transaction = Transaction::new().if_absent(format!("/{number:04}")).put(format!("/{number:04}"), "x");
        match kv.transact("test/write", transaction).await {
            Ok(_) | Err(KvError::PreconditionFailed { .. }) => return,
            Err(error) if error.is_transient() => {
                assert!(Instant::now() < deadline, "write {number} is not taken: {error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_resumes_over_deaths_of_etcd_without_gap_or_duplicate() {
    const KEYS: u32 = 300;
    let mut node = ready_node().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    write_once(&kv, 0).await;
    let listing = kv.list("/").await.unwrap();
    let mut watch = kv.watch("/", listing.revision);
    let writer = tokio::spawn(async move {
        for number in 1..=KEYS {
            write_once(&kv, number).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    let mut seen = Vec::new();
    let mut deaths = 0;
    let mut dead = None;
    while seen.len() < usize::try_from(KEYS).unwrap() {
        let changes = timeout(PATIENCE, watch.next()).await.unwrap_or_else(|_| panic!("{}", node.describe())).unwrap();
        assert!(!changes.is_empty());
        seen.extend(changes.iter().map(|change| String::from_utf8(change.key().to_vec()).unwrap()));
        assert!(changes.iter().all(|change| matches!(change, Change::Put(_))));
        let process_id = node.consensus().status().borrow().process_id.filter(|_| deaths < 2 && seen.len() > 30);
        if process_id.is_some() && process_id != dead {
            node.kill_etcd();
            dead = process_id;
            deaths += 1;
        }
    }
    writer.await.unwrap();
    assert_eq!(deaths, 2);
    let expected: Vec<String> = (1..=KEYS).map(|number| format!("/{number:04}")).collect();
    assert_eq!(seen, expected);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_puts_and_deletions_of_its_keys_and_no_others() {
    let mut node = ready_node().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    let start = kv.put("test/put", "/a/1", "old").await.unwrap();
    let mut range = kv.watch("/a/", start);
    let mut one = kv.watch_key("/a/2", start);
    kv.put("test/put", "/b", "other").await.unwrap();
    node.consensus().kv_root().put("test/put", "/a/1", "root").await.unwrap();
    let both = Transaction::new().put("/a/2", "two").delete("/a/1");
    let revision = kv.transact("test/both", both).await.unwrap().revision;
    kv.put("test/put", "/a/20", "longer").await.unwrap();
    let changes = timeout(PATIENCE, range.next()).await.unwrap().unwrap();
    // All of a transaction comes at once.
    let told: Vec<_> = changes.iter().take(2).map(|change| (change.key().to_vec(), change.revision())).collect();
    assert_eq!(told, [(b"/a/2".to_vec(), revision), (b"/a/1".to_vec(), revision)]);
    assert!(matches!(&changes[0], Change::Put(pair) if pair.value == b"two"), "{changes:?}");
    assert!(matches!(&changes[1], Change::Delete { .. }), "{changes:?}");
    let changes = timeout(PATIENCE, one.next()).await.unwrap().unwrap();
    assert!(matches!(&changes[..], [Change::Put(pair)] if pair.key == b"/a/2"), "{changes:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_over_compacted_changes_says_so() {
    let mut node = ready_node().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    let first = kv.put("test/put", "/key", "1").await.unwrap();
    let mut last = first;
    for value in 2..6 {
        last = kv.put("test/put", "/key", value.to_string()).await.unwrap();
    }
    node.raw_client().await.compact(last, None).await.unwrap();
    let compacted = timeout(PATIENCE, kv.watch("/", first).next()).await.unwrap().unwrap_err();
    assert_eq!(compacted.oldest, last);
    // Listing again and going on from there works.
    let listing = kv.list("/").await.unwrap();
    let mut watch = kv.watch("/", listing.revision);
    kv.put("test/put", "/key", "6").await.unwrap();
    assert_eq!(timeout(PATIENCE, watch.next()).await.unwrap().unwrap().len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_takes_its_keys_with_it() {
    let mut node = ready_node().await;
    let kv = node.consensus().namespaced(&["curator"]).unwrap();
    let second = Duration::from_secs(1);
    let short = kv.lease_grant("test/grant", second).await.unwrap();
    let long = kv.lease_grant("test/grant", 60 * second).await.unwrap();
    let start = kv.put_with_lease("test/put", "/short", "x", short).await.unwrap();
    kv.put_with_lease("test/put", "/long", "x", long).await.unwrap();
    assert_eq!(kv.get("/short").await.unwrap().unwrap().lease, Some(short));
    assert_eq!(kv.lease_keep_alive(short).await.unwrap(), second);
    let mut watch = kv.watch_key("/short", start);
    let changes = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert!(matches!(&changes[..], [Change::Delete { key, .. }] if key == b"/short"), "{changes:?}");
    assert!(matches!(kv.lease_keep_alive(short).await, Err(KvError::LeaseNotFound)));
    assert!(matches!(kv.put_with_lease("test/put", "/short", "x", short).await, Err(KvError::LeaseNotFound)));
    kv.lease_revoke("test/revoke", long).await.unwrap();
    assert_eq!(kv.get("/long").await.unwrap(), None);
    assert!(matches!(kv.lease_revoke("test/revoke", long).await, Err(KvError::LeaseNotFound)));
    node.stop().await;
}
