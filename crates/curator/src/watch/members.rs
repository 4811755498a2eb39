//! The consensus members with what their nodes' records say of them.

use std::net::Ipv6Addr;

use polis_consensus::Member;
use polis_identity::PeerAddress;

use super::ConsensusMember;
use super::index::Index;
use crate::NodeRecord;

/// The members that are nodes of the cluster, ordered by node.
pub(super) fn consensus_members(members: &[Member], index: &Index) -> Vec<ConsensusMember> {
    let mut found: Vec<ConsensusMember> = members.iter().filter_map(|member| describe(member, index)).collect();
    found.sort_by_key(|member| member.node_id);
    found
}

fn describe(member: &Member, index: &Index) -> Option<ConsensusMember> {
    let record = match &member.node_id {
        Some(id) => index.view(id).record?.value,
        // It tells its name when it starts first; until then its address says who it is.
        None => {
            let address = member.address?;
            index.records().map(|record| &record.value).find(|record| has_address(record, address))?.clone()
        }
    };
    Some(ConsensusMember::of(member, &record))
}

fn has_address(record: &NodeRecord, address: Ipv6Addr) -> bool {
    PeerAddress::of(&record.public_key).ip() == address
}
