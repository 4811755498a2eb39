//! The nodes of the cluster in the form that Prometheus' HTTP service discovery reads (metropolis.md J.4).

use std::collections::BTreeMap;

use serde::Serialize;

/// A node that can be asked for its metrics.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Discovered {
    pub(crate) node_id: String,
    /// IP address at which the cluster last knew it.
    pub(crate) address: String,
    pub(crate) consensus_member: bool,
    pub(crate) kubernetes_controller: bool,
    pub(crate) kubernetes_worker: bool,
}

/// One entry of the answer.
#[derive(Serialize)]
struct Group<'a> {
    targets: [&'a str; 1],
    labels: BTreeMap<&'static str, String>,
}

/// The answer; none while there is nobody to name, so that Prometheus keeps what it knew.
///
/// # Errors
///
/// When it has no JSON form, which does not happen.
pub(crate) fn render(mut nodes: Vec<Discovered>) -> Result<Option<String>, serde_json::Error> {
    if nodes.is_empty() {
        return Ok(None);
    }
    nodes.sort();
    let groups: Vec<Group<'_>> = nodes
        .iter()
        .map(|node| Group {
            targets: [&node.address],
            labels: BTreeMap::from([
                ("__meta_metropolis_role_consensus_member", node.consensus_member.to_string()),
                ("__meta_metropolis_role_kubernetes_controller", node.kubernetes_controller.to_string()),
                ("__meta_metropolis_role_kubernetes_worker", node.kubernetes_worker.to_string()),
                ("__meta_metropolis_node", node.node_id.clone()),
            ]),
        })
        .collect();
    serde_json::to_string(&groups).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_exactly_what_prometheus_reads() {
        assert_eq!(render(vec![]).unwrap(), None);
        let worker = Discovered {
            node_id: "metropolis-b".into(),
            address: "2001:db8::1".into(),
            consensus_member: false,
            kubernetes_controller: false,
            kubernetes_worker: true,
        };
        let member = Discovered {
            node_id: "metropolis-a".into(),
            address: "192.0.2.1".into(),
            consensus_member: true,
            ..worker.clone()
        };
        let member = Discovered { kubernetes_worker: false, ..member };
        assert_eq!(
            render(vec![worker, member]).unwrap().unwrap(),
            concat!(
                r#"[{"targets":["192.0.2.1"],"labels":{"__meta_metropolis_node":"metropolis-a","#,
                r#""__meta_metropolis_role_consensus_member":"true","__meta_metropolis_role_kubernetes_controller":"false","#,
                r#""__meta_metropolis_role_kubernetes_worker":"false"}},"#,
                r#"{"targets":["2001:db8::1"],"labels":{"__meta_metropolis_node":"metropolis-b","#,
                r#""__meta_metropolis_role_consensus_member":"false","__meta_metropolis_role_kubernetes_controller":"false","#,
                r#""__meta_metropolis_role_kubernetes_worker":"true"}}]"#,
            )
        );
    }
}
