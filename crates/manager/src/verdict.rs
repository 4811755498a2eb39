//! What the failure of a call to the cluster means for this node: one table, and the words for people.

use polis_condition::Severity;
use polis_identity::{ClusterId, NodeId};
use polis_roleserve::UNKNOWN_TO_CLUSTER;
use tonic::Code;

use crate::cluster_access::{AttemptProblem, CallFailure};
use crate::pace::Pace;
use crate::trouble::Curable;

/// The cluster cannot be reached.
pub(crate) const CLUSTER_UNREACHABLE: &str = "cluster-unreachable";
/// Nodes of another cluster answer where this one's should be.
const CLUSTER_IS_ANOTHER: &str = "cluster-is-another";
/// The cluster answers, but cannot do anything now.
const CLUSTER_NOT_READY: &str = "cluster-not-ready";
/// The register ticket was refused, or what else makes a cluster turn a machine away.
const REGISTER_TICKET_REFUSED: &str = "register-ticket-refused";
/// The cluster does not want the node in the state in which it has it.
const REGISTER_REFUSED: &str = "register-refused";
/// An operator has to approve the node.
pub(crate) const WAITING_FOR_APPROVAL: &str = "waiting-for-approval";
/// The cluster refuses to make the node a member.
const COMMIT_REFUSED: &str = "commit-refused";
/// The cluster does not take this node for what it is.
const CLUSTER_REFUSES_NODE: &str = "cluster-refuses-node";
/// The data partition opens with a key that the cluster keeps, and no cluster gives it.
const WAITING_FOR_UNLOCK: &str = "waiting-for-unlock";
/// The cluster does not give the key of the data partition to the node.
const UNLOCK_REFUSED: &str = "unlock-refused";
/// What the cluster answers makes no sense.
const CLUSTER_INCOMPATIBLE: &str = "cluster-incompatible";

/// Every condition that a call to the cluster can raise.
pub(crate) const CONDITIONS: [&str; 12] = [
    CLUSTER_UNREACHABLE,
    CLUSTER_IS_ANOTHER,
    CLUSTER_NOT_READY,
    REGISTER_TICKET_REFUSED,
    REGISTER_REFUSED,
    WAITING_FOR_APPROVAL,
    COMMIT_REFUSED,
    CLUSTER_REFUSES_NODE,
    WAITING_FOR_UNLOCK,
    UNLOCK_REFUSED,
    UNKNOWN_TO_CLUSTER,
    CLUSTER_INCOMPATIBLE,
];

/// A call to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Asking for admission.
    Register,
    /// Becoming a member.
    Commit,
    /// Asking for the key of the data partition.
    Join,
    /// Asking whether the node was deleted.
    Tombstone,
}

/// Who calls whom, for the words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parties {
    pub(crate) node: NodeId,
    pub(crate) cluster: ClusterId,
}

/// What a failed call means.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Repeat the call, with this condition.
    Repeat(Curable),
    /// The node may have been deleted. What is shown as proof is to be checked, and where nothing is shown the cluster is to be asked.
    PerhapsDeleted {
        /// Serialized tombstone.
        proof: Option<Vec<u8>>,
        /// What it is if the node was not deleted; absent when the cluster then has lost its record of the node.
        otherwise: Option<Curable>,
    },
}

/// Decides what the failure of a call means.
pub(crate) fn verdict(call: Call, parties: Parties, failure: &CallFailure) -> Verdict {
    let Parties { node, cluster } = parties;
    match failure {
        CallFailure::Unreachable { attempts } => Verdict::Repeat(unreachable(call, parties, failure, attempts)),
        CallFailure::Unusable { .. } => Verdict::Repeat(Curable {
            condition: CLUSTER_INCOMPATIBLE,
            severity: Severity::Error,
            message: format!("{} with the cluster {cluster} does not work: {failure}", call.doing()),
            hint: "see whether this node and the cluster run versions of Polis that go together; it is tried again"
                .into(),
            pace: Pace::Refused,
        }),
        CallFailure::Answered { tombstone: Some(tombstone), .. } => {
            Verdict::PerhapsDeleted { proof: Some(tombstone.clone()), otherwise: Some(not_believed(node, cluster)) }
        }
        CallFailure::Answered { code, tombstone: None, .. } => answered(call, parties, *code, failure),
    }
}

