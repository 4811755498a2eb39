//! Filters as operators write them, and as nobody should.

use std::time::{Duration, Instant};

use polis_proto::api::node::Health;
use polis_proto::common::node_labels::Pair;
use polis_proto::common::node_roles::{ConsensusMember, KubernetesController, consensus_member::Peer};
use polis_proto::common::node_status::RunningCurator;
use polis_proto::common::{NodeLabels, NodeRoles, NodeState, NodeStatus, NodeTpmUsage};
use polis_proto::version::spec::Version;
use polis_proto::version::spec::version::Release;

use super::*;

fn node() -> Arc<api::Node> {
    let pair = |key: &str, value: &str| Pair { key: key.into(), value: value.into() };
    Arc::new(api::Node {
        pubkey: vec![1, 2, 3],
        id: "metropolis-0123456789abcdef0123456789abcdef".into(),
        state: NodeState::Up.into(),
        status: Some(NodeStatus {
            external_address: "192.0.2.7".into(),
            running_curator: Some(RunningCurator { port: 7835 }),
            timestamp: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            version: Some(Version { release: Some(Release { major: 1, minor: 2, patch: 3 }), git_information: None }),
            boot_id: vec![9],
        }),
        roles: Some(NodeRoles {
            kubernetes_worker: None,
            consensus_member: Some(ConsensusMember {
                peers: vec![Peer { name: "a".into(), url: "https://a".into() }],
                ..ConsensusMember::default()
            }),
            kubernetes_controller: Some(KubernetesController {}),
        }),
        health: Health::Healthy.into(),
        time_since_heartbeat: Some(prost_types::Duration { seconds: 3, nanos: 500_000_000 }),
        tpm_usage: NodeTpmUsage::PresentAndUsed.into(),
        labels: Some(NodeLabels { pairs: vec![pair("site", "lab-1"), pair("example.com/rack", "r07")] }),
    })
}

fn ask(filter: &str, node: &Arc<api::Node>) -> Result<bool, FilterError> {
    Filter::new(filter).and_then(|filter| filter.admits(node))
}

#[test]
fn fields_are_read_as_those_of_a_message() {
    let (full, empty) = (node(), Arc::new(api::Node::default()));
    for (filter, for_full, for_empty) in [
        ("", true, true),
        ("true", true, true),
        ("node.id == \"metropolis-0123456789abcdef0123456789abcdef\"", true, false),
        ("node.pubkey == b\"\\x01\\x02\\x03\"", true, false),
        ("node.state == NODE_STATE_UP", true, false),
        ("node.state == metropolis.proto.common.NodeState.NODE_STATE_UP", true, false),
        ("node.state == 3", true, false),
        ("node.state != NODE_STATE_NEW && node.health == HEALTH_HEALTHY", true, false),
        ("node.health in [HEALTH_UNKNOWN, HEALTH_HEARTBEAT_TIMEOUT]", false, false),
        ("node.tpm_usage == NODE_TPM_USAGE_PRESENT_AND_USED", true, false),
        ("has(node.status)", true, false),
        ("!has(node.status) || node.status.external_address.startsWith(\"192.0.2.\")", true, true),
        ("has(node.status.version.git_information)", false, false),
        ("has(node.status.external_address)", true, false),
        ("node.status.external_address == \"\"", false, true),
        ("node.status.running_curator.port == 7835", true, false),
        ("node.status.version.release.minor >= 2", true, false),
        ("node.status.boot_id == b\"\\x09\"", true, false),
        ("node.status.version.git_information.commits_since_release == 0u", true, true),
        ("has(node.roles.consensus_member)", true, false),
        ("has(node.roles.kubernetes_worker)", false, false),
        ("has(node.roles.kubernetes_controller) && !has(node.roles.kubernetes_worker)", true, false),
        ("node.roles.consensus_member.peers.exists(p, p.name == \"a\")", true, false),
        ("node.labels.pairs.exists(l, l.key == \"site\" && l.value == \"lab-1\")", true, false),
        ("node.labels.pairs.exists(l, l.key == \"example.com/rack\" && l.value.matches(\"^r[0-9]+$\"))", true, false),
        ("node.labels.pairs.exists(l, has(l.value))", true, false),
        ("size(node.labels.pairs) == 0", false, true),
        ("node.labels.pairs.map(l, l.key) == [\"site\", \"example.com/rack\"]", true, false),
        ("has(node.time_since_heartbeat)", true, false),
        ("node.time_since_heartbeat < duration(\"10s\")", true, true),
        ("node.time_since_heartbeat == duration(\"3.5s\")", true, false),
        ("node.status.timestamp > timestamp(\"2023-01-01T00:00:00Z\")", true, false),
        ("matches(node.id, \"^metropolis-[0-9a-f]{32}$\")", true, false),
        ("node.roles == node.roles", true, true),
        ("type(node.id) == string", true, true),
        ("has({\"a\": 1}.a)", true, true),
        ("{\"a\": 1}.a == 1 ? node.state == 3 : false", true, false),
    ] {
        assert_eq!(ask(filter, &full), Ok(for_full), "{filter}, full");
        assert_eq!(ask(filter, &empty), Ok(for_empty), "{filter}, empty");
    }
}

