//! What an ELF file needs to run, read from the file itself: running it to ask (as `ldd` does) would run a stranger's program.

use object::elf;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _};

/// What an ELF file needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// The program that loads it (`PT_INTERP`); none for a static program and for a library.
    pub interpreter: Option<String>,
    /// Names of the libraries it needs (`DT_NEEDED`), in their order.
    pub needed: Vec<String>,
    /// Directories that it wants them looked for in (`DT_RPATH`, `DT_RUNPATH`), as they are written there.
    pub search: Vec<String>,
}

/// Why a file is none that can be run here.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// It is something else, or damaged.
    #[error("it is not a whole ELF file of a 64-bit machine")]
    NotElf(#[source] object::Error),
    /// It is for another processor.
    #[error("it is made for another processor (ELF machine {0}), and the image is for x86-64")]
    OtherMachine(u16),
}

impl ElfFacts {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// When it is not an ELF file for x86-64.
    pub fn read(bytes: &[u8]) -> Result<Self, ElfError> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(ElfError::NotElf)?;
        let header = file.elf_header();
        let endian = file.endian();
        let machine = header.e_machine(endian);
        if machine != elf::EM_X86_64 {
            return Err(ElfError::OtherMachine(machine.0));
        }
        let mut facts = Self::default();
        for segment in header.program_headers(endian, bytes).map_err(ElfError::NotElf)? {
            if let Some(interpreter) = segment.interpreter(endian, bytes).map_err(ElfError::NotElf)? {
                facts.interpreter = Some(String::from_utf8_lossy(interpreter).into_owned());
            }
        }
        let sections = header.sections(endian, bytes).map_err(ElfError::NotElf)?;
        let Some((entries, strings)) = sections.dynamic(endian, bytes).map_err(ElfError::NotElf)? else {
            return Ok(facts);
        };
        let strings = sections.strings(endian, bytes, strings).map_err(ElfError::NotElf)?;
        for entry in entries {
            let text = || entry.string(endian, strings).map(|text| String::from_utf8_lossy(text).into_owned());
            match entry.tag(endian) {
                elf::DT_NEEDED => facts.needed.push(text().map_err(ElfError::NotElf)?),
                elf::DT_RPATH | elf::DT_RUNPATH => {
                    facts.search.extend(text().map_err(ElfError::NotElf)?.split(':').map(str::to_owned));
                }
                _ => {}
            }
        }
        Ok(facts)
    }
}

/// The section of one name; none when there is no such section.
pub(crate) fn section<'data>(bytes: &'data [u8], name: &str) -> Result<Option<&'data [u8]>, ElfError> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(ElfError::NotElf)?;
    file.section_by_name(name).map(|section| section.data().map_err(ElfError::NotElf)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_names_the_loader_and_the_c_library() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let facts = ElfFacts::read(&bytes).unwrap();
        assert!(facts.interpreter.unwrap().starts_with("/lib64/ld-linux"));
        assert!(facts.needed.contains(&"libc.so.6".to_owned()), "{:?}", facts.needed);
        assert!(section(&bytes, ".text").unwrap().is_some_and(|text| !text.is_empty()));
        assert_eq!(section(&bytes, ".nothing").unwrap(), None);
    }

    #[test]
    fn other_files_are_refused() {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        assert!(matches!(ElfFacts::read(&bytes[..40]), Err(ElfError::NotElf(_))));
        assert!(matches!(ElfFacts::read(b"#!/bin/sh\n"), Err(ElfError::NotElf(_))));
        // e_machine is at 18; 183 is that of AArch64.
        bytes[18] = 183;
        assert!(matches!(ElfFacts::read(&bytes), Err(ElfError::OtherMachine(183))));
    }
}
