//! Loading a kernel that is to take over from the one that runs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Loads a kernel with its initramfs and command line (kexec_file_load(2)). It is started by `reboot` with the command for it. Nothing
/// changes until then.
///
/// # Errors
///
/// ENOSYS when the kernel does not offer it, EPERM when it may not be done, ENOEXEC when it is no kernel.
pub fn load_kernel(kernel: BorrowedFd<'_>, initramfs: BorrowedFd<'_>, command_line: &CStr) -> io::Result<()> {
    let line = command_line.to_bytes_with_nul();
    let flags: libc::c_ulong = 0;
    // SAFETY: the descriptors are open, the pointer is to that many bytes that end with a zero and outlive the call, and the kernel
    // writes to none of them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initramfs.as_raw_fd(),
            line.len(),
            line.as_ptr(),
            flags,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_no_kernel_is_refused() {
        let nothing = File::open("/dev/null").unwrap();
        assert!(load_kernel(nothing.as_fd(), nothing.as_fd(), c"quiet").is_err());
    }
}