/// The cluster has shown a tombstone of this node that is none.
fn not_believed(node: NodeId, cluster: ClusterId) -> Curable {
    Curable {
        condition: CLUSTER_REFUSES_NODE,
        severity: Severity::Error,
        message: format!(
            "somebody says that {node} was deleted from the cluster {cluster}, but what is shown for it is not signed by the \
             cluster's CA for this node; it is not believed"
        ),
        hint: "see who answers at the addresses of the cluster; it is tried again".into(),
        pace: Pace::Refused,
    }
}

/// The option that leads a command to whoever has answered, if that is known: an operator elsewhere may not know an address.
fn endpoints(failure: &CallFailure) -> String {
    match failure {
        CallFailure::Answered { endpoint: Some(endpoint), .. }
        | CallFailure::Unusable { endpoint: Some(endpoint), .. } => {
            format!(" --endpoints {endpoint}")
        }
        CallFailure::Answered { endpoint: None, .. }
        | CallFailure::Unusable { endpoint: None, .. }
        | CallFailure::Unreachable { .. } => String::new(),
    }
}

fn answered(call: Call, parties: Parties, code: Code, failure: &CallFailure) -> Verdict {
    let Parties { node, cluster } = parties;
    let curable = |condition, pace, message: String, hint: String| {
        let severity = Severity::Error;
        Curable { condition, severity, message, hint, pace }
    };
    let repeat = |condition, pace, message, hint| Verdict::Repeat(curable(condition, pace, message, hint));
    let refused = |condition, message| {
        let hint = format!("see `polis node describe {node}`; the node goes on by itself once the cluster takes it");
        let otherwise = Some(curable(condition, Pace::Refused, message, hint));
        Verdict::PerhapsDeleted { proof: None, otherwise }
    };
    match (call, code) {
        // What passes: no leader, a change of the leader, a lost answer, a server that has too much to do.
        (
            _,
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted
            | Code::ResourceExhausted
            | Code::Internal
            | Code::Unknown
            | Code::DataLoss
            | Code::Ok,
        ) => match call {
            Call::Join => Verdict::Repeat(waiting_for_unlock(parties, failure)),
            Call::Register | Call::Commit | Call::Tombstone => repeat(
                CLUSTER_NOT_READY,
                Pace::Soon,
                format!("{} with the cluster {cluster} was not answered: {failure}", call.doing()),
                "`polis cluster health` tells how the cluster is; the node goes on by itself".into(),
            ),
        },
        // A cluster says so with the code of a wrong ticket (metropolis.md, G.4); only its words tell them apart.
        (Call::Register, Code::PermissionDenied) if asks_for_tpm(failure) => repeat(
            REGISTER_REFUSED,
            Pace::Refused,
            format!("the cluster {cluster} does not register {node}: {failure}"),
            "see whether the TPM of this machine is switched on and the program polis-tpm is installed, and start the node again; or \
             join a cluster whose TPM mode is best-effort or disabled"
                .into(),
        ),
        (Call::Register, Code::PermissionDenied | Code::Unauthenticated) => repeat(
            REGISTER_TICKET_REFUSED,
            Pace::Refused,
            format!("the cluster {cluster} does not take the register ticket of this node: {failure}"),
            "make new parameters with `polis parameters register` and start the node with them: it stays the same node; it also \
             goes on by itself if the cluster takes the ticket again"
                .into(),
        ),
        (Call::Register, Code::FailedPrecondition | Code::AlreadyExists | Code::NotFound) => {
            refused(REGISTER_REFUSED, format!("the cluster {cluster} does not register {node}: {failure}"))
        }
        (Call::Commit, Code::PermissionDenied) => Verdict::Repeat(Curable {
            condition: WAITING_FOR_APPROVAL,
            severity: Severity::Warning,
            message: format!("{node} has asked the cluster {cluster} for admission; an operator has to approve it"),
            hint: format!(
                "approve it with `polis node approve {node}{}` where the owner key is; the node goes on by itself within moments",
                endpoints(failure)
            ),
            pace: Pace::Decision,
        }),
        (Call::Commit, Code::NotFound) => {
            Verdict::PerhapsDeleted { proof: None, otherwise: None }
        }
        (Call::Commit, Code::FailedPrecondition | Code::AlreadyExists | Code::Unauthenticated) => {
            refused(COMMIT_REFUSED, format!("the cluster {cluster} does not make {node} a member: {failure}"))
        }
        (Call::Join, Code::PermissionDenied) => repeat(
            UNLOCK_REFUSED,
            Pace::Refused,
            format!("the cluster {cluster} does not give {node} the key of its data: {failure}"),
            "see whether this is the machine that registered, with its TPM; the node goes on by itself once the cluster gives the key"
                .into(),
        ),
        // A node that is open asks for other things first, and says the same then.
        (Call::Join, Code::NotFound) => Verdict::PerhapsDeleted {
            proof: None,
            otherwise: Some(curable(
                UNKNOWN_TO_CLUSTER,
                Pace::Refused,
                format!(
                    "the cluster {cluster} has no record of this node ({node}), so it does not give it the key of its data: {failure}. The \
                     cluster may have been restored from a state that is older than the node"
                ),
                "the node goes on asking, and nothing was changed; the cluster's recovery key opens its data (`polis unlock --recovery -`); \
                 if it is to be a new node, start it with an empty root"
                    .into(),
            )),
        },
        (Call::Join, Code::FailedPrecondition | Code::AlreadyExists | Code::Unauthenticated) => {
            refused(UNLOCK_REFUSED, format!("the cluster {cluster} does not give {node} the key of its data: {failure}"))
        }
        (
            Call::Tombstone,
            Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::AlreadyExists,
        )
        | (_, Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented) => repeat(
            CLUSTER_INCOMPATIBLE,
            Pace::Refused,
            format!("{} with the cluster {cluster} does not work: {failure}", call.doing()),
            "see whether this node and the cluster run versions of Polis that go together; it is tried again".into(),
        ),
    }
}

