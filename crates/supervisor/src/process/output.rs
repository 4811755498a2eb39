//! Carries the output of a process to where it goes.

use std::io;
use std::os::fd::OwnedFd;

use polis_logtree::{LineBuffer, RawWriter};
use polis_sys::Output;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::spec::OutputSink;
use crate::context::Context;

/// The longest line that a function gets, in bytes; what is longer is cut. etcd's longest lines are a few KiB.
pub const MAX_LINE_LENGTH: usize = 16 << 10;

/// How much is read at once. A pipe holds 64 KiB; more than a quarter at a time would only cost memory.
const READ_SIZE: usize = 16 << 10;

/// Where the process writes to.
pub(super) fn output(sink: &OutputSink) -> Output {
    match sink {
        OutputSink::Log | OutputSink::Writer(_) | OutputSink::Lines(_) => Output::Pipe,
        OutputSink::Discard => Output::Discard,
    }
}

/// Reads a stream to its end. The end comes when the last process that holds the other end has closed it.
pub(super) async fn carry(context: &Context, sink: OutputSink, stream: OwnedFd) -> io::Result<()> {
    let stream = Receiver::from_owned_fd(stream)?;
    match sink {
        OutputSink::Log => into_writer(context.raw_logger(), stream).await,
        OutputSink::Writer(writer) => into_writer(writer, stream).await,
        OutputSink::Lines(function) => into_function(&*function, stream).await,
        OutputSink::Discard => Ok(()),
    }
}

async fn into_writer(mut writer: RawWriter, mut stream: Receiver) -> io::Result<()> {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => writer.write(&buffer[..count]),
        }
    }
}

async fn into_function(function: &(dyn Fn(&str) + Send + Sync), mut stream: Receiver) -> io::Result<()> {
    let mut buffer = vec![0; READ_SIZE];
    let mut lines = LineBuffer::new(MAX_LINE_LENGTH);
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => lines.write(&buffer[..count], |line| function(&String::from_utf8_lossy(line.data))),
        }
    }
    lines.flush(|line| function(&String::from_utf8_lossy(line.data)));
    Ok(())
}
