//! What a node says about itself, for reading.

use std::time::Duration;

use jiff::Timestamp;
use polis_condition::{Condition, Severity};
use polis_control::{
    ColdStartMode, ConsensusStatus, Contact, EnrolmentPhase, LockState, LockStatus, NodeState, SharesStatus,
    SnapshotsStatus, SplitStatus, Status, StorageStatus,
};

use super::{Fields, Paint, Table, count};
use crate::duration;

/// The state in its colour.
pub(crate) fn state_text(state: NodeState, paint: Paint) -> String {
    match state {
        NodeState::Running => paint.green(state.name()),
        NodeState::Failed => paint.red(state.name()),
        NodeState::New | NodeState::CreatingCluster | NodeState::Registering | NodeState::Joining => {
            paint.yellow(state.name())
        }
    }
}

/// A status as it is shown at the time `now`; `wide` adds the members of the consensus cluster and exact times.
pub(crate) fn render_status(status: &Status, now: Timestamp, wide: bool, paint: Paint) -> String {
    let mut fields = Fields::default();
    let state = state_text(status.state, paint);
    fields.add("State", if status.running { state } else { format!("not running; was {state}") });
    fields.add_some("Reason", status.reason.clone());
    fields.add("Node", status.node_id.clone().unwrap_or_else(|| "has no id yet".into()));
    fields.add("Cluster", status.cluster_id.clone().unwrap_or_else(|| "none yet".into()));
    fields.add("Enrolment", phase_text(status.phase));
    fields.add("Address", status.address.clone().unwrap_or_else(|| "none yet".into()));
    fields.add("Roles", if status.roles.is_empty() { "none".to_owned() } else { status.roles.join(", ") });
    fields.add_some("Contact", status.contact.as_ref().map(|contact| contact_text(contact, now)));
    fields.add_some("Consensus", status.consensus.as_ref().map(consensus_text));
    let opens = status.cold_start.as_ref().and_then(|cold_start| cold_start.mode);
    let split = status.cold_start.as_ref().and_then(|cold_start| cold_start.split.as_ref());
    let is_split = split.is_some() || status.lock.as_ref().is_some_and(|lock| lock.shares.is_some());
    let storage = status.storage.as_ref().map(|storage| storage_text(storage, opens, is_split));
    fields.add_some("Storage", storage);
    fields.add_some("Cold start", split.map(split_text));
    fields.add_some("Lock", status.lock.as_ref().map(|lock| lock_text(lock, paint)));
    fields.add_some("Snapshots", status.snapshots.as_ref().map(|snapshots| snapshots_text(snapshots, now)));
    if status.conditions.is_empty() {
        fields.add("Conditions", "none");
    }
    let mut text = fields.render(paint);
    if let Some(consensus) = status.consensus.as_ref().filter(|consensus| wide && !consensus.members.is_empty()) {
        text.push('\n');
        text.push_str(&members_table(consensus).render(paint));
    }
    if !status.conditions.is_empty() {
        text.push_str(&format!("\n{}\n", paint.dim("CONDITIONS")));
        for condition in &status.conditions {
            text.push_str(&render_condition(condition, now, wide, paint));
        }
    }
    text
}

const fn phase_text(phase: EnrolmentPhase) -> &'static str {
    match phase {
        EnrolmentPhase::None => "not begun",
        EnrolmentPhase::Formattable => "decided; the data partition is not formatted yet",
        EnrolmentPhase::Formatted => "data partition formatted; not a member yet",
        EnrolmentPhase::Enrolled => "member of its cluster",
        EnrolmentPhase::Removed => "removed from its cluster",
    }
}

fn contact_text(contact: &Contact, now: Timestamp) -> String {
    let leader = contact.leader.as_ref().map(|leader| format!("; {leader} leads")).unwrap_or_default();
    if contact.in_contact {
        return format!("the cluster answers{leader}");
    }
    let heard = match contact.last_heartbeat {
        // A clock that went backwards is no reason to show a negative age.
        Some(last) => {
            let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
            format!("the cluster has not answered for {}", duration::show(age))
        }
        None => "the cluster has not answered since this start".to_owned(),
    };
    let cause = contact.last_failure.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{heard}{cause}{leader}")
}

fn consensus_text(consensus: &ConsensusStatus) -> String {
    let voters = consensus.members.iter().filter(|member| !member.learner).count();
    let learners = consensus.members.len() - voters;
    let part = match (&consensus.member_id, &consensus.leader) {
        (Some(own), Some(leader)) if own == leader => "leads".to_owned(),
        (Some(_) | None, Some(leader)) => format!("follows {leader}"),
        (Some(_) | None, None) => "sees no leader".to_owned(),
    };
    let own = consensus.member_id.as_ref().map(|id| format!("member {id} ")).unwrap_or_default();
    let learners = if learners == 0 { String::new() } else { format!(", {learners} learning") };
    format!("{own}{part}; {} with a vote{learners}", count(voters, "member"))
}