#[test]
fn what_is_wrong_is_said_before_any_node_is_looked_at() {
    fn name(name: &'static str) -> impl Fn(&FilterError) -> bool {
        move |error| matches!(error, FilterError::Name { name: found, .. } if found == name)
    }
    let syntax = |error: &FilterError| matches!(error, FilterError::Syntax(_));
    let long = format!("node.id == \"{}\"", "x".repeat(MAX_LENGTH));
    type Expected = dyn Fn(&FilterError) -> bool;
    let cases: [(&str, &Expected); 12] = [
        ("node.", &syntax),
        ("foo ==", &syntax),
        ("\"open", &syntax),
        ("}{", &syntax),
        ("\u{0}", &syntax),
        ("true || nodes.id == \"a\"", &name("nodes")),
        ("true || node.ident == \"a\"", &name("ident")),
        ("true || node.status.version.relaese.major == 1", &name("relaese")),
        ("true || node.labels.pairs.exists(l, l.name == \"a\")", &name("name")),
        ("true || node.state == NODE_STATE_SOMETHING", &name("NODE_STATE_SOMETHING")),
        ("true || node.labels.pairs.key == \"a\"", &name("key")),
        (&long, &|error| matches!(error, FilterError::TooLong(_))),
    ];
    for (filter, expected) in cases {
        let error = Filter::new(filter).err().unwrap_or_else(|| panic!("{filter} is taken"));
        assert!(expected(&error), "{filter}: {error:?}");
    }
}

#[test]
fn what_is_wrong_for_a_node_is_said() {
    for filter in ["node.id", "1", "node.status", "[true]", "null"] {
        assert!(matches!(ask(filter, &node()), Err(FilterError::NotBoolean(_))), "{filter}");
    }
    for filter in [
        "node.labels.pairs[7].key == \"a\"",
        "node.id < 1",
        "node.id + 1 == 2",
        "1 / 0 == 1",
        "frobnicate(node)",
        "node.id.frobnicate()",
        "duration(\"soon\") == duration(\"1s\")",
        "node.time_since_heartbeat < 10",
        "node.id.matches(\"(\")",
        "node.id.matches(\"(a{1000}){1000}\")",
        "9223372036854775807 + 1 == 0",
    ] {
        assert!(
            matches!(ask(filter, &node()), Err(FilterError::Evaluation(_))),
            "{filter}: {:?}",
            ask(filter, &node())
        );
    }
}

/// As much stack as a thread of the runtime has, halved: a handler is not the first thing on it.
const STACK: usize = 1024 * 1024;

