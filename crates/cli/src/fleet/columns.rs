//! The table of nodes.

use super::NodeDocument;
use crate::view::{Paint, Table};

/// A column of the table of nodes, under the names of `metroctl` (metropolis.md J.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    NodeId,
    State,
    Address,
    Health,
    Roles,
    Tpm,
    Version,
    Heartbeat,
    Labels,
    Key,
}

impl Column {
    const ALL: [Self; 10] = [
        Self::NodeId,
        Self::State,
        Self::Address,
        Self::Health,
        Self::Roles,
        Self::Tpm,
        Self::Version,
        Self::Heartbeat,
        Self::Labels,
        Self::Key,
    ];

    /// What `node list` shows.
    pub(crate) const SHORT: &[Self] =
        &[Self::NodeId, Self::State, Self::Address, Self::Health, Self::Roles, Self::Heartbeat];

    /// What `node describe` shows: the columns of `metroctl`, in its order.
    pub(crate) const METROCTL: &[Self] = &[
        Self::NodeId,
        Self::State,
        Self::Address,
        Self::Health,
        Self::Roles,
        Self::Tpm,
        Self::Version,
        Self::Heartbeat,
        Self::Labels,
    ];

    /// Everything.
    pub(crate) const WIDE: &[Self] = &Self::ALL;

    /// What shows who asks for admission.
    pub(crate) const WAITING: &[Self] = &[Self::NodeId, Self::State, Self::Tpm, Self::Labels, Self::Key];

    /// Takes a name, with spaces or hyphens, in any case.
    ///
    /// # Errors
    ///
    /// When there is no such column.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase().replace(['-', '_'], " ");
        let found = Self::ALL.into_iter().find(|column| column.heading().to_ascii_lowercase() == name);
        match (found, &*name) {
            (Some(column), _) => Ok(column),
            (None, "id" | "node") => Ok(Self::NodeId),
            (None, _) => {
                let known = Self::ALL.map(|column| column.heading().to_ascii_lowercase().replace(' ', "-"));
                Err(format!("there is no such column; known are {}", known.join(", ")))
            }
        }
    }

    const fn heading(self) -> &'static str {
        match self {
            Self::NodeId => "NODE ID",
            Self::State => "STATE",
            Self::Address => "ADDRESS",
            Self::Health => "HEALTH",
            Self::Roles => "ROLES",
            Self::Tpm => "TPM",
            Self::Version => "VERSION",
            Self::Heartbeat => "HEARTBEAT",
            Self::Labels => "LABELS",
            Self::Key => "KEY",
        }
    }

    fn cell(self, node: &NodeDocument, paint: Paint) -> String {
        match self {
            Self::NodeId => node.node_id.clone(),
            Self::State => match &*node.state {
                "UP" => paint.green(&node.state),
                "NEW" | "STANDBY" => paint.yellow(&node.state),
                other => other.to_owned(),
            },
            Self::Address => node.address.clone().unwrap_or_default(),
            Self::Health => match &*node.health {
                "HEALTHY" => paint.green(&node.health),
                "HEARTBEAT_TIMEOUT" => paint.red(&node.health),
                other => other.to_owned(),
            },
            Self::Roles => node.roles.join(","),
            Self::Tpm => match node.tpm_usage.as_deref() {
                None => "unk".to_owned(),
                Some("NOT_PRESENT") => "no".to_owned(),
                Some("PRESENT_BUT_UNUSED") => "unused".to_owned(),
                Some("PRESENT_AND_USED") => "yes".to_owned(),
                Some(other) => other.to_owned(),
            },
            Self::Version => node.version.clone().unwrap_or_default(),
            Self::Heartbeat => node.time_since_heartbeat.map(age).unwrap_or_default(),
            Self::Labels => {
                let labels = node.labels.iter().map(|(key, value)| format!("{key}={value}"));
                labels.collect::<Vec<_>>().join(",")
            }
            Self::Key => node.public_key.clone(),
        }
    }
}

/// The nodes below each other.
pub(crate) fn render(nodes: &[NodeDocument], columns: &[Column], paint: Paint) -> String {
    let mut table = Table::new(columns.iter().map(|column| column.heading()).collect::<Vec<_>>());
    for node in nodes {
        table.row(columns.iter().map(|column| column.cell(node, paint)));
    }
    table.render(paint)
}

/// An age as one word: `3s`, `5m`, `2h`, `9d`.
pub(crate) fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let (value, unit) = match seconds {
        ..120.0 => (seconds, 's'),
        ..7_200.0 => (seconds / 60.0, 'm'),
        ..172_800.0 => (seconds / 3_600.0, 'h'),
        _ => (seconds / 86_400.0, 'd'),
    };
    format!("{}{unit}", value.floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> [NodeDocument; 3] {
        let up = NodeDocument {
            node_id: "metropolis-00112233445566778899aabbccddeeff".into(),
            public_key: "0011".into(),
            state: "UP".into(),
            address: Some("127.1.0.1".into()),
            health: "HEALTHY".into(),
            time_since_heartbeat: Some(2.9),
            roles: vec!["ConsensusMember", "KubernetesController"],
            tpm_usage: Some("PRESENT_AND_USED".into()),
            version: Some("0.1.0".into()),
            labels: [("rack".into(), "r7".into()), ("site".into(), "lab".into())].into(),
            ..NodeDocument::default()
        };
        let silent = NodeDocument {
            node_id: "metropolis-11112233445566778899aabbccddeeff".into(),
            health: "HEARTBEAT_TIMEOUT".into(),
            time_since_heartbeat: Some(754.0),
            tpm_usage: Some("PRESENT_BUT_UNUSED".into()),
            roles: vec![],
            labels: [].into(),
            ..up.clone()
        };
        let new = NodeDocument {
            node_id: "metropolis-22".into(),
            state: "NEW".into(),
            health: "UNKNOWN".into(),
            ..NodeDocument::default()
        };
        [up, silent, new]
    }

    #[test]
    fn the_short_table() {
        assert_eq!(
            render(&nodes(), Column::SHORT, Paint::plain()),
            "\
NODE ID                                      STATE  ADDRESS    HEALTH             ROLES                                 HEARTBEAT
metropolis-00112233445566778899aabbccddeeff  UP     127.1.0.1  HEALTHY            ConsensusMember,KubernetesController  2s
metropolis-11112233445566778899aabbccddeeff  UP     127.1.0.1  HEARTBEAT_TIMEOUT  -                                     12m
metropolis-22                                NEW    -          UNKNOWN            -                                     -
"
        );
    }

    #[test]
    fn chosen_columns_in_the_order_of_choice() {
        let columns = ["labels", "TPM", "node-id"].map(|text| Column::parse(text).unwrap());
        assert_eq!(
            render(&nodes(), &columns, Paint::plain()),
            "\
LABELS            TPM     NODE ID
rack=r7,site=lab  yes     metropolis-00112233445566778899aabbccddeeff
-                 unused  metropolis-11112233445566778899aabbccddeeff
-                 unk     metropolis-22
"
        );
        assert_eq!(Column::parse("id"), Ok(Column::NodeId));
        assert_eq!(Column::parse("Node ID"), Ok(Column::NodeId));
        let error = Column::parse("colour").unwrap_err();
        assert!(error.contains("known are node-id, state, address,"), "{error}");
    }

    #[test]
    fn ages_are_one_word() {
        for (seconds, expect) in
            [(-1.0, "0s"), (0.4, "0s"), (119.9, "119s"), (120.0, "2m"), (7_200.0, "2h"), (172_800.0, "2d")]
        {
            assert_eq!(age(seconds), expect);
        }
    }
}
