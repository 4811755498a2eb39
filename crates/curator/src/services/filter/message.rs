//! A node as the language sees it: messages whose fields are read when they are asked for.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use cel::ExecutionError;
use cel::common::traits::Indexer;
use cel::common::types::{CelBool, CelBytes, CelInt, CelList, CelString, CelUInt, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use polis_proto::api;
use polis_proto::common::node_roles;

use super::moment::Moment;

/// A message inside of a node, or the node.
#[derive(Clone, Debug)]
pub(super) struct Message {
    node: Arc<api::Node>,
    part: Part,
}

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Node,
    Status,
    RunningCurator,
    Version,
    Release,
    GitInformation,
    Roles,
    KubernetesWorker,
    KubernetesController,
    ConsensusMember,
    /// One of the peers of the consensus member; the number only distinguishes them.
    Peer(usize),
    Labels,
    /// One of the labels.
    Pair(usize),
}

/// What a field holds. Absent messages have fields, too, each with its default value.
#[derive(Debug)]
pub(super) enum Field<'a> {
    /// A message, and whether it is set.
    Message(Part, bool),
    /// Messages of one kind, and how many.
    Messages(fn(usize) -> Part, usize),
    Text(&'a str),
    Bytes(&'a [u8]),
    Number(i64),
    Count(u64),
    /// A duration or a point in time; absent when it is not set.
    Moment(Moment, bool),
}

/// Put before the name of a field, it asks whether the field is set. No field's name begins with it.
pub(super) const PRESENCE: char = '?';

impl Message {
    pub(super) const fn new(node: Arc<api::Node>, part: Part) -> Self {
        Self { node, part }
    }
}

impl Part {
    /// Its name in the language.
    const fn message_type(self) -> &'static Type {
        const fn named(name: &'static str) -> Type {
            Type::new_unspecified_type(name)
        }
        static NODE: Type = named("metropolis.proto.api.Node");
        static STATUS: Type = named("metropolis.proto.common.NodeStatus");
        static RUNNING_CURATOR: Type = named("metropolis.proto.common.NodeStatus.RunningCurator");
        static VERSION: Type = named("version.spec.Version");
        static RELEASE: Type = named("version.spec.Version.Release");
        static GIT_INFORMATION: Type = named("version.spec.Version.GitInformation");
        static ROLES: Type = named("metropolis.proto.common.NodeRoles");
        static KUBERNETES_WORKER: Type = named("metropolis.proto.common.NodeRoles.KubernetesWorker");
        static KUBERNETES_CONTROLLER: Type = named("metropolis.proto.common.NodeRoles.KubernetesController");
        static CONSENSUS_MEMBER: Type = named("metropolis.proto.common.NodeRoles.ConsensusMember");
        static PEER: Type = named("metropolis.proto.common.NodeRoles.ConsensusMember.Peer");
        static LABELS: Type = named("metropolis.proto.common.NodeLabels");
        static PAIR: Type = named("metropolis.proto.common.NodeLabels.Pair");
        match self {
            Self::Node => &NODE,
            Self::Status => &STATUS,
            Self::RunningCurator => &RUNNING_CURATOR,
            Self::Version => &VERSION,
            Self::Release => &RELEASE,
            Self::GitInformation => &GIT_INFORMATION,
            Self::Roles => &ROLES,
            Self::KubernetesWorker => &KUBERNETES_WORKER,
            Self::KubernetesController => &KUBERNETES_CONTROLLER,
            Self::ConsensusMember => &CONSENSUS_MEMBER,
            Self::Peer(_) => &PEER,
            Self::Labels => &LABELS,
            Self::Pair(_) => &PAIR,
        }
    }
}