/// What one hostile expression may take, in all. The slowest of them takes a twentieth on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn no_expression_takes_too_long_or_too_much_stack() {
    let nested = |open: &str, close: &str, times: usize| format!("{}1{} == 1", open.repeat(times), close.repeat(times));
    let chain = |operator: &str, times: usize| {
        let chain = vec!["1"; times].join(operator);
        format!("{chain} == 1")
    };
    let range = |length: usize| format!("[{}]", vec!["0"; length].join(","));
    let mut expressions = vec![
        "node".to_owned() + &".labels".repeat(500),
        "node".to_owned() + &".labels".repeat(250),
        "node.id == ".repeat(300),
        "!".repeat(4000) + "true",
        "!".repeat(250) + "true",
        "-".repeat(250) + "1 == 1",
        "a in ".repeat(800) + "b",
        "1 in ".repeat(250) + "[1]",
        "1<".repeat(250) + "1",
        "true ? ".repeat(60) + "true" + &" : false".repeat(60),
        "true || ".repeat(500) + "true",
        "'".repeat(4001),
        "\"\"\"".repeat(1000),
        format!("{0}.all(a, {0}.all(b, {0}.all(c, {0}.all(d, a + b + c + d == 0))))", range(200)),
        format!("{0}.all(a, {0}.all(b, a + b == 0))", range(400)),
        "node.labels.pairs.all(a, node.labels.pairs.all(b, node.labels.pairs.all(c, a == b)))".into(),
        "[[node.labels.pairs + node.labels.pairs]].all(a, a.all(b, b.all(c, b.all(d, c == d))))".into(),
        "node.labels.pairs.all(a, a.key.matches(\"a*a*a*a*b\"))".into(),
        "node.labels.pairs.map(a, node.labels.pairs).map(b, b.map(c, b)).size() == 1".into(),
    ];
    for (open, close) in [("(", ")"), ("[", "]"), ("{1:", "}"), ("size([", "])"), ("[1].map(x, ", ")")] {
        expressions.extend([10, 20, 100, 400].map(|times| nested(open, close, times)));
    }
    for operator in ["+", "-", "*", "/", "%", "==", "<", "&&", "||", " in ", "?1:", ".", ","] {
        expressions.extend([18, 22, 24, 50, 100, 240, 255, 1300].map(|times| chain(operator, times)));
    }
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let node = node();
        for expression in expressions {
            let start = Instant::now();
            // Whether it is taken is not the point.
            let _ = ask(&expression, &node);
            let taken = start.elapsed();
            assert!(taken < PATIENCE, "{taken:?}: {expression}");
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn loops_are_taken_as_long_as_they_are_bounded() {
    for (filter, taken) in [
        ("node.labels.pairs.exists(l, [\"a\", \"b\", \"site\"].exists(k, l.key == k))", true),
        ("node.labels.pairs.all(a, node.labels.pairs.exists(b, a.key == b.key))", true),
        ("node.labels.pairs.all(a, node.labels.pairs.all(b, node.labels.pairs.all(c, a == b)))", false),
        ("node.labels.pairs.all(l, l.key.matches(\"^a\"))", true),
        ("node.labels.pairs.all(a, node.labels.pairs.all(b, a.key.matches(b.key)))", false),
    ] {
        let error = Filter::new(filter).err();
        assert_eq!(error, (!taken).then_some(FilterError::TooCostly), "{filter}");
    }
}

#[test]
fn many_ids_fit() {
    let ids: Vec<String> = (0..80).map(|number| format!("\"metropolis-{number:032x}\"")).collect();
    let filter = format!("node.id in [{}]", ids.join(","));
    assert_eq!(ask(&filter, &node()), Ok(false));
    let terms: Vec<String> = ids[..60].iter().map(|id| format!("node.id == {id}")).collect();
    assert_eq!(ask(&terms.join(" || "), &node()), Ok(false));
}
