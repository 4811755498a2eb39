//! What a node of a test keeps of the members: the list on its disk, like a real one, and the rest until the test ends.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::curator_state;
use polis_storage::{SignedMembers, TwoGenerations};
use polis_supervisor::BoxError;
use polis_unlock::{Floors, SignedMemberList};
use polis_unlock_service::{KnownMembers, Members, Store};
use prost::Message as _;

/// Keeps lists in this file. What cannot be read there is not there.
pub(crate) struct ListFile {
    file: TwoGenerations<SignedMembers>,
    floors: Mutex<Floors>,
}

impl ListFile {
    pub(crate) fn new(file: TwoGenerations<SignedMembers>) -> Arc<Self> {
        Arc::new(Self { file, floors: Mutex::default() })
    }

    /// As a start of the node `own` finds it.
    pub(crate) fn members(self: &Arc<Self>, own: NodeId, authority: &AuthorityCertificate) -> Members {
        let stored = self.file.load().ok().flatten();
        let list = stored.and_then(|stored| {
            let wire = curator_state::SignedMemberList::decode(&stored.value.signed_list[..]).ok()?;
            SignedMemberList::verify(wire, authority).ok()
        });
        let highest = list.as_ref().map(|list| list.list().epoch());
        let floors = self.floors.lock().unwrap().clone();
        Members::new(own, Arc::clone(self) as Arc<dyn Store>, KnownMembers { list, highest, floors })
    }
}

#[async_trait]
impl Store for ListFile {
    async fn store_list(&self, list: &SignedMemberList) -> Result<(), BoxError> {
        if self.file.load().is_err() {
            self.file.discard("test")?;
        }
        Ok(self.file.store(&SignedMembers { signed_list: list.encode() }, "test")?)
    }

    async fn store_floors(&self, floors: &Floors) -> Result<(), BoxError> {
        self.floors.lock().unwrap().clone_from(floors);
        Ok(())
    }
}