fn storage_text(storage: &StorageStatus, cold_start: Option<ColdStartMode>, is_split: bool) -> String {
    let opens = match cold_start {
        Some(ColdStartMode::Cluster) if is_split => {
            "; opened with a key that the running cluster or the other members give"
        }
        Some(ColdStartMode::Cluster) => "; opened with a key that the running cluster gives",
        // Where there is no key, nothing is to be said about it.
        Some(ColdStartMode::Local) if storage.security != "insecure" => "; opened by this node alone",
        Some(ColdStartMode::Local) | None => "",
    };
    format!("{} ({}), TPM {}{opens}", storage.security, storage.backend, storage.tpm.replace('_', " "))
}

fn split_text(split: &SplitStatus) -> String {
    let SplitStatus { epoch, shares_needed, holders, verified } = split;
    if *shares_needed == 0 {
        return "opened by this node alone, without any other".to_owned();
    }
    let tried = if *verified { "tried and found to open it" } else { "not tried yet" };
    let of = count(holders.len(), "holder");
    format!("opened by {shares_needed} of {of} of shares, since epoch {}.{}; {tried}", epoch.incarnation, epoch.epoch)
}

fn lock_text(lock: &LockStatus, paint: Paint) -> String {
    let LockStatus { state, reason, shares, fingerprint } = lock;
    let state = match state {
        LockState::Locked => paint.yellow("locked"),
        LockState::Sealed => paint.red("sealed"),
    };
    let shares = shares.map(|SharesStatus { have, need }| format!("; {have} of {need} shares")).unwrap_or_default();
    let shown = fingerprint.as_ref().map(|shown| format!("; shows the key {shown}")).unwrap_or_default();
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    format!("{state}{shares}{shown}{reason}")
}

fn snapshots_text(snapshots: &SnapshotsStatus, now: Timestamp) -> String {
    // A clock that went backwards is no reason to show a negative age.
    let age = Duration::try_from(now.duration_since(snapshots.newest)).unwrap_or_default();
    let check = if snapshots.tried { "restored for trial" } else { "checked by its hash" };
    format!(
        "the newest is {} old, of revision {}, {check}; {} kept",
        duration::show(age),
        snapshots.revision,
        snapshots.kept
    )
}

fn members_table(consensus: &ConsensusStatus) -> Table {
    let mut table = Table::new(["MEMBER", "NODE", "VOTE", "LEADER"]);
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    for member in &consensus.members {
        let leads = consensus.leader.as_ref() == Some(&member.member_id);
        table.row([
            member.member_id.clone(),
            member.node_id.clone().unwrap_or_default(),
            yes(!member.learner),
            yes(leads),
        ]);
    }
    table
}

fn render_condition(condition: &Condition, now: Timestamp, wide: bool, paint: Paint) -> String {
    let severity = match condition.severity {
        Severity::Info => "info   ".to_owned(),
        Severity::Warning => paint.yellow("warning"),
        Severity::Error => paint.red("error  "),
    };
    // A clock that went backwards is no reason to show a negative age.
    let age = Duration::try_from(now.duration_since(condition.since)).unwrap_or_default();
    let since = if wide { format!(", since {}", condition.since) } else { String::new() };
    let mut text = format!("  {severity}  {}  (for {}{since})\n", paint.bold(&condition.name), duration::show(age));
    text.push_str(&format!("           {}\n", indent(&condition.message)));
    if !condition.hint.is_empty() {
        text.push_str(&format!("           {} {}\n", paint.bold("hint:"), indent(&condition.hint)));
    }
    text
}

fn indent(text: &str) -> String {
    text.replace('\n', "\n           ")
}

#[cfg(test)]
mod tests {
    use polis_control::ConsensusMember;

    use super::*;

    fn running() -> Status {
        Status {
            state: NodeState::Running,
            reason: None,
            node_id: Some("metropolis-00112233445566778899aabbccddeeff".into()),
            cluster_id: Some("21fe31dfa154a261626bf854046fd227".into()),
            phase: EnrolmentPhase::Enrolled,
            address: Some("127.0.0.2".into()),
            roles: vec!["ConsensusMember".into()],
            cold_start: None,
            contact: None,
            consensus: Some(ConsensusStatus {
                member_id: Some("8e9e05c52164694d".into()),
                leader: Some("8e9e05c52164694d".into()),
                members: vec![ConsensusMember {
                    member_id: "8e9e05c52164694d".into(),
                    node_id: Some("metropolis-00112233445566778899aabbccddeeff".into()),
                    learner: false,
                }],
            }),
            storage: Some(StorageStatus {
                security: "insecure".into(),
                backend: "plain".into(),
                tpm: "not_present".into(),
            }),
            lock: None,
            snapshots: None,
            conditions: vec![Condition {
                name: "storage-insecure".into(),
                severity: Severity::Warning,
                since: Timestamp::from_second(1_000_000_000).unwrap(),
                message: "data on this node are not encrypted".into(),
                hint: "use it for tests only".into(),
            }],
            running: true,
        }
    }

