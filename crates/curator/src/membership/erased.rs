//! A node that was erased helps no removed member any more, and is helped by nobody.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::curator_state::UnfinishedRemoval;
use prost::Message as _;

use crate::{LeaderState, StateError, layout};

/// Adds to the transaction that deletes an erased node what follows from that for the removals that are not finished.
///
/// # Errors
///
/// When they cannot be read.
pub(crate) async fn forget_erased(
    state: &LeaderState,
    node: &NodeId,
    mut transaction: Transaction,
) -> Result<Transaction, StateError> {
    let name = node.to_string();
    for (key, found) in state.list_messages::<UnfinishedRemoval>(&layout::unfinished_removals()).await? {
        let mut removal = found.value;
        let before = removal.helpers.len();
        removal.helpers.retain(|helper| *helper != name);
        let is_over = removal.node_id == name || (before > 0 && removal.helpers.is_empty());
        if is_over || removal.helpers.len() != before {
            transaction = transaction.if_modified_at(key.as_str(), found.revision);
            transaction = if is_over { transaction.delete(key) } else { transaction.put(key, removal.encode_to_vec()) };
        }
    }
    Ok(transaction)
}
