//! The search for secrets: what a cluster keeps to itself, and every way in which a program could let it slip.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use polis_storage::journal::Seals;
use polis_storage::{HostDisk, Layout};

use crate::mounts;
use crate::node_data::NodeData;
use crate::store::Store;

/// Bytes of a secret that are searched for as one. Whoever prints half of a key has told it.
const PART: usize = 16;

/// Bytes by which a place in a text is compared first. Every form of a part is longer.
const HEAD: usize = 8;

/// Where the register ticket is in etcd.
const TICKET: &str = "namespaced:curator//global/register_ticket";

/// Secrets, each with a name, and how each looks in a text. Has no `Debug`.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Names of the secrets, by their bytes.
    known: HashMap<Vec<u8>, String>,
    /// What is searched for, by the first bytes.
    needles: HashMap<[u8; HEAD], Vec<Needle>>,
    /// Whether anything that is searched for begins with two bytes, by these; empty while nothing is. A look into it costs a tenth of
    /// one into the map, and the disks of machines are long.
    beginnings: Vec<bool>,
}

#[derive(Clone)]
struct Needle {
    text: Vec<u8>,
    /// Which secret it is, and in what form.
    what: String,
}

impl Secrets {
    /// Adds a secret: a key of 32 bytes, one followed by its public half, or one in PKCS#8 or in another envelope. What is not
    /// secret about it is left out.
    pub fn add(&mut self, name: &str, bytes: &[u8]) {
        let secret = core_of(bytes);
        if self.known.insert(secret.to_vec(), name.to_owned()).is_some() {
            return;
        }
        self.beginnings.resize(usize::from(u16::MAX) + 1, false);
        for part in secret.chunks_exact(PART) {
            for (form, text) in forms(part) {
                self.beginnings[beginning(text[0], text[1])] = true;
                let head = text[..HEAD].try_into().expect("every form is longer");
                self.needles.entry(head).or_default().push(Needle { text, what: format!("{name} {form}") });
            }
        }
    }

    /// Adds a key from a PEM file.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn add_pem(&mut self, name: &str, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let base64: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD_NO_PAD.decode(base64.trim_end_matches('=')).expect("a PEM file is in base64");
        self.add(name, &der);
    }

    /// Adds what a node has on its disk, whether it runs or not: its keys, and those that it keeps for its cluster.
    ///
    /// # Panics
    ///
    /// When something there is not whole.
    pub fn add_disk(&mut self, root: &Path) {
        self.add_journal(root, Seals::plain_only());
        let is_open = !mounts::below(&root.join("data")).is_empty();
        let data = if is_open { NodeData::of_running(root) } else { NodeData::of(root) };
        if data.is_locked() {
            return;
        }
        let layout = data.layout();
        if let Some(credentials) = layout.data.node.credentials.load().expect("the credentials are whole") {
            self.add("node key", credentials.node_key.expose());
        }
        if let Some(peer) = layout.data.etcd.credentials.load().expect("the peer's credentials are whole") {
            self.add("peer key", &peer.member_key);
            if let Some(key) = &peer.ca_key {
                self.add("key of the peers' CA", key);
            }
        }
    }

    /// Adds what the journal of a node holds, which is opened with these seals.
    ///
    /// # Panics
    ///
    /// When it cannot be opened.
    pub fn add_journal(&mut self, root: &Path, seals: Seals) {
        let layout = Layout::new(Arc::new(HostDisk::open(root).expect("there is a root")));
        if let Some(journal) = layout.journal_store(seals).load().expect("the journal is whole") {
            let journal = journal.value;
            self.add("join key", journal.join_key.expose());
            self.add("share key", journal.share_key.expose());
            let node_keys = journal.node_key.iter().map(|key| ("node key", key));
            let unlock = journal.node_unlock_key.iter().map(|key| ("node unlock key", key));
            let cluster = journal.cluster_unlock_key.iter();
            let cluster = cluster.flat_map(|keys| [&keys.current].into_iter().chain(&keys.pending));
            let cluster = cluster.map(|key| ("cluster unlock key", key));
            for (name, key) in node_keys.chain(unlock).chain(cluster) {
                self.add(name, key.expose());
            }
        }
    }

    /// Adds what the etcd of a running member holds: the keys of all authorities, and the ticket. Returns how many there are.
    ///
    /// # Panics
    ///
    /// When etcd does not tell.
    pub fn add_store(&mut self, root: &Path) -> usize {
        let content = Store::of_node(root).read();
        let secret = |key: &str| key == TICKET || key.contains("/keys/") || key.ends_with("privkey.bin");
        let found = content.entries.iter().filter(|(key, _)| secret(key));
        found.map(|(key, entry)| self.add(key, &entry.value)).count()
    }

    /// How many different secrets are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Their names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.known.values().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Which secrets are in this text, and in what form.
    #[must_use]
    pub fn found_in(&self, text: &[u8]) -> Vec<&str> {
        let mut found = self.found_in_form(text);
        // Lists that are printed over several lines, and base64 in lines.
        found.extend(self.found_in_form(&without_breaks(text)));
        found.sort_unstable();
        found.dedup();
        found
    }

    fn found_in_form(&self, text: &[u8]) -> Vec<&str> {
        let mut found = Vec::new();
        for (position, head) in text.windows(HEAD).enumerate() {
            if !self.beginnings.get(beginning(head[0], head[1])).is_some_and(|begins| *begins) {
                continue;
            }
            let head: &[u8; HEAD] = head.try_into().expect("a window has this length");
            let Some(needles) = self.needles.get(head) else { continue };
            let here = needles.iter().filter(|needle| text[position..].starts_with(&needle.text));
            found.extend(here.map(|needle| needle.what.as_str()));
        }
        found
    }
}

