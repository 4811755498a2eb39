//! [`KernelParts`]: a unified kernel image taken apart, for a start without the firmware.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::AsFd as _;

use object::read::pe::PeFile64;
use object::{Object as _, ObjectSection as _};
use polis_image::slots::Entry;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::running::BOOT_ENTRY_OPTION;

/// Where the kernel says how far it is locked down; the mode that is in force is in brackets.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// What a unified kernel image holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KernelParts<'a> {
    /// The kernel.
    pub kernel: &'a [u8],
    /// The initramfs.
    pub initramfs: &'a [u8],
    /// The command line, without zeros at its end.
    pub command_line: &'a str,
    /// Text of os-release: what system it is.
    pub os_release: &'a str,
}

/// Why an image cannot be taken apart.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    /// It is no EFI program.
    #[error("it is no EFI program for x86-64")]
    NotPe(#[source] object::Error),
    /// A part is missing.
    #[error("it has no part {0}")]
    Missing(&'static str),
    /// A part is no text.
    #[error("its part {0} is no text")]
    Text(&'static str),
}

/// Why a kernel was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The image.
    #[error("the image cannot be started without the firmware")]
    Parts(#[from] PartsError),
    /// The kernel that runs does not do it.
    #[error("the kernel of this machine cannot start another one: it was built without that (CONFIG_KEXEC_FILE)")]
    NotOffered,
    /// The kernel that runs must not do it.
    #[error(
        "the kernel of this machine is locked down, as it is with Secure Boot, and starts only what the firmware has checked"
    )]
    LockedDown,
    /// The kernel refused.
    #[error("the kernel of this machine refused to load another one")]
    Kernel(#[source] io::Error),
}

impl<'a> KernelParts<'a> {
    /// Takes an image apart.
    ///
    /// # Errors
    ///
    /// When it is no unified kernel image.
    pub fn of(image: &'a [u8]) -> Result<Self, PartsError> {
        let file = PeFile64::parse(image).map_err(PartsError::NotPe)?;
        let part = |name: &'static str| {
            let section = file.section_by_name(name).ok_or(PartsError::Missing(name))?;
            section.data().map_err(PartsError::NotPe)
        };
        let text = |name| std::str::from_utf8(part(name)?).map_err(|_| PartsError::Text(name));
        let command_line = text(".cmdline")?;
        Ok(Self {
            os_release: text(".osrel")?,
            kernel: part(".linux")?,
            initramfs: part(".initrd")?,
            command_line: command_line.trim_end_matches(['\0', '\n', ' ']),
        })
    }

    /// Version of the Polis in it, as its os-release says; empty when it does not.
    #[must_use]
    pub fn version(&self) -> &'a str {
        let line = self.os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=\"Polis "));
        line.unwrap_or_default().trim_end_matches('"')
    }

    /// Loads the kernel, to be started by the end of this machine. It is told by which entry it is started, since the boot loader has
    /// no part in it.
    ///
    /// # Errors
    ///
    /// When the kernel that runs does not do it.
    pub fn load(&self, entry: &Entry) -> Result<(), LoadError> {
        let locked = std::fs::read_to_string(LOCKDOWN).is_ok_and(|text| text.contains('[') && !text.contains("[none]"));
        if locked {
            return Err(LoadError::LockedDown);
        }
        let line = CString::new(self.command_line_for(entry)).map_err(|_| PartsError::Text(".cmdline"))?;
        let kernel = in_memory("kernel", self.kernel).map_err(LoadError::Kernel)?;
        let initramfs = in_memory("initramfs", self.initramfs).map_err(LoadError::Kernel)?;
        polis_sys::load_kernel(kernel.as_fd(), initramfs.as_fd(), &line).map_err(|error| {
            match Errno::from_io_error(&error) {
                Some(Errno::NOSYS | Errno::OPNOTSUPP) => LoadError::NotOffered,
                Some(Errno::PERM | Errno::KEYREJECTED) => LoadError::LockedDown,
                Some(_) | None => LoadError::Kernel(error),
            }
        })
    }

    fn command_line_for(&self, entry: &Entry) -> String {
        format!("{} {BOOT_ENTRY_OPTION}={}", self.command_line, entry.file_name())
    }
}

