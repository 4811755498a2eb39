//! Lines out of a stream of bytes that arrives in pieces.

/// One line as [`LineBuffer`] hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The beginning of the line, up to the buffer's limit, without the line break.
    pub data: &'a [u8],
    /// The length of the whole line in bytes, without the line break.
    pub original_length: usize,
}

impl Line<'_> {
    /// Whether the end of the line is missing.
    pub fn is_cut(&self) -> bool {
        self.original_length > self.data.len()
    }
}

/// Splits what is written into lines. Of a line longer than the limit the beginning is kept and its length counted, so
/// the memory is bounded by the limit (metropolis.md B.1). A line break is `\n`, with or without `\r` before it.
#[derive(Debug)]
pub struct LineBuffer {
    limit: usize,
    /// The beginning of the unfinished line, at most `limit` bytes.
    partial: Vec<u8>,
    /// The length of the unfinished line so far.
    length: usize,
    ends_in_return: bool,
}

impl LineBuffer {
    /// A buffer for lines of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), length: 0, ends_in_return: false }
    }

    /// Takes the next piece and calls `each` for every line that it completes.
    pub fn write(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..at], &bytes[at + 1..]);
            if self.length == 0 {
                // The usual case: the whole line is in this piece and needs no copy.
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                each(Line { data: &line[..line.len().min(self.limit)], original_length: line.len() });
            } else {
                self.extend(line);
                self.finish(&mut each);
            }
            bytes = rest;
        }
        self.extend(bytes);
    }

    /// Hands out the unfinished last line, if there is one.
    pub fn flush(&mut self, mut each: impl FnMut(Line<'_>)) {
        if self.length > 0 {
            self.finish(&mut each);
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = self.limit - self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len();
        self.ends_in_return = bytes.last().map_or(self.ends_in_return, |last| *last == b'\r');
    }

    fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) {
        let original_length = self.length - usize::from(self.ends_in_return);
        each(Line { data: &self.partial[..self.partial.len().min(original_length)], original_length });
        self.partial.clear();
        self.length = 0;
        self.ends_in_return = false;
    }
}
