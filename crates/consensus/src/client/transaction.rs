//! Transactions: what must hold, what is done then, and what is read otherwise.

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp};

use super::key::Prefix;

/// A transaction. All of it happens at one revision of the store, or nothing does.
///
/// Keys are relative to the client that carries it out. etcd takes at most 128 operations and 1.5 MiB.
#[derive(Clone, Default)]
pub struct Transaction {
    expectations: Vec<(Vec<u8>, Expectation)>,
    operations: Vec<Operation>,
    otherwise: Vec<Read>,
}

/// What a key must be for a transaction to happen.
#[derive(Clone)]
enum Expectation {
    Absent,
    Present,
    CreatedAt(i64),
    ModifiedAt(i64),
    Value(Vec<u8>),
}

#[derive(Clone)]
enum Operation {
    Put { key: Vec<u8>, value: Vec<u8>, lease: Option<i64> },
    Delete(Vec<u8>),
    DeleteAll(Vec<u8>),
    Read(Read),
}

#[derive(Clone)]
enum Read {
    One(Vec<u8>),
    All(Vec<u8>),
}

impl Transaction {
    /// A transaction that does nothing and always happens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if `key` does not exist.
    #[must_use]
    pub fn if_absent(self, key: impl Into<Vec<u8>>) -> Self {
        self.expect(key, Expectation::Absent)
    }

    /// Only if `key` exists.
    #[must_use]
    pub fn if_present(self, key: impl Into<Vec<u8>>) -> Self {
        self.expect(key, Expectation::Present)
    }

    /// Only if `key` was created at `revision` and not deleted since: how a leader's key fences what the leader writes.
    #[must_use]
    pub fn if_created_at(self, key: impl Into<Vec<u8>>, revision: i64) -> Self {
        self.expect(key, Expectation::CreatedAt(revision))
    }

    /// Only if `key` was last written at `revision`: how a value that was read is changed safely.
    #[must_use]
    pub fn if_modified_at(self, key: impl Into<Vec<u8>>, revision: i64) -> Self {
        self.expect(key, Expectation::ModifiedAt(revision))
    }

    /// Only if `key` exists and has this value.
    #[must_use]
    pub fn if_value(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.expect(key, Expectation::Value(value.into()))
    }

    /// Writes `key`.
    #[must_use]
    pub fn put(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.then(Operation::Put { key: key.into(), value: value.into(), lease: None })
    }

    /// Writes `key`; it is deleted when `lease` ends.
    #[must_use]
    pub fn put_with_lease(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> Self {
        self.then(Operation::Put { key: key.into(), value: value.into(), lease: Some(lease) })
    }

    /// Deletes `key`, if it exists.
    #[must_use]
    pub fn delete(self, key: impl Into<Vec<u8>>) -> Self {
        self.then(Operation::Delete(key.into()))
    }

    /// Deletes every key that starts with `start`.
    #[must_use]
    pub fn delete_all(self, start: impl Into<Vec<u8>>) -> Self {
        self.then(Operation::DeleteAll(start.into()))
    }

    /// Reads `key`; see [`Committed::found`](super::Committed::found).
    #[must_use]
    pub fn get(self, key: impl Into<Vec<u8>>) -> Self {
        self.then(Operation::Read(Read::One(key.into())))
    }

    /// Reads every key that starts with `start`.
    #[must_use]
    pub fn list(self, start: impl Into<Vec<u8>>) -> Self {
        self.then(Operation::Read(Read::All(start.into())))
    }

    /// Reads `key` if the transaction does not happen, for
    /// [`KvError::PreconditionFailed`](super::KvError::PreconditionFailed).
    #[must_use]
    pub fn otherwise_get(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.otherwise.push(Read::One(key.into()));
        self
    }

    fn expect(mut self, key: impl Into<Vec<u8>>, expectation: Expectation) -> Self {
        self.expectations.push((key.into(), expectation));
        self
    }

    fn then(mut self, operation: Operation) -> Self {
        self.operations.push(operation);
        self
    }

    /// As etcd takes it.
    pub(super) fn into_etcd(self, prefix: &Prefix) -> Txn {
        let compare = |(key, expectation): (Vec<u8>, Expectation)| {
            let key = prefix.key(&key);
            match expectation {
                Expectation::Absent => Compare::create_revision(key, CompareOp::Equal, 0),
                Expectation::Present => Compare::create_revision(key, CompareOp::Greater, 0),
                Expectation::CreatedAt(revision) => Compare::create_revision(key, CompareOp::Equal, revision),
                Expectation::ModifiedAt(revision) => Compare::mod_revision(key, CompareOp::Equal, revision),
                Expectation::Value(value) => Compare::value(key, CompareOp::Equal, value),
            }
        };
        let read = |read| match read {
            Read::One(key) => TxnOp::get(prefix.key(&key), None),
            Read::All(start) => {
                let (begin, end) = prefix.range(&start);
                TxnOp::get(begin, Some(GetOptions::new().with_range(end)))
            }
        };
        let operation = |operation| match operation {
            Operation::Put { key, value, lease } => {
                TxnOp::put(prefix.key(&key), value, lease.map(|lease| PutOptions::new().with_lease(lease)))
            }
            Operation::Delete(key) => TxnOp::delete(prefix.key(&key), None),
            Operation::DeleteAll(start) => {
                let (begin, end) = prefix.range(&start);
                TxnOp::delete(begin, Some(DeleteOptions::new().with_range(end)))
            }
            Operation::Read(operation) => read(operation),
        };
        Txn::new()
            .when(self.expectations.into_iter().map(compare).collect::<Vec<_>>())
            .and_then(self.operations.into_iter().map(operation).collect::<Vec<_>>())
            .or_else(self.otherwise.into_iter().map(read).collect::<Vec<_>>())
    }
}