/// Whether what the cluster wants is a TPM.
fn asks_for_tpm(failure: &CallFailure) -> bool {
    match failure {
        CallFailure::Answered { message, .. } => message.contains("TPM"),
        CallFailure::Unreachable { .. } | CallFailure::Unusable { .. } => false,
    }
}

/// What a locked node waits for, and that nothing else can help it.
fn waiting_for_unlock(Parties { node, cluster }: Parties, failure: &CallFailure) -> Curable {
    Curable {
        condition: WAITING_FOR_UNLOCK,
        severity: Severity::Error,
        message: format!(
            "the data of {node} are encrypted, and the cluster {cluster} keeps the other half of the key: the node waits for a running \
             cluster: {failure}"
        ),
        hint: "start other nodes until a quorum of the consensus members runs, or name addresses with `polis node peers set`; the node \
               goes on by itself. After a cold start of the whole cluster a quorum of its members comes back first, by their shares of each \
               other's keys, and then gives this one its key; where too few members are left, the recovery key opens a node: `polis unlock \
               --recovery -`"
            .into(),
        pace: Pace::Soon,
    }
}

fn unreachable(
    call: Call,
    parties: Parties,
    failure: &CallFailure,
    attempts: &[crate::cluster_access::Attempt],
) -> Curable {
    let cluster = parties.cluster;
    let others = attempts.iter().filter(|attempt| match attempt.problem {
        AttemptProblem::OtherCluster { .. } => true,
        AttemptProblem::Failed(_) => false,
    });
    let give_addresses = "new parameters with other addresses may be given at the next start: it stays the same node";
    if others.count() > 0 {
        return Curable {
            condition: CLUSTER_IS_ANOTHER,
            severity: Severity::Error,
            message: format!("this node belongs to the cluster {cluster}, and another one is found: {failure}"),
            hint: format!("see whether addresses and CA are of one cluster; {give_addresses}; it is tried again"),
            pace: Pace::Soon,
        };
    }
    if call == Call::Join {
        return waiting_for_unlock(parties, failure);
    }
    Curable {
        condition: CLUSTER_UNREACHABLE,
        severity: Severity::Error,
        message: format!("the cluster {cluster} cannot be reached: {failure}"),
        hint: format!(
            "see whether one of these is a running node of the cluster and whether its port {} is open; {give_addresses}; it is \
             tried again",
            polis_rpc::CURATOR_PORT
        ),
        pace: Pace::Soon,
    }
}

