//! The node that a request is about.

use polis_identity::NodeId;
use tonic::Status;

use crate::services::core::{parse_id, parse_key};

/// The node, by its key or its id, whichever is set.
///
/// # Errors
///
/// INVALID_ARGUMENT when neither is, or it is malformed.
pub(in crate::services) fn target(node: Option<Target>) -> Result<NodeId, Status> {
    match node {
        Some(Target::PublicKey(key)) => Ok(NodeId::of(&parse_key("pubkey", &key)?)),
        Some(Target::Id(id)) => parse_id("id", &id),
        None => Err(Status::invalid_argument("neither pubkey nor id is set, so no node is meant")),
    }
}

/// The two forms in which a request names a node.
pub(in crate::services) enum Target {
    /// By its public key.
    PublicKey(Vec<u8>),
    /// By its id.
    Id(String),
}

/// Each request has an enumeration of its own for the same.
macro_rules! of_request {
    ($($request:ident),*) => {
        $(
            impl From<polis_proto::api::$request::Node> for Target {
                fn from(node: polis_proto::api::$request::Node) -> Self {
                    match node {
                        polis_proto::api::$request::Node::Pubkey(key) => Self::PublicKey(key),
                        polis_proto::api::$request::Node::Id(id) => Self::Id(id),
                    }
                }
            }
        )*
    };
}

of_request!(update_node_roles_request, decommission_node_request, delete_node_request, update_node_labels_request);

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_node_is_named_by_key_or_id() {
        let key = NodeKey::generate().public();
        let id = NodeId::of(&key);
        let bytes = key.as_bytes().to_vec();
        for (given, expected) in [
            (Some(Target::PublicKey(bytes.clone())), Ok(id)),
            (Some(Target::Id(id.to_string())), Ok(id)),
            (Some(Target::PublicKey(bytes[..31].to_vec())), Err(Code::InvalidArgument)),
            (Some(Target::PublicKey(Vec::new())), Err(Code::InvalidArgument)),
            (Some(Target::Id(String::new())), Err(Code::InvalidArgument)),
            (Some(Target::Id("metropolis-1".into())), Err(Code::InvalidArgument)),
            (None, Err(Code::InvalidArgument)),
        ] {
            assert_eq!(target(given).map_err(|status| status.code()), expected);
        }
    }
}
