//! What is shown of the node.

use polis_condition::Condition;

/// What is shown of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Version of Polis.
    pub version: String,
    /// Id of the node; absent until it has one.
    pub node_id: Option<String>,
    /// Id of its cluster; absent until it has one.
    pub cluster_id: Option<String>,
    /// SHA-256 of the cluster's CA certificate, in hex, which an operator compares; absent until the node knows it.
    pub ca_fingerprint: Option<String>,
    /// Address at which the node is managed; absent while it has none.
    pub address: Option<String>,
    /// Roles that it holds.
    pub roles: Vec<String>,
    /// Where it stands on its way into the cluster.
    pub state: String,
    /// Why it failed, if it has.
    pub failure: Option<String>,
    /// What is not as it should be.
    pub conditions: Vec<Condition>,
}

impl Overview {
    /// Where the node stands, without what changes all the time: conditions are in the log anyway.
    pub(crate) fn in_one_line(&self) -> String {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".into());
        let roles = if self.roles.is_empty() { "none".into() } else { self.roles.join(", ") };
        let mut line = format!(
            "{}, node {}, address {}, roles {roles}",
            if self.state.is_empty() { "starting" } else { &self.state },
            or_none(&self.node_id),
            or_none(&self.address),
        );
        if let Some(failure) = &self.failure {
            line.push_str(": ");
            line.push_str(failure);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_where_the_node_stands() {
        assert_eq!(Overview::default().in_one_line(), "starting, node none, address none, roles none");
        let overview = Overview {
            state: "Failed".into(),
            node_id: Some("metropolis-aa".into()),
            address: Some("10.0.0.1".into()),
            roles: vec!["ConsensusMember".into(), "KubernetesWorker".into()],
            failure: Some("removed from the cluster".into()),
            ..Overview::default()
        };
        assert_eq!(
            overview.in_one_line(),
            "Failed, node metropolis-aa, address 10.0.0.1, roles ConsensusMember, KubernetesWorker: removed from the cluster"
        );
    }
}
