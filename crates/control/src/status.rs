//! What a node tells about itself. The JSON form is part of the command contract (`cli.md`): add fields, do not change them.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use polis_condition::Condition;
use polis_identity::NodeId;
use serde::{Deserialize, Serialize};

/// Name of the file below the node's root that holds the [`LastState`].
pub const LAST_STATE_FILE: &str = "last_state.json";

/// Where a node stands on its way from New to Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// Has not decided yet.
    New,
    /// Makes a cluster of its own.
    CreatingCluster,
    /// Asks a cluster for admission.
    Registering,
    /// Comes back to its cluster.
    Joining,
    /// A working member.
    Running,
    /// Has ended, for a reason that is given.
    Failed,
}

impl NodeState {
    /// All states, in the order of a node's life.
    pub const ALL: [Self; 6] =
        [Self::New, Self::CreatingCluster, Self::Registering, Self::Joining, Self::Running, Self::Failed];

    /// The name, as it stands in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::CreatingCluster => "CreatingCluster",
            Self::Registering => "Registering",
            Self::Joining => "Joining",
            Self::Running => "Running",
            Self::Failed => "Failed",
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for NodeState {
    type Err = String;

    /// Takes a name in any case.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|state| state.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("there is no state {text:?}; known are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// How far the enrolment journal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolmentPhase {
    /// There is no journal yet.
    None,
    /// The intent is durable.
    Formattable,
    /// The data partition is formatted.
    Formatted,
    /// A member of its cluster.
    Enrolled,
    /// Removed from its cluster.
    Removed,
}

/// One member of the consensus cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsensusMember {
    /// Member id, in hex.
    pub member_id: String,
    /// Node that the member runs on; absent when it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_id: Option<String>,
    /// Whether it only learns and has no vote yet.
    pub learner: bool,
}

/// What a node's own consensus member says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsensusStatus {
    /// Id of this node's member, in hex; absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member_id: Option<String>,
    /// Id of the leading member, in hex; absent while there is none.
    pub leader: Option<String>,
    /// Members as this node knows them.
    pub members: Vec<ConsensusMember>,
}

/// How a node's data are protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStatus {
    /// `insecure`, `encrypted` or `authenticated`.
    pub security: String,
    /// Backend of the data partition, for example `plain`.
    pub backend: String,
    /// Use of the TPM: `not_present`, `present_but_unused` or `present_and_used`.
    pub tpm: String,
}

/// The copies of the cluster's state that a node keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotsStatus {
    /// When the state was last known to be what is in the newest one, by the node's own clock.
    pub newest: Timestamp,
    /// Revision of the state: everything up to it is in the newest one.
    pub revision: i64,
    /// How many there are.
    pub kept: usize,
    /// Whether the newest was restored once for trial, besides the check of its hash.
    pub tried: bool,
}

/// A point in the history of a cluster's membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    /// Raised by recovery and restore.
    pub incarnation: u64,
    /// Raised by each change of members.
    pub epoch: u64,
}

/// How a node opens its data at its next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColdStartMode {
    /// Alone.
    Local,
    /// With a key that a running cluster gives it.
    Cluster,
}

/// What a node knows for a start without anybody's help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdStart {
    /// How the node opens its data; absent while that is not decided.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<ColdStartMode>,
    /// The newest membership that the node has made durable; absent before it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub epoch: Option<Epoch>,
    /// How the key is split; absent while it is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub split: Option<SplitStatus>,
}

/// How a node has split the key of its data among the members of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitStatus {
    /// The membership for which it was split.
    pub epoch: Epoch,
    /// How many of the holders open the node; none when it opens alone.
    pub shares_needed: u8,
    /// Ids of the nodes that hold a share.
    pub holders: Vec<String>,
    /// Whether that was tried since, and has given the key.
    pub verified: bool,
}

/// Why the data of a node are not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// It waits for others to open them.
    Locked,
    /// Its own keys cannot be unsealed, and only the recovery key helps.
    Sealed,
}

/// How many shares of its key a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharesStatus {
    /// That others have given.
    pub have: u32,
    /// That open its data.
    pub need: u32,
}

/// What a node waits for whose data are not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockStatus {
    /// Why.
    pub state: LockState,
    /// What it waits for, for people. That time has passed is no change that followers of the status are told of.
    pub reason: String,
    /// Absent when it collects none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shares: Option<SharesStatus>,
    /// Fingerprint of the key that it shows instead of its own, for `polis unlock --fingerprint`; only of a node that is sealed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<String>,
}

/// How a node is in touch with its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Whether the cluster has answered lately, so that the node knows whom it has let go.
    pub in_contact: bool,
    /// When a heartbeat was last answered, by the node's own clock; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_heartbeat: Option<Timestamp>,
    /// The node that leads, as far as this one knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leader: Option<NodeId>,
    /// Why the last attempt to reach it failed; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_failure: Option<String>,
}

/// What a node tells about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// State of the Manager.
    pub state: NodeState,
    /// Why it failed; only in the state Failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Id of the node; absent until its intent is durable.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_id: Option<String>,
    /// Id of its cluster; absent until it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cluster_id: Option<String>,
    /// How far the enrolment has come.
    pub phase: EnrolmentPhase,
    /// Address at which the node serves; absent while it has none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Roles that the node holds, as in `polis node add role`.
    pub roles: Vec<String>,
    /// Absent until the node has an identity in a cluster.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cold_start: Option<ColdStart>,
    /// Absent until the node has an identity in a cluster. That a heartbeat was answered is no change that followers of the
    /// status are told of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub contact: Option<Contact>,
    /// Absent while the node runs no consensus member.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub consensus: Option<ConsensusStatus>,
    /// Absent until the data partition's kind is decided.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub storage: Option<StorageStatus>,
    /// Absent while the data are open, and before there are any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lock: Option<LockStatus>,
    /// Absent while the node has no snapshot that it knows of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snapshots: Option<SnapshotsStatus>,
    /// What is not as it should be.
    pub conditions: Vec<Condition>,
    /// Whether the node is running now: always true from the node itself, false when read from the last state.
    pub running: bool,
}

/// The last transition that a node made, in `DIR/last_state.json`: what is known of a node that does not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastState {
    /// Version of this file's format; this code writes [`LastState::VERSION`] and reads no later one.
    pub version: u32,
    /// The status right after the transition, with `running` false.
    pub status: Status,
}

impl LastState {
    /// Version of the format that this code writes.
    pub const VERSION: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_parts_do_not_appear_in_the_json() {
        let status = Status {
            state: NodeState::New,
            reason: None,
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
            running: true,
        };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(text, r#"{"state":"New","phase":"none","roles":[],"conditions":[],"running":true}"#);
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn states_are_found_by_name_in_any_case() {
        for state in NodeState::ALL {
            assert_eq!(state.name().to_lowercase().parse(), Ok(state));
        }
        assert!("Runing".parse::<NodeState>().unwrap_err().contains("known are New, CreatingCluster"));
    }
}