/// The field `name` of a message; `None` when the message has no such field. What there is does not depend on the node.
pub(super) fn field<'a>(node: &'a api::Node, part: Part, name: &str) -> Option<Field<'a>> {
    let status = node.status.as_ref();
    let version = status.and_then(|status| status.version.as_ref());
    let release = version.and_then(|version| version.release.as_ref());
    let git = version.and_then(|version| version.git_information.as_ref());
    let roles = node.roles.as_ref();
    let member = roles.and_then(|roles| roles.consensus_member.as_ref());
    let found = match (part, name) {
        (Part::Node, "pubkey") => Field::Bytes(&node.pubkey),
        (Part::Node, "id") => Field::Text(&node.id),
        (Part::Node, "state") => Field::Number(node.state.into()),
        (Part::Node, "status") => Field::Message(Part::Status, status.is_some()),
        (Part::Node, "roles") => Field::Message(Part::Roles, roles.is_some()),
        (Part::Node, "health") => Field::Number(node.health.into()),
        (Part::Node, "time_since_heartbeat") => {
            let duration = node.time_since_heartbeat.as_ref();
            Field::Moment(Moment::of_duration(duration), duration.is_some())
        }
        (Part::Node, "tpm_usage") => Field::Number(node.tpm_usage.into()),
        (Part::Node, "labels") => Field::Message(Part::Labels, node.labels.is_some()),
        (Part::Status, "external_address") => Field::Text(status.map_or("", |status| &status.external_address)),
        (Part::Status, "running_curator") => {
            Field::Message(Part::RunningCurator, status.is_some_and(|status| status.running_curator.is_some()))
        }
        (Part::Status, "timestamp") => {
            let timestamp = status.and_then(|status| status.timestamp.as_ref());
            Field::Moment(Moment::of_timestamp(timestamp), timestamp.is_some())
        }
        (Part::Status, "version") => Field::Message(Part::Version, version.is_some()),
        (Part::Status, "boot_id") => Field::Bytes(status.map_or(&[], |status| &status.boot_id)),
        (Part::RunningCurator, "port") => {
            let curator = status.and_then(|status| status.running_curator.as_ref());
            Field::Number(curator.map_or(0, |curator| curator.port.into()))
        }
        (Part::Version, "release") => Field::Message(Part::Release, release.is_some()),
        (Part::Version, "git_information") => Field::Message(Part::GitInformation, git.is_some()),
        (Part::Release, "major") => Field::Number(release.map_or(0, |release| release.major)),
        (Part::Release, "minor") => Field::Number(release.map_or(0, |release| release.minor)),
        (Part::Release, "patch") => Field::Number(release.map_or(0, |release| release.patch)),
        (Part::GitInformation, "commit_hash") => Field::Text(git.map_or("", |git| &git.commit_hash)),
        (Part::GitInformation, "commits_since_release") => Field::Count(git.map_or(0, |git| git.commits_since_release)),
        (Part::GitInformation, "build_tree_state") => Field::Number(git.map_or(0, |git| git.build_tree_state.into())),
        (Part::Roles, "kubernetes_worker") => {
            Field::Message(Part::KubernetesWorker, roles.is_some_and(|roles| roles.kubernetes_worker.is_some()))
        }
        (Part::Roles, "kubernetes_controller") => {
            let controller = roles.is_some_and(|roles| roles.kubernetes_controller.is_some());
            Field::Message(Part::KubernetesController, controller)
        }
        (Part::Roles, "consensus_member") => Field::Message(Part::ConsensusMember, member.is_some()),
        (Part::ConsensusMember, "ca_certificate") => Field::Bytes(member.map_or(&[], |member| &member.ca_certificate)),
        (Part::ConsensusMember, "peer_certificate") => {
            Field::Bytes(member.map_or(&[], |member| &member.peer_certificate))
        }
        (Part::ConsensusMember, "initial_crl") => Field::Bytes(member.map_or(&[], |member| &member.initial_crl)),
        (Part::ConsensusMember, "peers") => Field::Messages(Part::Peer, member.map_or(0, |member| member.peers.len())),
        (Part::Peer(number), "name") => Field::Text(peer(member, number).map_or("", |peer| &peer.name)),
        (Part::Peer(number), "url") => Field::Text(peer(member, number).map_or("", |peer| &peer.url)),
        (Part::Labels, "pairs") => Field::Messages(Part::Pair, node.labels.as_ref().map_or(0, |all| all.pairs.len())),
        (Part::Pair(number), "key") => Field::Text(pair(node, number).map_or("", |pair| &pair.key)),
        (Part::Pair(number), "value") => Field::Text(pair(node, number).map_or("", |pair| &pair.value)),
        (
            Part::Node
            | Part::Status
            | Part::RunningCurator
            | Part::Version
            | Part::Release
            | Part::GitInformation
            | Part::Roles
            | Part::KubernetesWorker
            | Part::KubernetesController
            | Part::ConsensusMember
            | Part::Peer(_)
            | Part::Labels
            | Part::Pair(_),
            _,
        ) => return None,
    };
    Some(found)
}

fn peer(member: Option<&node_roles::ConsensusMember>, number: usize) -> Option<&node_roles::consensus_member::Peer> {
    member.and_then(|member| member.peers.get(number))
}

fn pair(node: &api::Node, number: usize) -> Option<&polis_proto::common::node_labels::Pair> {
    node.labels.as_ref().and_then(|labels| labels.pairs.get(number))
}

impl Field<'_> {
    /// Whether `has` holds for it: a message is set, anything else has another value than the default.
    fn is_set(&self) -> bool {
        match self {
            Self::Message(_, set) | Self::Moment(_, set) => *set,
            Self::Messages(_, count) => *count > 0,
            Self::Text(text) => !text.is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::Number(number) => *number != 0,
            Self::Count(count) => *count != 0,
        }
    }

    fn value<'v>(self, node: &Arc<api::Node>) -> Box<dyn Val + 'v> {
        let message = |part| Message::new(Arc::clone(node), part);
        match self {
            Self::Message(part, _) => Box::new(message(part)),
            Self::Messages(part, count) => {
                let all = (0..count).map(|number| Box::new(message(part(number))) as Box<dyn Val>);
                Box::new(CelList::from(all.collect::<Vec<_>>()))
            }
            Self::Text(text) => Box::new(CelString::from(Cow::Owned(text.to_owned()))),
            Self::Bytes(bytes) => Box::new(CelBytes::from(bytes.to_vec())),
            Self::Number(number) => Box::new(CelInt::from(number)),
            Self::Count(count) => Box::new(CelUInt::from(count)),
            Self::Moment(moment, _) => Box::new(moment),
        }
    }
}

impl Indexer for Message {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let Some(name) = name.downcast_ref::<CelString<'_>>().map(CelString::inner) else {
            return Err(ExecutionError::no_such_key("a field that is named by something else than text"));
        };
        let unknown = || ExecutionError::no_such_key(name);
        match name.strip_prefix(PRESENCE) {
            Some(tested) => {
                let field = field(&self.node, self.part, tested).ok_or_else(unknown)?;
                if field.is_set() { Ok(CowVal::owned(CelBool::from(true))) } else { Err(unknown()) }
            }
            None => {
                let field = field(&self.node, self.part, name).ok_or_else(unknown)?;
                Ok(CowVal::Owned(field.value(&self.node)))
            }
        }
    }

    fn steal<'v>(self: Box<Self>, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(name).map(CowVal::into_owned)
    }
}

impl Val for Message {
    fn get_type(&self) -> &Type {
        self.part.message_type()
    }

    /// Only used for arguments of functions, and none takes a message.
    fn cel_type() -> &'static Type {
        Part::Node.message_type()
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    /// There is one node at a time, so the same part is the same message.
    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.part == other.part)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Message {}
