//! Calls about a machine's clock and watchdog that no safe crate offers.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Number of the request that sets the timeout of a watchdog (Linux, `linux/watchdog.h`: WDIOC_SETTIMEOUT).
const WATCHDOG_SET_TIMEOUT: libc::c_ulong = 0xC004_5706;

/// Largest offset that the kernel slews, in microseconds (adjtimex(2): half a second).
pub const MAX_SLEW_MICROSECONDS: i64 = 500_000;

/// Sets after how many seconds without being fed a watchdog resets the machine. Returns what the device has made of it.
///
/// # Errors
///
/// What the system says, for example when this is no watchdog, or one whose timeout is fixed.
pub fn set_watchdog_timeout(watchdog: impl AsFd, seconds: u32) -> io::Result<u32> {
    let mut value = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    // SAFETY: the request reads and writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(watchdog.as_fd().as_raw_fd(), WATCHDOG_SET_TIMEOUT, &raw mut value) };
    if result == 0 { Ok(u32::try_from(value).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Lets the system clock run a little faster or slower until it has made up this many microseconds. It takes about half an hour
/// for a second, and the clock never jumps.
///
/// # Errors
///
/// What the system says; also when it is more than [`MAX_SLEW_MICROSECONDS`] either way.
pub fn slew_clock(microseconds: i64) -> io::Result<()> {
    if microseconds.abs() > MAX_SLEW_MICROSECONDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the kernel slews the clock by half a second at most"));
    }
    adjust(libc::ADJ_OFFSET_SINGLESHOT, |timex| timex.offset = microseconds)
}

/// Tells the kernel that the system clock is right to within `error_microseconds`. It then sets the hardware clock every 11
/// minutes.
///
/// # Errors
///
/// What the system says.
pub fn declare_clock_synchronized(error_microseconds: i64) -> io::Result<()> {
    adjust(libc::ADJ_STATUS | libc::ADJ_MAXERROR | libc::ADJ_ESTERROR, |timex| {
        timex.status = 0;
        timex.maxerror = error_microseconds;
        timex.esterror = error_microseconds;
    })
}

fn adjust(modes: libc::c_uint, fill: impl FnOnce(&mut libc::timex)) -> io::Result<()> {
    // SAFETY: the structure is made of numbers only, for which all zeros is a value.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    timex.modes = modes;
    fill(&mut timex);
    // SAFETY: the kernel reads and writes the structure, which lives through the call.
    let result = unsafe { libc::adjtimex(&raw mut timex) };
    // What is not negative is the state of the clock.
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
