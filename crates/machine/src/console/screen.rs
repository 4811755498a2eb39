//! The screen: two pages, switched with Tab.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use polis_logtree::{Backlog, DistinguishedName, Item, ReadOptions};
use polis_supervisor::{Context, RunnableResult};
use polis_sys::watch_readable;
use rustix::fs::OFlags;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::SCREEN;
use super::log_page::{LogPage, REMEMBERED};
use super::overview::Overview;
use super::page::status_page;
use crate::names::changed;

/// Least time between two pictures: what changes faster nobody reads, and an emulated screen is slow.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// How often all is drawn anew: the kernel, too, writes on this screen.
const REDRAW_INTERVAL: Duration = Duration::from_secs(10);

/// The size of a terminal that does not tell it.
const USUAL_SIZE: (usize, usize) = (80, 25);

/// Largest size that is drawn.
const LARGEST_SIZE: (usize, usize) = (400, 200);

/// What the key Tab sends.
const TAB: u8 = b'\t';

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Status,
    Log,
}

/// Shows the pages for as long as the machine runs: a runnable. Without a screen it has nothing to do.
pub(crate) async fn show(context: Context, mut overview: watch::Receiver<Arc<Overview>>) -> RunnableResult {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let terminal =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(format!("/dev/{SCREEN}")).and_then(
            |terminal| {
                take_keys_one_by_one(&terminal)?;
                watch_readable(terminal)
            },
        );
    let terminal = match terminal {
        Ok(terminal) => terminal,
        Err(error) => {
            tracing::info!("this machine has no screen: {error}");
            context.healthy();
            context.done();
            return Ok(());
        }
    };
    let options =
        ReadOptions { backlog: Backlog::Last(REMEMBERED), stream: true, with_children: true, ..ReadOptions::default() };
    let mut reader = context.log_tree().read(&DistinguishedName::root(), options)?;
    let mut log = LogPage::default();
    std::mem::take(&mut reader.backlog).into_iter().for_each(|entry| log.push(entry));
    let mut picture = Picture::default();
    let mut page = Page::Status;
    let (mut next, mut dirty) = (Instant::now(), true);
    let mut redraw = next;
    context.healthy();
    loop {
        tokio::select! {
            biased;
            cancelled = context.cancelled() => return Err(cancelled.into()),
            () = sleep_until(next), if dirty => {
                let (width, height) = size(terminal.get_ref());
                let lines = match page {
                    Page::Status => status_page(&overview.borrow_and_update(), width, height),
                    Page::Log => log.render(width, height),
                };
                let now = Instant::now();
                if now >= redraw {
                    picture.forget();
                    redraw = now + REDRAW_INTERVAL;
                }
                let text = picture.change_to(lines);
                draw(terminal.get_ref(), &text)?;
                (next, dirty) = (now + LEAST_INTERVAL, false);
            }
            () = sleep_until(redraw) => dirty = true,
            ready = terminal.readable() => {
                let mut keys = [0; 64];
                if let Ok(read) = ready?.try_io(|terminal| terminal.get_ref().read(&mut keys)) {
                    let count = read?;
                    for _ in keys[..count].iter().filter(|key| **key == TAB) {
                        page = match page { Page::Status => Page::Log, Page::Log => Page::Status };
                        dirty = true;
                    }
                }
            }
            () = changed(&mut overview) => dirty |= page == Page::Status,
            item = reader.next() => match item {
                Some(Item::Entry(entry)) => {
                    log.push(entry);
                    dirty |= page == Page::Log;
                }
                // What was missed is not on the page either way.
                Some(Item::Missed(_)) => {}
                None => return Err(context.cancelled().await.into()),
            },
        }
    }
}

/// Keys come when they are pressed, and are not shown.
fn take_keys_one_by_one(terminal: &File) -> io::Result<()> {
    let mut modes = tcgetattr(terminal)?;
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    Ok(tcsetattr(terminal, OptionalActions::Now, &modes)?)
}

fn size(terminal: &File) -> (usize, usize) {
    let told = tcgetwinsize(terminal).map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
    let (width, height) = if told.0 == 0 || told.1 == 0 { USUAL_SIZE } else { told };
    (width.min(LARGEST_SIZE.0), height.min(LARGEST_SIZE.1))
}

fn draw(mut terminal: &File, text: &str) -> io::Result<()> {
    match terminal.write_all(text.as_bytes()) {
        // The next redraw makes it whole.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        written => written,
    }
}

/// What is on the screen.
#[derive(Debug, Default)]
struct Picture {
    /// Absent when it is not known what is there.
    lines: Option<Vec<String>>,
}

impl Picture {
    /// What is there is not known any more.
    fn forget(&mut self) {
        self.lines = None;
    }

    /// What to write so that these lines are there: only those that differ.
    fn change_to(&mut self, lines: Vec<String>) -> String {
        // The cursor is hidden; all but the first time only lines are replaced.
        let mut text = String::new();
        let old = match &self.lines {
            Some(old) if old.len() == lines.len() => Some(old),
            Some(_) | None => {
                text.push_str("\x1b[?25l\x1b[H\x1b[2J");
                None
            }
        };
        for (at, line) in lines.iter().enumerate() {
            let unchanged = old.map_or(line.is_empty(), |old| old[at] == *line);
            if !unchanged {
                text.push_str(&format!("\x1b[{};1H{line}\x1b[K", at + 1));
            }
        }
        self.lines = Some(lines);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_differ_are_written() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let mut picture = Picture::default();
        let clear = "\x1b[?25l\x1b[H\x1b[2J";
        for (new, written) in [
            (lines(&["a", "", "c"]), format!("{clear}\x1b[1;1Ha\x1b[K\x1b[3;1Hc\x1b[K")),
            (lines(&["a", "", "c"]), String::new()),
            (lines(&["a", "b", ""]), "\x1b[2;1Hb\x1b[K\x1b[3;1H\x1b[K".to_owned()),
            // Another size.
            (lines(&["a"]), format!("{clear}\x1b[1;1Ha\x1b[K")),
        ] {
            assert_eq!(picture.change_to(new), written);
        }
        picture.forget();
        assert_eq!(picture.change_to(lines(&["a"])), format!("{clear}\x1b[1;1Ha\x1b[K"));
    }
}
