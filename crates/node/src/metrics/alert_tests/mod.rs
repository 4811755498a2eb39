//! Each rule of `share/alerts.yml` over the pages of a cluster that is well, and of clusters that are not.

mod expression;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_condition::{Condition, Severity};
use polis_consensus::Phase;
use polis_control::NodeState;

use super::text::tests::full;
use super::{QuorumSample, Snapshot, render};
use expression::{Sample, Scraped, evaluate, parse_page};

/// Three nodes, of which the first leads.
struct Scene {
    /// What each says of itself; `None` is down.
    nodes: Vec<Option<Snapshot>>,
    /// What the version of the first is called on its page, if not what this build is called.
    version: Option<&'static str>,
    /// How full the state of the cluster is, as a share of its quota.
    fill: f64,
}

impl Scene {
    /// All is well.
    fn well() -> Self {
        let node = |number: usize| {
            let mut node = full();
            node.status.conditions.clear();
            node.status.lock = None;
            node.deaths.values_mut().for_each(|deaths| *deaths = 1);
            let member = node.member.as_mut().expect("it is a member");
            member.no_space = false;
            member.members.iter_mut().for_each(|member| (member.is_learner, member.is_started) = (false, true));
            let leading = node.leading.as_mut().expect("it leads");
            leading.heartbeat_ages.values_mut().for_each(|age| *age = Some(Duration::from_secs(2)));
            leading.quorum = Some(QuorumSample { voters: 3, answering: 3 });
            leading.joins.clear();
            node.leading = node.leading.filter(|_| number == 0);
            Some(node)
        };
        Self { nodes: (0..3).map(node).collect(), version: None, fill: 0.1 }
    }

    fn first(&mut self) -> &mut Snapshot {
        self.nodes[0].as_mut().expect("it runs")
    }

    fn each(&mut self, change: impl FnMut(&mut Snapshot)) {
        self.nodes.iter_mut().flatten().for_each(change);
    }

    fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let scrape = |job: &str, text: Option<String>| {
                let up = format!("up {}\n", u8::from(text.is_some()));
                let labels = [("instance".to_owned(), format!("node-{number}")), ("job".to_owned(), job.to_owned())];
                parse_page(&(up + &text.unwrap_or_default())).into_iter().map(move |mut sample| {
                    sample.labels.extend(labels.clone());
                    sample
                })
            };
            let page = node.as_ref().map(|node| render(node).expect("a page"));
            let page = page.map(|page| match self.version {
                Some(version) if number == 0 => page.replace(polis_version::text(), version),
                Some(_) | None => page,
            });
            let etcd = node.as_ref().and_then(|node| node.member.as_ref()).map(|_| {
                let size = self.fill * 8e9;
                format!("etcd_server_quota_backend_bytes 8e9\netcd_mvcc_db_total_size_in_bytes {size:e}\n")
            });
            samples.extend(scrape("polis", page));
            samples.extend(scrape("polis-etcd", etcd));
        }
        samples
    }

    /// The alerts that would come, if it stayed like this.
    fn alerts(&self) -> BTreeSet<String> {
        let mut before = Self::well();
        before.each(|node| node.deaths.values_mut().for_each(|deaths| *deaths = 0));
        let scraped = Scraped { now: self.samples(), before: before.samples() };
        let comes = rules().into_iter().filter(|(_, expression)| !evaluate(expression, &scraped).is_empty());
        comes.map(|(name, _)| name).collect()
    }
}

/// Name and expression of each rule.
fn rules() -> BTreeMap<String, String> {
    let text = include_str!("../../../../../share/alerts.yml");
    let mut rules = BTreeMap::new();
    let mut name = None;
    for line in text.lines().map(str::trim_start) {
        if let Some(found) = line.strip_prefix("- alert: ") {
            name = Some(found.to_owned());
        } else if let Some(expression) = line.strip_prefix("expr: ") {
            rules.insert(name.take().expect("a rule has its name first"), expression.to_owned());
        }
    }
    rules
}

