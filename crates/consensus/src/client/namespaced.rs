//! A client that sees one part of the key space.

use std::time::Duration;

use etcd_client::{DeleteOptions, GetOptions, PutOptions, TxnOpResponse};

use super::connection::{Connection, change, read};
use super::error::KvError;
use super::key::{KeyValue, Prefix};
use super::transaction::Transaction;
use super::watch::Watch;

/// A key-value client for the keys under one prefix (metropolis.md E.2). Clones are cheap.
///
/// Every call that changes something takes the name of its call site, `site`: the fault points `site/before` and
/// `site/after` are passed around it.
#[derive(Clone)]
pub struct Namespaced {
    connection: Connection,
    /// Parts of the path; `None` for the root, which sees everything.
    parts: Option<Vec<String>>,
    prefix: Prefix,
}

/// A name that cannot be a part of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a part of a namespace has no name")]
    Empty,
    /// It contains a character that separates parts, or ends the path.
    #[error("{name:?} cannot be a part of a namespace, as it contains {found:?}")]
    Separator {
        /// The name.
        name: String,
        /// The character.
        found: char,
    },
}

/// Keys and values as they were at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Revision of the store at which they were read: a watch from here misses nothing.
    pub revision: i64,
    /// In the order of their keys.
    pub entries: Vec<KeyValue>,
}

/// A transaction that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the store after it.
    pub revision: i64,
    /// Results of its reads, in their order.
    pub found: Vec<Vec<KeyValue>>,
}

impl Namespaced {
    /// A client for the whole key space.
    pub(crate) fn root(connection: Connection) -> Self {
        Self { connection, parts: None, prefix: Prefix::root() }
    }

    /// A client for the path with these parts.
    pub(crate) fn of_parts(connection: Connection, parts: &[&str]) -> Result<Self, NameError> {
        let parts = parts.iter().map(|part| check(part)).collect::<Result<Vec<_>, _>>()?;
        let prefix = Prefix::of_parts(&parts);
        Ok(Self { connection, parts: Some(parts), prefix })
    }

    /// A client for the path with one more part.
    ///
    /// # Errors
    ///
    /// When `name` is empty or contains `:` or `/`, with which it could reach another's keys.
    pub fn sub(&self, name: &str) -> Result<Self, NameError> {
        let mut parts = self.parts.clone().unwrap_or_default();
        parts.push(check(name)?);
        let prefix = Prefix::of_parts(&parts);
        Ok(Self { connection: self.connection.clone(), parts: Some(parts), prefix })
    }

