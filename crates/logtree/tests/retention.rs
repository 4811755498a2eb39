//! What the tree keeps: the quota of a name, the caps over all, and the order of reading.

mod common;

use std::sync::Arc;

use common::{drain_texts, everything, name, stream, texts};
use polis_logtree::{ENTRIES_PER_NAME, Limits, LogTree, NAMES, ReadOptions, Severity, TREE_BYTES};

#[test]
fn a_name_keeps_its_newest_entries() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    (0..9000).for_each(|number| logger.info(format!("entry {number}")));
    let expected: Vec<String> = (9000 - ENTRIES_PER_NAME..9000).map(|number| format!("entry {number}")).collect();
    assert_eq!(texts(&everything(&tree, "main")), expected);
    assert_eq!(tree.usage().entries, ENTRIES_PER_NAME);
}

#[test]
fn a_chatty_name_does_not_disturb_a_quiet_one_and_the_order_is_that_of_writing() {
    let tree = LogTree::default();
    let (chatty, quiet) = (tree.logger(&name("chatty")), tree.logger(&name("quiet")));
    let mut written = Vec::new();
    for number in 0..9000 {
        chatty.info(format!("chatty {number}"));
        written.push(format!("chatty {number}"));
        if number % 10 == 0 {
            quiet.info(format!("quiet {number}"));
            written.push(format!("quiet {number}"));
        }
    }
    let evicted = 9000 - ENTRIES_PER_NAME;
    let first_kept = |text: &String| match text.strip_prefix("chatty ") {
        Some(number) => number.parse::<usize>().unwrap() >= evicted,
        None => true,
    };
    written.retain(first_kept);
    assert_eq!(written.len(), ENTRIES_PER_NAME + 900);
    assert_eq!(texts(&everything(&tree, "")), written);
    assert_eq!(everything(&tree, "quiet").len(), 900);
}

#[test]
fn the_cap_in_bytes_evicts_the_oldest_of_all_names() {
    let probe = LogTree::default();
    probe.logger(&name("a")).info("0000");
    let entry_bytes = probe.usage().bytes;
    let tree = LogTree::new(Limits { bytes: 5 * entry_bytes, ..Limits::default() });
    let (a, b) = (tree.logger(&name("a")), tree.logger(&name("b.c")));
    ["0000", "0001", "0002"].iter().for_each(|text| a.info(text));
    ["0003", "0004", "0005", "0006"].iter().for_each(|text| b.info(text));
    assert_eq!(texts(&everything(&tree, "")), ["0002", "0003", "0004", "0005", "0006"]);
    b.info("0007");
    assert!(everything(&tree, "a").is_empty(), "the last of the quiet name was the oldest of all");
    a.info("0008");
    assert_eq!(texts(&everything(&tree, "")), ["0004", "0005", "0006", "0007", "0008"]);
    assert_eq!(tree.usage().bytes, 5 * entry_bytes);
    // An entry larger than everything together is kept alone.
    a.info("x".repeat(10 * entry_bytes));
    assert_eq!(tree.usage().entries, 1);
    a.info("0009");
    assert_eq!(texts(&everything(&tree, "")), ["0009"]);
}

#[test]
fn the_default_cap_holds_with_long_entries_under_many_names() {
    let tree = LogTree::default();
    let text = "x".repeat(16 << 10);
    for number in 0..3000 {
        tree.logger(&name("root").child(&format!("n{}", number % 7)).unwrap()).info(&text);
    }
    let usage = tree.usage();
    assert!(usage.bytes <= TREE_BYTES && usage.bytes > TREE_BYTES - (20 << 10), "{usage:?}");
    assert_eq!(usage.names, 7);
}

#[test]
fn evicted_entries_are_freed() {
    let tree = LogTree::new(Limits { entries_per_name: 1, ..Limits::default() });
    let logger = tree.logger(&name("main"));
    logger.info("first");
    let entry = Arc::downgrade(&everything(&tree, "main")[0]);
    assert!(entry.upgrade().is_some());
    logger.info("second");
    assert!(entry.upgrade().is_none());
}