fn in_memory(name: &str, content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use polis_image::slots::{NewImage, Slots};

    use super::*;

    #[test]
    fn what_is_no_image_is_told() {
        assert!(matches!(KernelParts::of(b"MZ and no more"), Err(PartsError::NotPe(_))));
    }

    /// The smallest EFI program that has the sections.
    fn image(sections: &[(&[u8], &[u8])]) -> Vec<u8> {
        use object::write::pe;
        let mut bytes = Vec::new();
        let mut writer = pe::Writer::new(true, 0x1000, 0x200, &mut bytes);
        writer.reserve_dos_header_and_stub();
        writer.reserve_nt_headers(0);
        writer.reserve_section_headers(u16::try_from(sections.len()).unwrap());
        let flags = object::pe::IMAGE_SCN_CNT_INITIALIZED_DATA | object::pe::IMAGE_SCN_MEM_READ;
        let mut ranges = Vec::new();
        for (name, content) in sections {
            let mut padded = [0; 8];
            padded[..name.len()].copy_from_slice(name);
            let length = u32::try_from(content.len()).unwrap();
            ranges.push(writer.reserve_section(padded, flags, length, length));
        }
        writer.write_dos_header_and_stub().unwrap();
        writer.write_nt_headers(pe::NtHeaders {
            machine: object::pe::IMAGE_FILE_MACHINE_AMD64,
            time_date_stamp: 0,
            characteristics: object::pe::IMAGE_FILE_EXECUTABLE_IMAGE,
            major_linker_version: 0,
            minor_linker_version: 0,
            address_of_entry_point: 0,
            image_base: 0,
            major_operating_system_version: 0,
            minor_operating_system_version: 0,
            major_image_version: 0,
            minor_image_version: 0,
            major_subsystem_version: 0,
            minor_subsystem_version: 0,
            subsystem: object::pe::IMAGE_SUBSYSTEM_EFI_APPLICATION,
            dll_characteristics: object::pe::DllFlags(0),
            size_of_stack_reserve: 0,
            size_of_stack_commit: 0,
            size_of_heap_reserve: 0,
            size_of_heap_commit: 0,
        });
        writer.write_section_headers();
        for (range, (_, content)) in ranges.iter().zip(sections) {
            writer.write_section(range.file_offset, content);
        }
        bytes
    }

    #[test]
    fn an_image_is_taken_apart() {
        let sections: [(&[u8], &[u8]); 4] = [
            (b".osrel", b"ID=polis\nPRETTY_NAME=\"Polis 1.2.3\"\n"),
            (b".cmdline", b"quiet\n\0"),
            (b".initrd", b"the system"),
            (b".linux", b"MZ the kernel"),
        ];
        let whole = image(&sections);
        let parts = KernelParts::of(&whole).unwrap();
        assert_eq!((parts.kernel, parts.initramfs, parts.command_line), (sections[3].1, sections[2].1, "quiet"));
        assert_eq!(parts.version(), "1.2.3");
        let missing = image(&sections[..3]);
        assert!(matches!(KernelParts::of(&missing), Err(PartsError::Missing(".linux"))));
    }

    #[test]
    fn the_next_kernel_knows_its_entry() {
        let entry = Slots::first(&NewImage { sha256: [1; 32], version: "1".into() });
        let parts = KernelParts { kernel: b"", initramfs: b"", command_line: "quiet console=ttyS0", os_release: "" };
        assert_eq!(parts.command_line_for(&entry), "quiet console=ttyS0 polis.boot-entry=polis-00000001-a.conf");
    }
}
