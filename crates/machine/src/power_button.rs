//! The power button of the machine: pressed, it ends the node in order, and the machine is switched off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use futures::future::select_all;
use polis_supervisor::{Context, RunnableResult};
use polis_sys::watch_readable;
use rustix::fs::OFlags;
use rustix::process::{Signal, getpid, kill_process};
use tokio::io::unix::AsyncFd;

/// Where the kernel tells of what can be pressed, and the name that it gives to power buttons.
const INPUTS: &str = "/sys/class/input";
const NAME: &str = "Power Button";

/// Bytes of one event of a 64-bit kernel: a time of 16 bytes, then kind, code and value (linux/input.h).
const EVENT_BYTES: usize = 24;

/// A key (EV_KEY), the one for power (KEY_POWER), going down.
const KEY: u16 = 1;
const POWER: u16 = 116;
const DOWN: i32 = 1;

/// Waits for the button for as long as the machine runs: a runnable. A machine without one has nothing to do here.
pub(crate) async fn watch(context: Context) -> RunnableResult {
    let mut buttons = Vec::new();
    for path in context.blocking(|| find(Path::new(INPUTS))).await {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        match OpenOptions::new().read(true).custom_flags(flags).open(&path).and_then(watch_readable) {
            Ok(button) => buttons.push(button),
            Err(error) => tracing::warn!("the power button {path} cannot be watched: {error}"),
        }
    }
    context.healthy();
    if buttons.is_empty() {
        return Err(context.cancelled().await.into());
    }
    loop {
        let presses = buttons.iter().map(|button| Box::pin(pressed(button)));
        if context.unless_cancelled(select_all(presses)).await?.0? {
            tracing::info!("the power button was pressed");
            // The node ends by this signal as by any other wish that it stop, which on a machine switches it off.
            kill_process(getpid(), Signal::TERM)?;
        }
    }
}

/// Waits for something to be read, and says whether it was the button going down.
async fn pressed(button: &AsyncFd<File>) -> io::Result<bool> {
    let mut events = [0; EVENT_BYTES * 16];
    match button.readable().await?.try_io(|button| button.get_ref().read(&mut events)) {
        Ok(count) => Ok(has_press(&events[..count?])),
        // Nothing was there after all.
        Err(_) => Ok(false),
    }
}

fn has_press(events: &[u8]) -> bool {
    events.as_chunks::<EVENT_BYTES>().0.iter().any(|event| {
        let kind = u16::from_ne_bytes([event[16], event[17]]);
        let code = u16::from_ne_bytes([event[18], event[19]]);
        let value = i32::from_ne_bytes([event[20], event[21], event[22], event[23]]);
        (kind, code, value) == (KEY, POWER, DOWN)
    })
}

/// Devices of power buttons.
fn find(inputs: &Path) -> Vec<String> {
    let entries = fs::read_dir(inputs).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| {
        let told = fs::read_to_string(inputs.join(name).join("device/name"));
        name.starts_with("event") && told.is_ok_and(|told| told.trim_end() == NAME)
    });
    names.sort_unstable();
    names.into_iter().map(|name| format!("/dev/input/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        [&[0; 16][..], &kind.to_ne_bytes(), &code.to_ne_bytes(), &value.to_ne_bytes()].concat()
    }

    #[test]
    fn only_the_power_key_going_down_is_a_press() {
        for (events, expected) in [
            (vec![], false),
            (event(1, 116, 1), true),
            (event(1, 116, 0), false),
            (event(1, 30, 1), false),
            (event(0, 116, 1), false),
            ([event(1, 30, 1), event(0, 0, 0), event(1, 116, 1)].concat(), true),
            (event(1, 116, 1)[..20].to_vec(), false),
        ] {
            assert_eq!(has_press(&events), expected, "{events:?}");
        }
    }

    #[test]
    fn only_power_buttons_are_watched() {
        let scratch = tempfile::tempdir().unwrap();
        for (device, name) in [("event1", "Power Button\n"), ("event0", "AT keyboard\n"), ("input3", "Power Button\n")]
        {
            let directory = scratch.path().join(device).join("device");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("name"), name).unwrap();
        }
        fs::create_dir(scratch.path().join("event7")).unwrap();
        assert_eq!(find(scratch.path()), ["/dev/input/event1"]);
        assert_eq!(find(Path::new("/nowhere/at/all")), Vec::<String>::new());
    }
}
