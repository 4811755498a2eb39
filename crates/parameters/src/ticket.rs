//! The register ticket: the secret with which a machine shows a cluster that somebody sent it there.

use std::fmt;

use polis_proto::curator_private;
use polis_secret::Secret32;
use prost::Message as _;
use zeroize::{Zeroize as _, Zeroizing};

/// Length of a ticket as it is handed out, in bytes: 32 random ones, and two that say so (metropolis.md, G.1).
pub const TICKET_LENGTH: usize = 34;

/// A register ticket. What it consists of is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RegisterTicket(Secret32);

/// Why bytes are not a register ticket. The messages do not show them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// Fewer bytes than a ticket has.
    #[error(
        "the ticket has {found} bytes, and a register ticket has {TICKET_LENGTH}: it was cut short; take it anew from the cluster"
    )]
    Cut {
        /// How many bytes there are.
        found: usize,
    },
    /// More bytes than a ticket has.
    #[error(
        "the ticket has {found} bytes, and a register ticket has {TICKET_LENGTH}: it is something else, or something was added; take it anew from the cluster"
    )]
    TooLong {
        /// How many bytes there are.
        found: usize,
    },
    /// As many bytes as a ticket has, and not what a cluster hands out.
    #[error(
        "the ticket has the length of one and not its form: it was damaged, or is something else; take it anew from the cluster"
    )]
    Damaged,
}

impl RegisterTicket {
    /// Reads a ticket in the form in which clusters hand it out: the serialized message `RegisterTicket`.
    ///
    /// # Errors
    ///
    /// When it is not one. Whether it is the right one only its cluster knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        let found = bytes.len();
        if found < TICKET_LENGTH {
            return Err(TicketError::Cut { found });
        }
        if found > TICKET_LENGTH {
            return Err(TicketError::TooLong { found });
        }
        let message = curator_private::RegisterTicket::decode(bytes).map_err(|_| TicketError::Damaged)?;
        let opaque = Zeroizing::new(message.opaque);
        Secret32::try_from(&opaque[..]).map(Self).map_err(|_| TicketError::Damaged)
    }

    /// The form in which it is handed out and sent.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut message = curator_private::RegisterTicket { opaque: self.0.expose().to_vec() };
        let bytes = Zeroizing::new(message.encode_to_vec());
        message.opaque.zeroize();
        bytes
    }
}

impl fmt::Debug for RegisterTicket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RegisterTicket(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ticket as another implementation has made it.
    fn whole() -> Vec<u8> {
        [&[0x0a, 32][..], &[0x5a; 32]].concat()
    }

    #[test]
    fn a_ticket_comes_back_as_it_was() {
        let ticket = RegisterTicket::from_bytes(&whole()).unwrap();
        assert_eq!(*ticket.to_bytes(), whole());
        assert_eq!(format!("{ticket:?}"), "RegisterTicket(..)");
    }

    #[test]
    fn what_is_no_ticket_is_named_and_not_shown() {
        for length in 0..TICKET_LENGTH {
            let error = RegisterTicket::from_bytes(&whole()[..length]).unwrap_err();
            assert_eq!(error, TicketError::Cut { found: length });
        }
        let long = [&whole()[..], b"!"].concat();
        let damaged = [
            [&[0x12, 32][..], &[0x5a; 32]].concat(),
            [&[0x0a, 31][..], &[0x5a; 32]].concat(),
            [&[0x0a, 30][..], &[0x5a; 30], &[0x10, 1]].concat(),
            vec![0x5a; TICKET_LENGTH],
        ];
        assert_eq!(RegisterTicket::from_bytes(&long), Err(TicketError::TooLong { found: long.len() }));
        for bytes in damaged {
            let error = RegisterTicket::from_bytes(&bytes).unwrap_err();
            assert_eq!(error, TicketError::Damaged);
            assert!(!error.to_string().contains("5a") && !error.to_string().contains("ZZ"), "{error}");
        }
    }
}
