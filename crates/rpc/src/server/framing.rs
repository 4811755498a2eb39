//! Follows the messages of a gRPC stream without keeping them, so that one that is too long is refused when it is announced.

/// Length of what precedes a message: a flag and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
const PREFIX: usize = 5;

/// Where in a stream of messages we are.
#[derive(Debug)]
pub(super) struct Framing {
    /// Longest message that is allowed, in bytes.
    limit: usize,
    prefix: [u8; PREFIX],
    /// How much of the prefix is there.
    prefix_length: usize,
    /// How much of the message is still to come.
    left: usize,
}

/// A message that is announced to be longer than is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {announced} bytes is more than the {limit} that this caller may send")]
pub(super) struct TooLong {
    pub(super) announced: usize,
    pub(super) limit: usize,
}

impl Framing {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, prefix: [0; PREFIX], prefix_length: 0, left: 0 }
    }

    /// Goes on over the next bytes.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (PREFIX - self.prefix_length).min(bytes.len());
            self.prefix[self.prefix_length..self.prefix_length + taken].copy_from_slice(&bytes[..taken]);
            self.prefix_length += taken;
            bytes = &bytes[taken..];
            if self.prefix_length == PREFIX {
                let [_, length @ ..] = self.prefix;
                let announced = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                if announced > self.limit {
                    return Err(TooLong { announced, limit: self.limit });
                }
                self.left = announced;
                self.prefix_length = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + length as usize, 7);
        bytes
    }

    #[test]
    fn messages_within_the_limit_pass_however_they_are_cut() {
        let stream: Vec<u8> = [0, 1, 10, 0, 9, 3].into_iter().flat_map(message).collect();
        for cut in 1..=stream.len() {
            let mut framing = Framing::new(10);
            for part in stream.chunks(cut) {
                assert_eq!(framing.advance(part), Ok(()), "cut into pieces of {cut}");
            }
        }
    }

    #[test]
    fn a_message_is_refused_with_its_first_five_bytes() {
        let mut stream = message(4);
        stream.extend(&message(11)[..5]);
        for cut in 1..=stream.len() {
            let mut framing = Framing::new(10);
            let result: Result<Vec<()>, TooLong> = stream.chunks(cut).map(|part| framing.advance(part)).collect();
            assert_eq!(result.map(|_| ()), Err(TooLong { announced: 11, limit: 10 }), "cut into pieces of {cut}");
        }
    }
}
