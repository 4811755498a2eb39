//! The output of a child process, line by line into the tree.

use jiff::Timestamp;

use crate::parse::{self, ETCD_LINE_BYTES};
use crate::{Line, LineBuffer, Logger, Payload, RAW_LINE_BYTES, Raw};

/// Most entries appended under one hold of the tree's lock. One read of a pipe can bring hundreds of lines; other
/// writers get their turn in between.
const BATCH: usize = 64;

/// Takes the bytes of one stream, for example the standard output of a child process, and writes each line as an entry.
///
/// A line is written once its line break has arrived; the unfinished last one when the writer is closed or dropped. Two
/// streams need two writers, which may write under the same name.
#[derive(Debug)]
pub struct RawWriter {
    logger: Logger,
    lines: LineBuffer,
    interpret: fn(Line<'_>, Timestamp) -> (Timestamp, Payload),
    batch: Vec<(Timestamp, Payload)>,
}

impl RawWriter {
    pub(crate) fn raw(logger: Logger) -> Self {
        Self::new(logger, RAW_LINE_BYTES, |line, now| (now, Payload::Raw(Raw::new(line.data, line.original_length))))
    }

    pub(crate) fn etcd(logger: Logger) -> Self {
        Self::new(logger, ETCD_LINE_BYTES, parse::etcd)
    }

    fn new(logger: Logger, limit: usize, interpret: fn(Line<'_>, Timestamp) -> (Timestamp, Payload)) -> Self {
        Self { logger, lines: LineBuffer::new(limit), interpret, batch: Vec::new() }
    }

    /// Takes the next bytes of the stream, in pieces of any size.
    pub fn write(&mut self, bytes: &[u8]) {
        let Self { logger, lines, interpret, batch } = self;
        let now = Timestamp::now();
        lines.write(bytes, |line| {
            batch.push(interpret(line, now));
            if batch.len() >= BATCH {
                logger.write_all(batch);
            }
        });
        self.write_batch();
    }

    /// Ends the stream and writes its unfinished last line.
    pub fn close(self) {
        // Dropping does it, so that a writer that is dropped on an error path loses nothing either.
        drop(self);
    }

    fn write_batch(&mut self) {
        match self.batch.len() {
            0 => {}
            1 => self.batch.drain(..).for_each(|(timestamp, payload)| self.logger.write(timestamp, payload)),
            _ => self.logger.write_all(&mut self.batch),
        }
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        let Self { lines, interpret, batch, .. } = self;
        let now = Timestamp::now();
        lines.flush(|line| batch.push(interpret(line, now)));
        self.write_batch();
    }
}