#[test]
fn a_subtree_is_the_name_and_what_is_below_it() {
    let tree = LogTree::default();
    let names = ["a.b.c", "a", "ab", "a.b", "a-b", "a.b-c", "a.bc", "", "a.b.c.d"];
    for text in names {
        tree.logger(&name(text)).info(text);
    }
    let cases: [(&str, &[&str]); 6] = [
        ("", &names),
        ("a", &["a.b.c", "a", "a.b", "a.b-c", "a.bc", "a.b.c.d"]),
        ("a.b", &["a.b.c", "a.b", "a.b.c.d"]),
        ("a.b.c.d", &["a.b.c.d"]),
        ("ab", &["ab"]),
        ("nobody", &[]),
    ];
    for (under, expected) in cases {
        assert_eq!(texts(&everything(&tree, under)), expected, "under {under:?}");
        let alone = tree.read(&name(under), ReadOptions::default()).unwrap().backlog;
        let own: Vec<&str> = names.iter().copied().filter(|text| *text == under).collect();
        assert_eq!(texts(&alone), own, "only {under:?}");
    }
    let sorted: Vec<String> = tree.names().iter().map(ToString::to_string).collect();
    assert_eq!(sorted, ["", "a", "a.b", "a.b.c", "a.b.c.d", "a.b-c", "a.bc", "a-b", "ab"]);
}

#[test]
fn a_name_gets_its_journal_with_its_first_entry() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("root.idle"));
    let mut writer = tree.raw(&name("root.child"));
    writer.write(b"no line break yet");
    tree.read(&name("root.other"), stream()).unwrap();
    assert_eq!(tree.names(), []);
    logger.info("now");
    writer.close();
    assert_eq!(tree.names(), [name("root.child"), name("root.idle")]);
}

#[test]
fn beyond_the_bound_of_names_entries_land_on_the_nearest_ancestor_and_the_log_says_so_once() {
    let tree = LogTree::new(Limits { names: 2, ..Limits::default() });
    tree.logger(&name("root")).info("root itself");
    tree.logger(&name("root.network")).info("network itself");
    let mut network = tree.read(&name("root.network"), stream()).unwrap();
    tree.logger(&name("root.network.interfaces.eth0")).info("from eth0");
    tree.logger(&name("root.network.dns")).info("from dns");
    tree.logger(&name("root.storage")).info("from storage");
    tree.logger(&name("elsewhere")).info("from elsewhere");
    assert_eq!(tree.names(), [name(""), name("root"), name("root.network")]);

    let own = |under: &str| tree.read(&name(under), ReadOptions::default()).unwrap().backlog;
    let at_network = own("root.network");
    assert_eq!(at_network.len(), 4);
    assert_eq!(at_network[1].severity(), Some(Severity::Warning));
    let notice = at_network[1].text().into_owned();
    assert!(notice.contains("reached its 2 names") && notice.contains("root.network.interfaces.eth0"), "{notice}");
    assert_eq!(texts(&at_network[2..]), ["from eth0", "from dns"]);
    assert_eq!(at_network[2].name, name("root.network.interfaces.eth0"), "an entry still says where it is from");
    assert_eq!(drain_texts(&mut network)[1..], ["from eth0", "from dns"], "a stream is told too");
    assert_eq!(texts(&own("root")), ["root itself", "from storage"]);
    assert_eq!(texts(&own("")), ["from elsewhere"]);
    let notices = everything(&tree, "").iter().filter(|entry| entry.text().contains("reached its")).count();
    assert_eq!(notices, 1);
}

#[test]
fn the_number_of_names_is_bounded_by_default() {
    let tree = LogTree::default();
    let parent = name("root.many");
    for number in 0..NAMES + 100 {
        tree.logger(&parent.child(&format!("n{number}")).unwrap()).info("here");
    }
    // The names, and the top of the tree, where the entries of the others landed.
    assert_eq!(tree.usage().names, NAMES + 1);
    assert_eq!(tree.usage().entries, NAMES + 101);
}
