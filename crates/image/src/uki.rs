//! The unified kernel image: systemd's stub, an EFI program, with what it is to start in sections of its own.
//!
//! The sections are put behind those of the stub: a header for each in the free place of its table, and the content at the next
//! page. Nothing of the stub moves, so what the stub itself looks for (such as Debian's `.sdmagic`) stays where it is.

use object::LittleEndian as LE;
use object::pe::{IMAGE_FILE_MACHINE_AMD64, IMAGE_SCN_CNT_INITIALIZED_DATA, IMAGE_SCN_MEM_READ};
use object::read::pe::{ImageNtHeaders as _, ImageOptionalHeader as _, PeFile64};

/// Bytes of one header of a section.
const SECTION_HEADER: usize = 40;
/// Longest name of a section.
const NAME_LENGTH: usize = 8;
/// Places in the headers (Microsoft PE format), in bytes.
const COFF_HEADER: usize = 20;
const SIGNATURE: usize = 4;
const NUMBER_OF_SECTIONS: usize = 2;
const SIZE_OF_INITIALIZED_DATA: usize = 8;
const SIZE_OF_IMAGE: usize = 56;
const CHECKSUM: usize = 64;
/// Where the header says how far the real one is.
const NEW_HEADER_AT: usize = 0x3c;

/// What a stub is to start.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'a> {
    /// Text of os-release: the name under which it is known.
    pub os_release: &'a str,
    /// The kernel's command line.
    pub command_line: &'a str,
    /// Release of the kernel.
    pub kernel_release: &'a str,
    /// The initramfs.
    pub initramfs: &'a [u8],
    /// The kernel, itself an EFI program.
    pub kernel: &'a [u8],
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum UkiError {
    /// The stub is not what it should be.
    #[error("the stub is not an EFI program for x86-64: {problem}")]
    Stub {
        /// What is wrong.
        problem: &'static str,
    },
    /// It cannot be parsed.
    #[error("the stub is not an EFI program for x86-64")]
    NotPe(#[source] object::Error),
    /// The kernel could not be started by the stub.
    #[error("the kernel is not an EFI program: it needs CONFIG_EFI_STUB")]
    Kernel,
    /// There is no room for more headers of sections.
    #[error("the stub has room for {room} more sections, and {needed} are needed")]
    NoRoom {
        /// How many there is room for.
        room: usize,
        /// How many are needed.
        needed: usize,
    },
    /// More than the form can hold.
    #[error("the image would be longer than 4 GiB")]
    TooLong,
}

/// Puts an image together.
///
/// # Errors
///
/// When stub or kernel are not what they should be.
pub fn unified_kernel_image(stub: &[u8], sections: &Sections<'_>) -> Result<Vec<u8>, UkiError> {
    if !sections.kernel.starts_with(b"MZ") {
        return Err(UkiError::Kernel);
    }
    // The kernel comes last: the stub may give it the room behind it.
    let contents: [(&str, &[u8]); 5] = [
        (".osrel", sections.os_release.as_bytes()),
        (".cmdline", sections.command_line.as_bytes()),
        (".uname", sections.kernel_release.as_bytes()),
        (".initrd", sections.initramfs),
        (".linux", sections.kernel),
    ];
    let places = Places::of(stub)?;
    if places.room < contents.len() {
        return Err(UkiError::NoRoom { room: places.room, needed: contents.len() });
    }
    let mut image = stub.to_vec();
    let mut address = places.end_of_memory;
    let mut data_length = 0;
    for (number, (name, content)) in contents.into_iter().enumerate() {
        address = align(address, places.section_alignment)?;
        let length = to_u32(content.len())?;
        image.resize(align(to_u32(image.len())?, places.file_alignment)? as usize, 0);
        let header = section_header(name, length, address, align(length, places.file_alignment)?, to_u32(image.len())?);
        put(&mut image, places.end_of_table + number * SECTION_HEADER, &header)?;
        image.extend_from_slice(content);
        image.resize(align(to_u32(image.len())?, places.file_alignment)? as usize, 0);
        address = address.checked_add(length).ok_or(UkiError::TooLong)?;
        data_length += align(length, places.file_alignment)?;
    }
    let optional = places.coff_header + COFF_HEADER;
    let number_of_sections =
        places.number_of_sections + u16::try_from(contents.len()).map_err(|_| UkiError::TooLong)?;
    put(&mut image, places.coff_header + NUMBER_OF_SECTIONS, &number_of_sections.to_le_bytes())?;
    put(&mut image, optional + SIZE_OF_INITIALIZED_DATA, &(places.initialized_data + data_length).to_le_bytes())?;
    put(&mut image, optional + SIZE_OF_IMAGE, &align(address, places.section_alignment)?.to_le_bytes())?;
    // Zero means none, and firmware asks for none.
    put(&mut image, optional + CHECKSUM, &[0; 4])?;
    Ok(image)
}

/// Where things are in a stub.
struct Places {
    coff_header: usize,
    end_of_table: usize,
    /// Headers of sections for which there is room.
    room: usize,
    number_of_sections: u16,
    section_alignment: u32,
    file_alignment: u32,
    initialized_data: u32,
    /// First free address in memory, relative to the start of the image.
    end_of_memory: u32,
}

impl Places {
    fn of(stub: &[u8]) -> Result<Self, UkiError> {
        let file = PeFile64::parse(stub).map_err(UkiError::NotPe)?;
        let headers = file.nt_headers();
        if headers.file_header().machine.get(LE) != IMAGE_FILE_MACHINE_AMD64 {
            return Err(UkiError::Stub { problem: "it is for another processor" });
        }
        let optional = headers.optional_header();
        let at =
            stub.get(NEW_HEADER_AT..NEW_HEADER_AT + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let coff_header = at.ok_or(UkiError::Stub { problem: "it is too short" })? as usize + SIGNATURE;
        let table = coff_header + COFF_HEADER + usize::from(headers.file_header().size_of_optional_header.get(LE));
        let sections = file.section_table();
        let end_of_table = table + sections.len() * SECTION_HEADER;
        let first_data =
            sections.iter().map(|section| section.pointer_to_raw_data.get(LE)).filter(|start| *start > 0).min();
        let end_of_room = first_data.unwrap_or(u32::MAX).min(optional.size_of_headers()) as usize;
        let end_of_memory = sections
            .iter()
            .filter_map(|section| section.virtual_address.get(LE).checked_add(section.virtual_size.get(LE)))
            .max()
            .ok_or(UkiError::Stub { problem: "it has no sections" })?;
        let (section_alignment, file_alignment) = (optional.section_alignment(), optional.file_alignment());
        if !section_alignment.is_power_of_two() || !file_alignment.is_power_of_two() {
            return Err(UkiError::Stub { problem: "its sections are aligned to no power of two" });
        }
        Ok(Self {
            coff_header,
            end_of_table,
            room: end_of_room.saturating_sub(end_of_table) / SECTION_HEADER,
            number_of_sections: headers.file_header().number_of_sections.get(LE),
            section_alignment,
            file_alignment,
            initialized_data: optional.size_of_initialized_data(),
            end_of_memory,
        })
    }
}

fn section_header(
    name: &str,
    length: u32,
    address: u32,
    length_in_file: u32,
    place_in_file: u32,
) -> [u8; SECTION_HEADER] {
    let mut header = [0; SECTION_HEADER];
    let name = name.as_bytes();
    debug_assert!(name.len() <= NAME_LENGTH, "a longer name would need a table of strings");
    for (to, from) in header.iter_mut().zip(name) {
        *to = *from;
    }
    let flags = IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ;
    for (at, value) in [(8, length), (12, address), (16, length_in_file), (20, place_in_file), (36, flags.0)] {
        header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    header
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), UkiError> {
    let place = image.get_mut(at..at + bytes.len()).ok_or(UkiError::Stub { problem: "it is too short" })?;
    place.copy_from_slice(bytes);
    Ok(())
}

fn to_u32(length: usize) -> Result<u32, UkiError> {
    u32::try_from(length).map_err(|_| UkiError::TooLong)
}

fn align(value: u32, alignment: u32) -> Result<u32, UkiError> {
    value.checked_next_multiple_of(alignment).ok_or(UkiError::TooLong)
}

#[cfg(test)]
pub(crate) mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;

    /// Where Debian's package systemd-boot-efi puts the stub.
    const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

    /// A small EFI program with one section and room for `room` more.
    pub(crate) fn small_stub(room: usize) -> Vec<u8> {
        let mut stub = vec![0; 0x80];
        stub[..2].copy_from_slice(b"MZ");
        stub[NEW_HEADER_AT] = 0x80;
        stub.extend_from_slice(b"PE\0\0");
        stub.extend_from_slice(&0x8664_u16.to_le_bytes());
        stub.extend_from_slice(&1_u16.to_le_bytes());
        stub.resize(stub.len() + 12, 0);
        stub.extend_from_slice(&240_u16.to_le_bytes());
        stub.extend_from_slice(&0x22e_u16.to_le_bytes());
        let optional = stub.len();
        stub.resize(optional + 240, 0);
        let headers = (optional + 240 + (1 + room) * SECTION_HEADER).next_multiple_of(4);
        let fields = [(32, 0x1000), (36, 4), (SIZE_OF_IMAGE, 0x2000), (60, headers as u32), (108, 16)];
        stub[optional..optional + 2].copy_from_slice(&0x20b_u16.to_le_bytes());
        for (at, value) in fields {
            stub[optional + at..optional + at + 4].copy_from_slice(&value.to_le_bytes());
        }
        stub.extend_from_slice(&section_header(".text", 4, 0x1000, 4, headers as u32));
        stub.resize(headers, 0);
        stub.extend_from_slice(b"code");
        stub
    }

    fn sections<'a>(initramfs: &'a [u8], kernel: &'a [u8]) -> Sections<'a> {
        Sections { os_release: "ID=polis\n", command_line: "console=ttyS0", kernel_release: "6.1", initramfs, kernel }
    }

    fn check(stub: &[u8]) {
        let (initramfs, kernel) = ([7; 5000], [&b"MZ"[..], &[9; 70_001]].concat());
        let image = unified_kernel_image(stub, &sections(&initramfs, &kernel)).unwrap();
        let file = PeFile64::parse(&*image).unwrap();
        let content = |name: &str| file.section_by_name(name).unwrap().data().unwrap().to_vec();
        assert_eq!(content(".osrel")[..9], *b"ID=polis\n");
        assert_eq!(content(".cmdline")[..13], *b"console=ttyS0");
        assert_eq!(content(".initrd")[..5000], initramfs);
        assert_eq!(content(".linux")[..kernel.len()], kernel);
        // What was there is where it was, in the file and in memory, and nothing overlaps.
        let before = PeFile64::parse(stub).unwrap();
        for section in before.sections() {
            let name = section.name().unwrap();
            let same = file.sections().find(|other| other.address() == section.address()).unwrap();
            assert_eq!((same.name().unwrap(), same.file_range()), (name, section.file_range()));
            assert_eq!(same.data().unwrap(), section.data().unwrap(), "{name}");
        }
        let mut ranges: Vec<_> = file.sections().map(|section| (section.address(), section.size())).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
        let optional = file.nt_headers().optional_header();
        let end = ranges.last().map(|(address, size)| address + size).unwrap() - optional.image_base();
        assert_eq!(u64::from(optional.size_of_image()), end.next_multiple_of(u64::from(optional.section_alignment())));
        assert_eq!(image.len() % optional.file_alignment() as usize, 0);
    }

    #[test]
    fn the_sections_are_behind_those_of_the_stub() {
        check(&small_stub(5));
        check(&small_stub(9));
    }

    #[test]
    fn the_distributions_stub_has_room() {
        match std::fs::read(STUB) {
            Ok(stub) => check(&stub),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{STUB}: {error}");
                eprintln!("skipped: {STUB}: {error}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let kernel = b"MZ kernel";
        let error = unified_kernel_image(&small_stub(4), &sections(b"", kernel)).unwrap_err();
        assert!(matches!(error, UkiError::NoRoom { room: 4, needed: 5 }), "{error}");
        assert!(matches!(unified_kernel_image(b"", &sections(b"", kernel)), Err(UkiError::NotPe(_))));
        assert!(matches!(unified_kernel_image(&small_stub(5), &sections(b"", b"ELF")), Err(UkiError::Kernel)));
        let mut other = small_stub(5);
        other[0x84..0x86].copy_from_slice(&0xaa64_u16.to_le_bytes());
        assert!(matches!(unified_kernel_image(&other, &sections(b"", kernel)), Err(UkiError::Stub { .. })));
    }
}