#[test]
fn each_rule_comes_when_it_should_and_none_otherwise() {
    type Change = fn(&mut Scene);
    let leaderless: Change = |scene| {
        scene.each(|node| {
            node.leading = None;
            let member = node.member.as_mut().unwrap();
            (member.leader, member.phase) = (None, Phase::Leaderless);
        });
    };
    let cases: &[(&str, Change, &[&str])] = &[
        ("all is well", |_| {}, &[]),
        ("members run and have no quorum", leaderless, &["PolisNoLeader", "PolisConsensusHangs"]),
        (
            "no member runs",
            |scene| {
                scene.first().member = None;
                scene.first().leading = None;
                scene.nodes[1..].fill_with(|| None);
            },
            &["PolisNoLeader", "PolisNodeUnreachable"],
        ),
        ("nothing runs", |scene| scene.nodes.fill_with(|| None), &["PolisNodeUnreachable"]),
        ("one is down", |scene| scene.nodes[2] = None, &["PolisNodeUnreachable"]),
        ("no curator leads", |scene| scene.first().leading = None, &["PolisNobodyLeads"]),
        (
            "a member does not answer",
            |scene| scene.first().leading.as_mut().unwrap().quorum = Some(QuorumSample { voters: 3, answering: 2 }),
            &["PolisQuorumMarginZero"],
        ),
        (
            "there is one member",
            |scene| scene.first().leading.as_mut().unwrap().quorum = Some(QuorumSample { voters: 1, answering: 1 }),
            &["PolisSingleMember"],
        ),
        (
            "a join fails",
            |scene| {
                let leading = scene.first().leading.as_mut().unwrap();
                leading.joins = leading.heartbeat_ages.keys().map(|id| (*id, 3)).collect();
            },
            &["PolisLearnerStuck"],
        ),
        (
            "there is a learner",
            |scene| scene.first().member.as_mut().unwrap().members[1].is_learner = true,
            &["PolisLearnerStuck"],
        ),
        (
            "one is not heard of",
            |scene| {
                let leading = scene.first().leading.as_mut().unwrap();
                *leading.heartbeat_ages.values_mut().next().unwrap() = Some(Duration::from_secs(40));
            },
            &["PolisNodeSilent"],
        ),
        (
            "one was never heard of",
            |scene| *scene.first().leading.as_mut().unwrap().heartbeat_ages.values_mut().next().unwrap() = None,
            &["PolisNodesNeverHeard"],
        ),
        (
            "one has no contact",
            |scene| scene.first().status.contact.as_mut().unwrap().in_contact = false,
            &["PolisNodeWithoutContact"],
        ),
        ("one has failed", |scene| scene.first().status.state = NodeState::Failed, &["PolisNodeFailed"]),
        (
            "a runnable dies often",
            |scene| scene.first().deaths.values_mut().for_each(|deaths| *deaths = 9),
            &["PolisRestarts"],
        ),
        ("a runnable fails in a row", |scene| scene.first().runnables[1].failures_in_a_row = 6, &["PolisRestarts"]),
        (
            "a condition is an error",
            |scene| {
                scene.first().status.conditions.push(Condition {
                    name: "disk-full".into(),
                    severity: Severity::Error,
                    since: jiff::Timestamp::UNIX_EPOCH,
                    message: "m".into(),
                    hint: String::new(),
                });
            },
            &["PolisCondition"],
        ),
        ("one is of another version", |scene| scene.version = Some("99.0.0"), &["PolisMixedVersions"]),
        ("files run out", |scene| scene.first().process.open_files = Some(900), &["PolisFileDescriptors"]),
        ("the quota is used up", |scene| scene.first().member.as_mut().unwrap().no_space = true, &["PolisNoSpace"]),
        (
            "all snapshots are old",
            |scene| scene.each(|node| node.snapshot_age = Some(Duration::from_secs(3 * 3600 + 1))),
            &["PolisSnapshotsOld"],
        ),
        ("no member has a snapshot", |scene| scene.each(|node| node.snapshot_age = None), &["PolisSnapshotsOld"]),
        (
            "one member has an old snapshot",
            |scene| scene.first().snapshot_age = Some(Duration::from_secs(1_000_000)),
            &[],
        ),
        (
            "the shares were never tried",
            |scene| {
                let cold_start = scene.first().status.cold_start.as_mut().unwrap();
                cold_start.split.as_mut().unwrap().verified = false;
            },
            &["PolisSplitUnverified"],
        ),
        ("the quota is nearly used up", |scene| scene.fill = 0.9, &["PolisSpaceRunsOut"]),
    ];
    let mut seen = BTreeSet::new();
    for (what, change, expected) in cases {
        let mut scene = Scene::well();
        change(&mut scene);
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(scene.alerts(), expected, "{what}");
        seen.extend(expected);
    }
    let all: BTreeSet<String> = rules().into_keys().collect();
    assert_eq!(seen, all, "every rule comes in one case");
}

#[test]
fn the_rule_that_could_never_come_does_not_here_either() {
    let mut scene = Scene::well();
    scene.each(|node| node.member.as_mut().unwrap().leader = None);
    let scraped = Scraped { now: scene.samples(), before: Vec::new() };
    // Of an empty vector there is no count, not even zero.
    let never = "count(polis_consensus_has_leader == 1) < 1";
    assert_eq!(evaluate(never, &scraped), []);
    assert_eq!(evaluate("max(polis_consensus_has_leader) < 1", &scraped).len(), 1);
}