    /// Reads `key`; linearizable: it sees every write that was acknowledged before the call.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyValue>, KvError> {
        let key = self.prefix.key(key.as_ref());
        let answer = read(self.connection.kv().get(key, None)).await?;
        Ok(answer.0.kvs.into_iter().next().map(|pair| self.prefix.strip(etcd_client::KeyValue(pair))))
    }

    /// Reads `key` from what this member has: perhaps old, but also without a quorum.
    pub async fn get_local(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyValue>, KvError> {
        let key = self.prefix.key(key.as_ref());
        let options = GetOptions::new().with_serializable();
        let answer = read(self.connection.local_kv().get(key, Some(options))).await?;
        Ok(answer.0.kvs.into_iter().next().map(|pair| self.prefix.strip(etcd_client::KeyValue(pair))))
    }

    /// Reads every key that starts with `start`, all at one revision; linearizable.
    pub async fn list(&self, start: impl AsRef<[u8]>) -> Result<Listing, KvError> {
        let (begin, end) = self.prefix.range(start.as_ref());
        let answer = read(self.connection.kv().get(begin, Some(GetOptions::new().with_range(end)))).await?.0;
        let entries = answer.kvs.into_iter().map(|pair| self.prefix.strip(etcd_client::KeyValue(pair))).collect();
        Ok(Listing { revision: answer.header.map_or(0, |header| header.revision), entries })
    }

    /// Writes `key`. Returns the revision of the store after it.
    pub async fn put(
        &self,
        site: &'static str,
        key: impl AsRef<[u8]>,
        value: impl Into<Vec<u8>>,
    ) -> Result<i64, KvError> {
        let (key, value): (_, Vec<u8>) = (self.prefix.key(key.as_ref()), value.into());
        let answer = change(site, self.connection.kv().put(key, value, None)).await?;
        Ok(answer.0.header.map_or(0, |header| header.revision))
    }

    /// Writes `key`; it is deleted when `lease` ends.
    pub async fn put_with_lease(
        &self,
        site: &'static str,
        key: impl AsRef<[u8]>,
        value: impl Into<Vec<u8>>,
        lease: i64,
    ) -> Result<i64, KvError> {
        let options = PutOptions::new().with_lease(lease);
        let (key, value): (_, Vec<u8>) = (self.prefix.key(key.as_ref()), value.into());
        let answer = change(site, self.connection.kv().put(key, value, Some(options))).await?;
        Ok(answer.0.header.map_or(0, |header| header.revision))
    }

    /// Deletes `key`. Returns whether it existed.
    pub async fn delete(&self, site: &'static str, key: impl AsRef<[u8]>) -> Result<bool, KvError> {
        let answer = change(site, self.connection.kv().delete(self.prefix.key(key.as_ref()), None)).await?;
        Ok(answer.0.deleted > 0)
    }

    /// Deletes every key that starts with `start`. Returns how many there were.
    pub async fn delete_all(&self, site: &'static str, start: impl AsRef<[u8]>) -> Result<u64, KvError> {
        let (begin, end) = self.prefix.range(start.as_ref());
        let options = DeleteOptions::new().with_range(end);
        let answer = change(site, self.connection.kv().delete(begin, Some(options))).await?;
        Ok(answer.0.deleted.try_into().unwrap_or_default())
    }

    /// Carries out `transaction`.
    ///
    /// # Errors
    ///
    /// [`KvError::PreconditionFailed`] when an expectation does not hold; nothing has been changed then. After
    /// [`KvError::OutcomeUnknown`] it may have happened: a transaction that is repeated must tell that from its
    /// expectations.
    pub async fn transact(&self, site: &'static str, transaction: Transaction) -> Result<Committed, KvError> {
        let call = self.connection.kv();
        let answer = change(site, async move { { call }.txn(transaction.into_etcd(&self.prefix)).await }).await?;
        let revision = answer.0.header.as_ref().map_or(0, |header| header.revision);
        let found = answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(found) => {
                Some(found.0.kvs.into_iter().map(|pair| self.prefix.strip(etcd_client::KeyValue(pair))).collect())
            }
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
        });
        let found = found.collect();
        if answer.succeeded() { Ok(Committed { revision, found }) } else { Err(KvError::PreconditionFailed { found }) }
    }

    /// Watches every key that starts with `start`, beginning with the first change after `revision` (which comes from a
    /// [`Listing`], a put or a transaction).
    #[must_use]
    pub fn watch(&self, start: impl AsRef<[u8]>, revision: i64) -> Watch {
        Watch::new(self.connection.clone(), self.prefix.clone(), self.prefix.range(start.as_ref()), revision)
    }

    /// Watches one key, as [`watch`](Self::watch) does.
    #[must_use]
    pub fn watch_key(&self, key: impl AsRef<[u8]>, revision: i64) -> Watch {
        let key = self.prefix.key(key.as_ref());
        // The range of one key ends with the key that follows it directly.
        let end = [&*key, &[0]].concat();
        Watch::new(self.connection.clone(), self.prefix.clone(), (key, end), revision)
    }

    /// Makes a lease that ends `time_to_live` after it was last kept alive; etcd counts in whole seconds, rounded up
    /// here. Returns its id.
    pub async fn lease_grant(&self, site: &'static str, time_to_live: Duration) -> Result<i64, KvError> {
        let seconds = time_to_live.as_secs() + u64::from(time_to_live.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let mut leases = self.connection.client().lease_client();
        Ok(change(site, leases.grant(seconds, None)).await?.0.id)
    }

    /// Keeps a lease alive, once. Returns how long it lives from now on.
    pub async fn lease_keep_alive(&self, lease: i64) -> Result<Duration, KvError> {
        let mut leases = self.connection.client().lease_client();
        read(async {
            let (mut keeper, mut answers) = leases.keep_alive(lease).await?;
            // Opening the stream has already kept it alive, but does not tell for how long.
            keeper.keep_alive().await?;
            match answers.message().await? {
                Some(answer) if answer.0.ttl > 0 => Ok(Duration::from_secs(answer.0.ttl.unsigned_abs())),
                _ => Err(etcd_client::Error::LeaseKeepAliveError("lease not found".into())),
            }
        })
        .await
    }

    /// Ends a lease and deletes its keys.
    pub async fn lease_revoke(&self, site: &'static str, lease: i64) -> Result<(), KvError> {
        let mut leases = self.connection.client().lease_client();
        change(site, leases.revoke(lease)).await.map(|_| ())
    }
}

fn check(name: &str) -> Result<String, NameError> {
    match name.chars().find(|character| matches!(character, ':' | '/')) {
        Some(found) => Err(NameError::Separator { name: name.into(), found }),
        None if name.is_empty() => Err(NameError::Empty),
        None => Ok(name.into()),
    }
}
