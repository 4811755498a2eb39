//! One machine: what it keeps, and what is in its memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use polis_unlock::{
    ClusterUnlockKey, ClusterWord, Collector, Counts, Epoch, Floors, Holder, KeyCheckValue, Rate, Settings,
    SignedMemberList, UnlockFile, UnlockReply, UnlockRequest,
};

use crate::nodes::{AUTHORITY, Cheap, id, keys};

/// What lies on its ESP. The first part is under its seal.
#[derive(Clone, Default)]
pub(crate) struct Esp {
    /// Copies of its cluster unlock keys beside its own half.
    pub(crate) local: Vec<ClusterUnlockKey>,
    pub(crate) highest: Option<Epoch>,
    pub(crate) floors: Floors,
    pub(crate) list: Option<SignedMemberList>,
    /// The unlock file, as it was read again after it was written.
    pub(crate) file: Option<Arc<UnlockFile>>,
}

/// What it is doing.
pub(crate) enum State {
    Off,
    Locked(Box<Collector>),
    Open {
        /// The key that has opened.
        key: ClusterUnlockKey,
        /// Epoch of the split that was drilled since.
        verified: Option<Epoch>,
        /// The key that is to open next, while only the unlock file knows it.
        next: Option<ClusterUnlockKey>,
    },
}

pub(crate) struct Machine {
    pub(crate) node: usize,
    pub(crate) esp: Esp,
    /// States of the ESP that somebody has kept a copy of.
    pub(crate) copies: Vec<Esp>,
    /// Keys that open its data.
    pub(crate) slots: BTreeSet<KeyCheckValue>,
    pub(crate) state: State,
    /// Which part of a cut network it is in.
    pub(crate) side: bool,
}

impl Clone for Machine {
    /// As it is found after a power cut.
    fn clone(&self) -> Self {
        Self {
            node: self.node,
            esp: self.esp.clone(),
            copies: self.copies.clone(),
            slots: self.slots.clone(),
            state: State::Off,
            side: self.side,
        }
    }
}

impl Machine {
    /// One that has just been enrolled, as a worker: the cluster has its key, and it is open.
    pub(crate) fn new(node: usize, key: ClusterUnlockKey) -> Self {
        let slots = BTreeSet::from([key.check_value()]);
        let state = State::Open { key, verified: None, next: None };
        Self { node, esp: Esp::default(), copies: Vec::new(), slots, state, side: false }
    }

    /// Its unlock file, if it has one that it believes.
    pub(crate) fn file(&self) -> Option<UnlockFile> {
        self.esp.file.as_deref().cloned()
    }

    /// Writes its unlock file, and reads it back.
    pub(crate) fn write_file(&mut self, file: &UnlockFile) {
        let key = &keys(self.node).node_unlock_key;
        let cluster = AUTHORITY.certificate().cluster_id();
        let read = UnlockFile::open(&file.seal(key), key, &cluster, &id(self.node)).expect("its own file");
        self.esp.file = Some(Arc::new(read));
    }

    pub(crate) fn list_epoch(&self) -> Option<Epoch> {
        self.esp.list.as_ref().map(|list| list.list().epoch())
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.state, State::Off)
    }

    /// Makes a newer list durable, and remembers its epoch under the seal.
    pub(crate) fn persist(&mut self, list: &SignedMemberList) {
        if self.list_epoch() < Some(list.list().epoch()) {
            self.esp.highest = self.esp.highest.max(Some(list.list().epoch()));
            self.esp.list = Some(list.clone());
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            id: id(self.node),
            authority: AUTHORITY.certificate().clone(),
            members: self.esp.list.clone(),
            file: self.file(),
        }
    }

    /// A start: with a copy of its key it opens at once.
    pub(crate) fn start(&mut self) {
        let local = self.esp.local.iter().find(|key| self.slots.contains(&key.check_value())).cloned();
        self.state = match local {
            Some(key) => State::Open { key, verified: None, next: None },
            None => State::Locked(Box::new(Collector::new(self.settings()))),
        };
    }

    /// What it answers to a request of another node.
    pub(crate) fn answer(&mut self, caller: usize, request: &UnlockRequest, word: ClusterWord) -> UnlockReply {
        let holder = Holder {
            id: id(self.node),
            authority: AUTHORITY.certificate(),
            share_key: &keys(self.node).share_key,
            sealing: &Cheap,
            list: self.esp.list.as_ref(),
            highest: self.esp.highest,
            floors: &self.esp.floors,
            counts: self.counts(),
        };
        let decision = holder.answer(&keys(caller).entry.join_key, request, word, Rate::Within);
        if let Some(list) = &decision.persist {
            self.persist(list);
        }
        decision.answer
    }

    fn counts(&self) -> Option<Counts> {
        match &self.state {
            State::Locked(collector) => collector.progress().counts,
            State::Off | State::Open { .. } => None,
        }
    }
}
