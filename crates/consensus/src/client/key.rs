//! Prefixes of keys, and key-value pairs as callers see them.

use std::fmt;
use std::sync::Arc;

/// The part of etcd's key space that a client sees: a prefix that is put before every key and taken off again.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Prefix(Arc<[u8]>);

impl Prefix {
    /// The whole key space.
    pub(crate) fn root() -> Self {
        Self(Arc::new([]))
    }

    /// Path parts joined with `:` and closed with `/` (metropolis.md E.2).
    pub(crate) fn of_parts(parts: &[String]) -> Self {
        Self(format!("namespaced:{}/", parts.join(":")).into_bytes().into())
    }

    /// `key` as etcd knows it.
    pub(crate) fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.0, key].concat()
    }

    /// The first key after all those that start with this prefix and `start`, for use as the end of a range.
    pub(crate) fn range(&self, start: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = self.key(start);
        let mut end = begin.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        // etcd writes "from the first key on" and "to the last key" as a zero byte.
        if begin.is_empty() {
            begin.push(0);
        }
        if end.is_empty() {
            end.push(0);
        }
        (begin, end)
    }

    /// What etcd returned, as the client knows it.
    pub(crate) fn strip(&self, pair: etcd_client::KeyValue) -> KeyValue {
        let pair = pair.0;
        let key = pair.key.strip_prefix(&*self.0).map(<[u8]>::to_vec).unwrap_or(pair.key);
        KeyValue {
            key,
            value: pair.value,
            create_revision: pair.create_revision,
            mod_revision: pair.mod_revision,
            version: pair.version,
            lease: (pair.lease != 0).then_some(pair.lease),
        }
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// A key and its value. `Debug` does not show the value: some are keys of the cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, without the client's prefix.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Revision of the store when the key was created.
    pub create_revision: i64,
    /// Revision of the store when the value was last written.
    pub mod_revision: i64,
    /// How often it was written since it was created, from 1.
    pub version: i64,
    /// Lease with which the key ends, if it has one.
    pub lease: Option<i64>,
}

impl KeyValue {
    /// The key as text, for messages and for keys that are text.
    #[must_use]
    pub fn key_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeyValue")
            .field("key", &self.key_text())
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("lease", &self.lease)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_a_prefix_and_ranges_stay_inside_it() {
        let prefix = Prefix::of_parts(&["curator".into(), "sub".into()]);
        assert_eq!(prefix.key(b"/nodes/a"), b"namespaced:curator:sub//nodes/a");
        assert_eq!(prefix.range(b""), (b"namespaced:curator:sub/".to_vec(), b"namespaced:curator:sub0".to_vec()));
        assert_eq!(prefix.range(b"a\xff").1, b"namespaced:curator:sub/b");
    }

    #[test]
    fn the_root_sees_everything() {
        assert_eq!(Prefix::root().range(b""), (vec![0], vec![0]));
        assert_eq!(Prefix::root().range(b"a"), (b"a".to_vec(), b"b".to_vec()));
        assert_eq!(Prefix::root().range(b"\xff").1, vec![0]);
    }

    #[test]
    fn debug_shows_no_value() {
        let pair = KeyValue {
            key: b"k".to_vec(),
            value: b"secret".to_vec(),
            create_revision: 1,
            mod_revision: 2,
            version: 2,
            lease: None,
        };
        assert!(!format!("{pair:?}").contains("secret"));
    }
}
