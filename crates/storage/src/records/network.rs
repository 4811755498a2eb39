//! What a machine keeps of its network, so that it has one before it has anything else.

use polis_proto::storage;
use prost::Message as _;
use zeroize::Zeroizing;

use crate::envelope::Format;
use crate::record::{InvalidRecord, Record};

/// Longest payload: that of the longest parameters, in which it comes.
const PAYLOAD_LIMIT: usize = 1024 * 1024;

/// The static network configuration of the last parameters that carried one. What is in it is the business of those who
/// configure the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptNetwork {
    /// Serialized `osbase.net.proto.Net`.
    pub net: Vec<u8>,
}

impl Record for KeptNetwork {
    const FORMAT: Format = Format { magic: *b"POLISNET", version: 1, payload_limit: PAYLOAD_LIMIT };
    const LOAD_SITE: &'static str = "network/load";

    fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(storage::KeptNetwork { net: self.net.clone() }.encode_to_vec())
    }

    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let storage::KeptNetwork { net } = storage::KeptNetwork::decode(payload).map_err(InvalidRecord::NotAMessage)?;
        InvalidRecord::not_empty("net", &net)?;
        Ok(Self { net })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_as_it_was_and_is_never_empty() {
        let record = KeptNetwork { net: b"net".to_vec() };
        assert_eq!(KeptNetwork::from_payload(&record.to_payload()).as_ref(), Ok(&record));
        let error = KeptNetwork::from_payload(&[]).unwrap_err();
        assert_eq!(error.to_string(), "its field net is wrong: it is empty");
    }
}