    fn later() -> Timestamp {
        Timestamp::from_second(1_000_000_125).unwrap()
    }

    #[test]
    fn a_running_node() {
        assert_eq!(
            render_status(&running(), later(), false, Paint::plain()),
            "\
State      Running
Node       metropolis-00112233445566778899aabbccddeeff
Cluster    21fe31dfa154a261626bf854046fd227
Enrolment  member of its cluster
Address    127.0.0.2
Roles      ConsensusMember
Consensus  member 8e9e05c52164694d leads; 1 member with a vote
Storage    insecure (plain), TPM not present

CONDITIONS
  warning  storage-insecure  (for 2 min 5 s)
           data on this node are not encrypted
           hint: use it for tests only
"
        );
    }

    #[test]
    fn whether_the_cluster_answers() {
        let leader = "metropolis-00112233445566778899aabbccddeeff".parse().ok();
        let last_heartbeat = Some(Timestamp::from_second(1_000_000_000).unwrap());
        let check = |contact: &Contact, expect: &str| assert_eq!(contact_text(contact, later()), expect);
        let well = Contact { in_contact: true, last_heartbeat, leader, last_failure: None };
        check(&well, "the cluster answers; metropolis-00112233445566778899aabbccddeeff leads");
        let ill = Contact { in_contact: false, leader: None, last_failure: Some("refused".into()), ..well };
        check(&ill, "the cluster has not answered for 2 min 5 s: refused");
        let never = Contact { last_heartbeat: None, last_failure: None, ..ill };
        check(&never, "the cluster has not answered since this start");
    }

    #[test]
    fn a_locked_node_says_how_many_shares_it_has() {
        let shares = Some(SharesStatus { have: 1, need: 2 });
        let locked = LockStatus { state: LockState::Locked, reason: "it waits".into(), shares, fingerprint: None };
        assert_eq!(lock_text(&locked, Paint::plain()), "locked; 1 of 2 shares: it waits");
        let sealed = LockStatus {
            state: LockState::Sealed,
            reason: "another boot state".into(),
            shares: None,
            fingerprint: Some("ab01".into()),
        };
        assert_eq!(lock_text(&sealed, Paint::plain()), "sealed; shows the key ab01: another boot state");
        let holders = ["one", "two"].map(String::from).to_vec();
        let epoch = polis_control::Epoch { incarnation: 1, epoch: 5 };
        let split = SplitStatus { epoch, shares_needed: 1, holders, verified: true };
        assert_eq!(
            split_text(&split),
            "opened by 1 of 2 holders of shares, since epoch 1.5; tried and found to open it"
        );
        let local = SplitStatus { shares_needed: 0, holders: vec![], verified: false, epoch };
        assert_eq!(split_text(&local), "opened by this node alone, without any other");
    }

    #[test]
    fn wide_adds_members_and_times() {
        let text = render_status(&running(), later(), true, Paint::plain());
        assert!(text.contains(
            "\nMEMBER            NODE                                         VOTE  LEADER\n\
             8e9e05c52164694d  metropolis-00112233445566778899aabbccddeeff  yes   yes\n"
        ));
        assert!(text.contains("(for 2 min 5 s, since 2001-09-09T01:46:40Z)"));
    }

    #[test]
    fn a_node_that_failed_before_it_had_anything() {
        let status = Status {
            state: NodeState::Failed,
            reason: Some("the parameters file is empty".into()),
            node_id: None,
            cluster_id: None,
            phase: EnrolmentPhase::None,
            address: None,
            roles: vec![],
            cold_start: None,
            contact: None,
            consensus: None,
            storage: None,
            lock: None,
            snapshots: None,
            conditions: vec![],
            running: false,
        };
        assert_eq!(
            render_status(&status, later(), false, Paint::plain()),
            "\
State       not running; was Failed
Reason      the parameters file is empty
Node        has no id yet
Cluster     none yet
Enrolment   not begun
Address     none yet
Roles       none
Conditions  none
"
        );
    }

    #[test]
    fn a_clock_that_went_backwards_shows_no_negative_age() {
        let text = render_status(&running(), Timestamp::UNIX_EPOCH, false, Paint::plain());
        assert!(text.contains("(for 0.00 s)"), "{text}");
    }
}