/// Where two bytes stand among all pairs.
const fn beginning(first: u8, second: u8) -> usize {
    first as usize * 256 + second as usize
}

/// The secret part of a key in whatever envelope.
fn core_of(bytes: &[u8]) -> &[u8] {
    /// An octet string of 32 bytes: the private key in PKCS#8 and in SEC 1, for Ed25519 and for P-256.
    const KEY: [u8; 2] = [0x04, 0x20];
    /// A SEQUENCE, with which every key in DER begins.
    const SEQUENCE: u8 = 0x30;
    let position = bytes.windows(KEY.len()).position(|two| two == KEY);
    match (bytes.len(), bytes.first(), position) {
        // With its public half after it.
        (64, ..) => &bytes[..32],
        // A message with one field.
        (34, Some(0x0a), _) => &bytes[2..],
        (48.., Some(&SEQUENCE), Some(position)) if bytes.len() >= position + 34 => &bytes[position + 2..position + 34],
        _ => bytes,
    }
}

/// How a part of a secret looks, in every way that is searched for.
fn forms(part: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = |write: fn(&u8) -> String| part.iter().map(write).collect::<Vec<_>>().join(",");
    let mut forms = vec![
        ("raw", part.to_vec()),
        ("in capital hex", hex.to_uppercase().into_bytes()),
        ("in hex", hex.into_bytes()),
        ("as a list", list(u8::to_string).into_bytes()),
        ("as a list in hex", list(|byte| format!("0x{byte:02x}")).into_bytes()),
        ("escaped", part.escape_ascii().to_string().into_bytes()),
    ];
    // Base64 depends on where in its groups of three bytes the secret begins.
    for offset in 0..3 {
        let whole = &part[offset..offset + (part.len() - offset) / 3 * 3];
        forms.push(("in base64", STANDARD_NO_PAD.encode(whole).into_bytes()));
        forms.push(("in base64 for addresses", URL_SAFE_NO_PAD.encode(whole).into_bytes()));
    }
    forms
}

/// The text without blanks and ends of lines, also where they are escaped.
fn without_breaks(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
    let mut out = Vec::with_capacity(text.len());
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', [b'n' | b'r' | b't', after @ ..]) => after,
            (byte, after) => {
                if !byte.is_ascii_whitespace() {
                    out.push(*byte);
                }
                after
            }
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret in which no two bytes are the same.
    fn key() -> [u8; 32] {
        std::array::from_fn(|index| u8::try_from(index * 7 + 5).unwrap())
    }

    fn secrets() -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add("key", &key());
        secrets
    }

    #[test]
    fn a_planted_secret_is_found_in_every_form() {
        let (secrets, key) = (secrets(), key());
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let engines = [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD];
        let mut planted: Vec<Vec<u8>> = vec![
            key.to_vec(),
            [b"before".as_slice(), &key, b"after"].concat(),
            key[16..].to_vec(),
            hex(&key).into_bytes(),
            hex(&key).to_uppercase().into_bytes(),
            format!("{key:?}").into_bytes(),
            format!("{key:#?}").into_bytes(),
            format!("{:?}", format!("{key:#?}")).into_bytes(),
            format!("{key:02x?}").replace(", ", ", 0x").replace('[', "[0x").into_bytes(),
            key.escape_ascii().to_string().into_bytes(),
            // The 64 bytes that some call the private key.
            format!("{:?}", [key, [9; 32]].concat()).into_bytes(),
        ];
        for engine in engines {
            for before in 0..4 {
                let text = engine.encode([&vec![b'x'; before], key.as_slice(), b"yz"].concat());
                let lines: Vec<&str> =
                    (0..text.len().div_ceil(16)).map(|n| &text[n * 16..text.len().min(n * 16 + 16)]).collect();
                planted.push(lines.join("\n").into_bytes());
                planted.push(text.into_bytes());
            }
        }
        for text in planted {
            assert!(!secrets.found_in(&text).is_empty(), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        let secrets = secrets();
        let others = [[7; 32], std::array::from_fn(|index| key()[31 - index])];
        for other in others {
            assert_eq!(secrets.found_in(format!("{other:?} {}", other.escape_ascii()).as_bytes()), Vec::<&str>::new());
        }
        assert_eq!(secrets.found_in(&key()[..15]), Vec::<&str>::new());
    }

    #[test]
    fn the_secret_part_of_a_key_counts() {
        let key = key();
        let envelopes = [
            key.to_vec(),
            [key, [1; 32]].concat(),
            [&[0x0a, 0x20], &key[..]].concat(),
            // PKCS#8 of Ed25519.
            [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20], &key[..]].concat(),
        ];
        for envelope in envelopes {
            assert_eq!(core_of(&envelope), key);
        }
        assert_eq!(core_of(b"something else"), b"something else");
    }
}