impl Call {
    /// The call as a subject.
    const fn doing(self) -> &'static str {
        match self {
            Self::Register => "registering",
            Self::Commit => "becoming a member",
            Self::Join => "unlocking the data",
            Self::Tombstone => "asking whether this node was deleted",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use polis_identity::{CertificateAuthority, NodeKey};

    use super::*;
    use crate::cluster_access::Attempt;

    const CALLS: [Call; 4] = [Call::Register, Call::Commit, Call::Join, Call::Tombstone];

    const CODES: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    fn parties() -> Parties {
        let authority = CertificateAuthority::generate("a test");
        Parties { node: NodeId::of(&NodeKey::generate().public()), cluster: authority.certificate().cluster_id() }
    }

    fn address() -> SocketAddr {
        "192.0.2.7:7835".parse().unwrap()
    }

    fn answer(code: Code) -> CallFailure {
        CallFailure::Answered { code, message: "so it is".into(), endpoint: Some(address()), tombstone: None }
    }

    /// What follows from a verdict.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Then {
        Repeat,
        AskWhetherDeleted,
        RegisterAgainUnlessDeleted,
    }

    /// What follows, with the name of the condition and the pace, if it is one.
    fn seen(verdict: &Verdict) -> (Then, Option<(&'static str, Pace)>) {
        let shown = |curable: &Curable| Some((curable.condition, curable.pace));
        match verdict {
            Verdict::Repeat(curable) => (Then::Repeat, shown(curable)),
            Verdict::PerhapsDeleted { otherwise: Some(otherwise), .. } => (Then::AskWhetherDeleted, shown(otherwise)),
            Verdict::PerhapsDeleted { otherwise: None, .. } => (Then::RegisterAgainUnlessDeleted, None),
        }
    }

    #[test]
    fn every_answer_to_every_call_has_a_meaning() {
        use Call::{Commit, Join, Register, Tombstone};
        let soon = |call| {
            let condition = if call == Join { WAITING_FOR_UNLOCK } else { CLUSTER_NOT_READY };
            (Then::Repeat, Some((condition, Pace::Soon)))
        };
        let incompatible = (Then::Repeat, Some((CLUSTER_INCOMPATIBLE, Pace::Refused)));
        let rest = |call, code| match (call, code) {
            (Register, Code::PermissionDenied | Code::Unauthenticated) => {
                (Then::Repeat, Some((REGISTER_TICKET_REFUSED, Pace::Refused)))
            }
            (Register, Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition) => {
                (Then::AskWhetherDeleted, Some((REGISTER_REFUSED, Pace::Refused)))
            }
            (Commit, Code::PermissionDenied) => (Then::Repeat, Some((WAITING_FOR_APPROVAL, Pace::Decision))),
            (Commit, Code::NotFound) => (Then::RegisterAgainUnlessDeleted, None),
            (Commit, Code::AlreadyExists | Code::FailedPrecondition | Code::Unauthenticated) => {
                (Then::AskWhetherDeleted, Some((COMMIT_REFUSED, Pace::Refused)))
            }
            (Join, Code::PermissionDenied) => (Then::Repeat, Some((UNLOCK_REFUSED, Pace::Refused))),
            (Join, Code::NotFound) => (Then::AskWhetherDeleted, Some((UNKNOWN_TO_CLUSTER, Pace::Refused))),
            (Join, Code::AlreadyExists | Code::FailedPrecondition | Code::Unauthenticated) => {
                (Then::AskWhetherDeleted, Some((UNLOCK_REFUSED, Pace::Refused)))
            }
            (Tombstone, _) | (_, Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented) => incompatible,
            (call, code) => panic!("{call:?} {code:?} is not in the table"),
        };
        for call in CALLS {
            for code in CODES {
                let passes = matches!(
                    code,
                    Code::Ok
                        | Code::Cancelled
                        | Code::Unknown
                        | Code::DeadlineExceeded
                        | Code::ResourceExhausted
                        | Code::Aborted
                        | Code::Internal
                        | Code::Unavailable
                        | Code::DataLoss
                );
                let expect = if passes { soon(call) } else { rest(call, code) };
                assert_eq!(seen(&verdict(call, parties(), &answer(code))), expect, "{call:?} {code:?}");
            }
        }
    }

    #[test]
    fn a_missing_tpm_is_no_wrong_ticket() {
        for (message, condition) in [
            ("wrong register ticket", REGISTER_TICKET_REFUSED),
            ("the cluster requires a TPM (tpm_mode REQUIRED) and this machine has none", REGISTER_REFUSED),
        ] {
            let failure = CallFailure::Answered {
                code: Code::PermissionDenied,
                message: message.into(),
                endpoint: None,
                tombstone: None,
            };
            let verdict = verdict(Call::Register, parties(), &failure);
            assert_eq!(seen(&verdict), (Then::Repeat, Some((condition, Pace::Refused))));
        }
    }

    #[test]
    fn a_tombstone_is_looked_at_whatever_it_came_with() {
        for call in CALLS {
            for code in CODES {
                let failure = CallFailure::Answered {
                    code,
                    message: "gone".into(),
                    endpoint: None,
                    tombstone: Some(b"signed".to_vec()),
                };
                let verdict = verdict(call, parties(), &failure);
                let Verdict::PerhapsDeleted { proof: Some(proof), .. } = verdict else {
                    panic!("{call:?} {code:?}: {verdict:?}");
                };
                assert_eq!(proof, b"signed");
            }
        }
    }

    #[test]
    fn whom_nobody_answers_is_told_each_address_and_what_happened_there() {
        let failed = |text: &str| Attempt { address: address(), problem: AttemptProblem::Failed(text.into()) };
        let found = CertificateAuthority::generate("another").certificate().cluster_id();
        let foreign = |found| Attempt { address: address(), problem: AttemptProblem::OtherCluster { found } };
        let table: [(Vec<Attempt>, &str, Vec<String>); 4] = [
            (Vec::new(), CLUSTER_UNREACHABLE, vec!["no address is known".into()]),
            (
                vec![failed("refused"), failed("timed out")],
                CLUSTER_UNREACHABLE,
                vec!["192.0.2.7:7835: refused; 192.0.2.7:7835: timed out".into()],
            ),
            (vec![failed("refused"), foreign(Some(found))], CLUSTER_IS_ANOTHER, vec![found.to_string()]),
            (vec![foreign(None)], CLUSTER_IS_ANOTHER, vec!["no node of this cluster".into()]),
        ];
        for call in CALLS {
            for (attempts, condition, parts) in &table {
                let parties = parties();
                let Verdict::Repeat(curable) =
                    verdict(call, parties, &CallFailure::Unreachable { attempts: attempts.clone() })
                else {
                    panic!("{attempts:?}");
                };
                let locked = call == Call::Join && *condition == CLUSTER_UNREACHABLE;
                let condition = if locked { WAITING_FOR_UNLOCK } else { *condition };
                assert_eq!((curable.condition, curable.pace), (condition, Pace::Soon));
                assert!(curable.message.contains(&parties.cluster.to_string()), "{}", curable.message);
                for part in parts {
                    assert!(curable.message.contains(part), "{part} is not in {}", curable.message);
                }
            }
        }
    }

    #[test]
    fn who_waits_for_approval_is_told_the_command() {
        let parties = parties();
        let Verdict::Repeat(curable) = verdict(Call::Commit, parties, &answer(Code::PermissionDenied)) else {
            panic!("it is not repeated");
        };
        let command = format!("`polis node approve {} --endpoints {}`", parties.node, address());
        assert!(curable.hint.contains(&command), "{}", curable.hint);
        assert!(curable.message.contains(&parties.node.to_string()), "{}", curable.message);
    }

    #[test]
    fn every_condition_is_in_the_list() {
        for call in CALLS {
            for code in CODES {
                if let (_, Some((condition, _))) = seen(&verdict(call, parties(), &answer(code))) {
                    assert!(CONDITIONS.contains(&condition), "{call:?} {code:?}");
                }
            }
        }
    }
}
