//! How every member is at this moment: the fresh answers on which a decision about the quorum may rest.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use crate::BoxError;
use crate::consensus::Inner;
use crate::membership::MembershipError;
use crate::raft_progress::RaftProgress;
use crate::status::Member;
use crate::version::Version;

/// How long a member may take to answer. One that takes longer at this moment is no help for a quorum.
pub const SURVEY_DEADLINE: Duration = Duration::from_secs(1);

/// Entries by which a member may be behind and still be counted on. What is further behind than etcd keeps entries in memory
/// needs a snapshot first; this is half of it.
pub const MAX_LAG: u64 = 5_000;

/// Longest list of etcd's figures that is taken. With nine members it has some 60 KiB.
const MAX_FIGURES: u64 = 4 << 20;

/// The members and how each of them is, asked within [`SURVEY_DEADLINE`] at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Ordered by etcd's id.
    pub members: Vec<SurveyedMember>,
    /// The member that leads.
    pub leader: Option<u64>,
    /// Raft's term.
    pub raft_term: u64,
    /// Names of etcd's open alarms, for example `NOSPACE`.
    pub alarms: Vec<String>,
}

/// One member and how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedMember {
    /// Its entry.
    pub member: Member,
    /// Version of its etcd: it has answered just now.
    pub version: Option<Version>,
    /// Why it has not answered; for people.
    pub failure: Option<String>,
    /// Entries of raft by which it is behind what is committed. Only the leader knows, and only if its etcd tells.
    pub lag: Option<u64>,
    /// Size of its database in bytes. A member tells only its own.
    pub database_bytes: Option<u64>,
}

impl SurveyedMember {
    /// Whether it can be counted on: it has answered just now, and is not known to be far behind. Unknown counts as down.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.version.is_some() && self.lag.is_none_or(|lag| lag <= MAX_LAG)
    }
}

/// Surveys the members, as listed by this one.
pub(crate) async fn survey(inner: &Inner) -> Result<Survey, MembershipError> {
    let mut maintenance = inner.connection.local().maintenance_client();
    let members = inner.membership.members();
    let status = async { timeout(SURVEY_DEADLINE, maintenance.status()).await };
    let (members, status, progress) = tokio::join!(members, status, progress(inner));
    let members = members?;
    let status = status.ok().and_then(Result::ok).map(|status| status.0);
    let (leader, raft_term) = status.as_ref().map_or((0, 0), |status| (status.leader, status.raft_term));
    let own = status.as_ref().and_then(|status| status.header.as_ref()).map(|header| header.member_id);
    let probed = members.into_iter().map(|member| async {
        let is_own = own == Some(member.id);
        let answer = match status.as_ref().filter(|_| is_own) {
            Some(status) => status.version.parse().map_err(|_| "its version is not understood".into()),
            None => probe(inner, &member).await,
        };
        let (version, failure) = match answer {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(polis_supervisor::with_causes(&*error))),
        };
        SurveyedMember {
            // This member itself is never behind in its own eyes, also when it does not lead.
            lag: progress.as_ref().and_then(|progress| progress.lag(member.id)),
            database_bytes: status.as_ref().filter(|_| is_own).and_then(|status| status.db_size.try_into().ok()),
            version,
            failure,
            member,
        }
    });
    let alarms = status.iter().flat_map(|status| &status.errors).filter_map(|error| alarm(error)).collect();
    Ok(Survey { members: join_all(probed).await, leader: (leader != 0).then_some(leader), raft_term, alarms })
}

/// What raft on this member knows of the others.
pub(crate) async fn progress(inner: &Inner) -> Option<RaftProgress> {
    let figures = timeout(SURVEY_DEADLINE, inner.connection.get("/debug/vars", MAX_FIGURES)).await;
    RaftProgress::parse(&figures.ok()?.ok()?)
}

/// Asks one member that is not this one.
async fn probe(inner: &Inner, member: &Member) -> Result<Version, BoxError> {
    let identity_address = member.address.ok_or("its peer URL is not one that Polis has made")?;
    let address = inner.peers.borrow().get(&identity_address).copied();
    let address = address.ok_or("nobody has told where it is")?;
    match timeout(SURVEY_DEADLINE, inner.prober.version(identity_address, address)).await {
        Ok(answer) => answer.map_err(|error| format!("no answer from {address}: {error}").into()),
        Err(_) => Err(format!("no answer from {address} within {} ms", SURVEY_DEADLINE.as_millis()).into()),
    }
}

/// Name of the alarm in an error of etcd's status, such as `memberID:8211 alarm:NOSPACE `.
fn alarm(error: &str) -> Option<String> {
    error.split_whitespace().find_map(|word| word.strip_prefix("alarm:")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_answered_or_is_far_behind_is_not_reachable() {
        let version = Some(Version::new(3, 4, 23));
        for (version, lag, expected) in [
            (version, None, true),
            (version, Some(0), true),
            (version, Some(MAX_LAG), true),
            (version, Some(MAX_LAG + 1), false),
            (None, Some(0), false),
            (None, None, false),
        ] {
            let member = Member { id: 1, node_id: None, address: None, is_learner: false, is_started: true };
            let surveyed = SurveyedMember { member, version, failure: None, lag, database_bytes: None };
            assert_eq!(surveyed.is_reachable(), expected, "{version:?} {lag:?}");
        }
    }

    #[test]
    fn alarms_are_named() {
        assert_eq!(alarm("memberID:9372538179322589801 alarm:NOSPACE ").as_deref(), Some("NOSPACE"));
        assert_eq!(alarm("etcdserver: no leader"), None);
    }
}
