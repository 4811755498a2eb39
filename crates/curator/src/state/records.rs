//! Records that were read before, so that listing all nodes decodes only what has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use polis_consensus::KeyValue;
use polis_identity::NodeId;

use super::{NodeRecord, StateError, Versioned, node_record};
use crate::layout;

/// The records of all nodes as they were last read. Checking the two keys of a record takes longer than everything else that
/// a list does with it, and between two lists hardly any record changes.
///
/// It holds as many records as there are nodes.
#[derive(Default)]
pub(crate) struct Records(Mutex<BTreeMap<NodeId, Versioned<Arc<NodeRecord>>>>);

impl Records {
    /// Reads one pair whose key is that of a record.
    pub(crate) fn decode(&self, pair: &KeyValue) -> Result<Versioned<Arc<NodeRecord>>, StateError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        decode(&mut known, pair)
    }

    /// Reads all records, as one list has them: what is not in it is forgotten.
    pub(crate) fn decode_all(&self, pairs: &[KeyValue]) -> Result<Vec<Versioned<Arc<NodeRecord>>>, StateError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let records = pairs.iter().map(|pair| decode(&mut known, pair)).collect::<Result<Vec<_>, _>>()?;
        if known.len() > records.len() {
            *known = records.iter().map(|record| (record.value.id, record.clone())).collect();
        }
        Ok(records)
    }

    /// Forgets a record that was deleted.
    pub(crate) fn forget(&self, id: &NodeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

fn decode(
    known: &mut BTreeMap<NodeId, Versioned<Arc<NodeRecord>>>,
    pair: &KeyValue,
) -> Result<Versioned<Arc<NodeRecord>>, StateError> {
    let key = String::from_utf8_lossy(&pair.key);
    let id = layout::node_of(&pair.key, &layout::nodes())
        .ok_or_else(|| StateError::damaged(&*key, "the key does not end with the id of a node"))?;
    if let Some(same) = known.get(&id).filter(|same| same.revision == pair.mod_revision) {
        return Ok(same.clone());
    }
    let record = node_record::decode(&id, &key, Versioned { value: &pair.value, revision: pair.mod_revision })?;
    let record = record.map(Arc::new);
    known.insert(id, record.clone());
    Ok(record)
}
