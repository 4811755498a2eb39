//! Requests to block devices that no safe crate offers: partitions as the kernel knows them, loop devices, and the label of a
//! mounted file system.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `BLKPG` of linux/blkpg.h: change one partition as the kernel knows it, while others are in use.
const BLKPG: libc::c_ulong = 0x1269;
const BLKPG_RESIZE_PARTITION: libc::c_int = 3;
/// `BLKRRPART` of linux/fs.h: read the partition table anew.
const BLKRRPART: libc::c_ulong = 0x125F;
/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` of linux/loop.h.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
/// The loop device detaches itself when the last user closes it, so that nothing of a dead process is left.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Another process can take the free loop device before we do: so often is it tried anew.
const LOOP_ATTEMPTS: usize = 64;
/// `FS_IOC_SETFSLABEL` of linux/fs.h.
const FS_IOC_SETFSLABEL: libc::c_ulong = 0x4100_9432;
const LABEL_LENGTH: usize = 256;

#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    number: libc::c_int,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

#[repr(C)]
struct BlkpgArgument {
    operation: libc::c_int,
    flags: libc::c_int,
    data_length: libc::c_int,
    data: *mut BlkpgPartition,
}

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// Tells the kernel the new length of partition `number` of a whole disk, which may be in use. `start` and `length` are bytes;
/// the start is the one that the kernel knows.
///
/// # Errors
///
/// What the system says, for example when there is no such partition.
pub fn resize_partition(disk: BorrowedFd<'_>, number: u32, start: u64, length: u64) -> io::Result<()> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut partition = BlkpgPartition {
        start: i64::try_from(start).map_err(out_of_range)?,
        length: i64::try_from(length).map_err(out_of_range)?,
        number: libc::c_int::try_from(number).map_err(out_of_range)?,
        device_name: [0; 64],
        volume_name: [0; 64],
    };
    let argument = BlkpgArgument {
        operation: BLKPG_RESIZE_PARTITION,
        flags: 0,
        data_length: libc::c_int::try_from(size_of::<BlkpgPartition>()).map_err(out_of_range)?,
        data: &raw mut partition,
    };
    // SAFETY: both structures have the kernel's layout and outlive the call, which keeps no pointer.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), BLKPG as _, &raw const argument) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel read the partition table of a whole disk anew.
///
/// # Errors
///
/// What the system says; `EBUSY` when a partition is in use.
pub fn read_partitions_anew(disk: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request has no argument.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), BLKRRPART as _, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a file a block device. It is detached when the returned descriptor is closed and nobody else uses it, so also when
/// this process dies.
///
/// # Errors
///
/// What the system says, for example when it has no loop devices.
pub fn attach_loop(file: BorrowedFd<'_>) -> io::Result<(PathBuf, OwnedFd)> {
    let open = |path: &str| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let control = open("/dev/loop-control")?;
    for _ in 0..LOOP_ATTEMPTS {
        // SAFETY: the request has no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _, 0) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let device = open(&path)?;
        let configuration = LoopConfig {
            descriptor: file.as_raw_fd().unsigned_abs(),
            block_size: 0,
            info: LoopInfo {
                device: 0,
                inode: 0,
                rdevice: 0,
                offset: 0,
                size_limit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: LO_FLAGS_AUTOCLEAR,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: the structure has the kernel's layout and outlives the call, which keeps no pointer.
        let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE as _, &raw const configuration) };
        if result == 0 {
            return Ok((path.into(), device));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(Errno::BUSY.raw_os_error()) {
            return Err(error);
        }
    }
    Err(Errno::BUSY.into())
}

/// Sets the label of the mounted file system in which `directory` is.
///
/// # Errors
///
/// What the system says, for example when the file system has no labels or shorter ones.
pub fn set_file_system_label(directory: BorrowedFd<'_>, label: &str) -> io::Result<()> {
    let mut bytes = [0_u8; LABEL_LENGTH];
    // The last byte stays zero: it ends the text.
    let room = bytes.get_mut(..label.len()).filter(|room| room.len() < LABEL_LENGTH);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(label.as_bytes());
    // SAFETY: the kernel reads as many bytes as the array has, and the call keeps no pointer.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_SETFSLABEL as _, bytes.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `XFS_IOC_FSGEOMETRY_V1` and `XFS_IOC_FSGROWFSDATA` of xfs/xfs_fs.h.
const XFS_IOC_FSGEOMETRY_V1: libc::c_ulong = 0x8070_5864;
const XFS_IOC_FSGROWFSDATA: libc::c_ulong = 0x4010_586E;

#[repr(C)]
#[derive(Default)]
struct XfsGeometry {
    block_size: u32,
    realtime_extent_size: u32,
    group_blocks: u32,
    groups: u32,
    log_blocks: u32,
    sector_size: u32,
    inode_size: u32,
    inode_percentage: u32,
    data_blocks: u64,
    realtime_blocks: u64,
    realtime_extents: u64,
    log_start: u64,
    uuid: [u8; 16],
    stripe_unit: u32,
    stripe_width: u32,
    version: i32,
    flags: u32,
    log_sector_size: u32,
    realtime_sector_size: u32,
    directory_block_size: u32,
}

#[repr(C)]
struct XfsGrowth {
    blocks: u64,
    inode_percentage: u32,
}

fn xfs_geometry(directory: BorrowedFd<'_>) -> io::Result<XfsGeometry> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: the structure has the kernel's layout, all its bytes may be written, and the call keeps no pointer.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, &raw mut geometry) };
    if result == 0 { Ok(geometry) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of its device that the mounted XFS in which `directory` is covers.
///
/// # Errors
///
/// What the system says, for example when it is no XFS.
pub fn xfs_size(directory: BorrowedFd<'_>) -> io::Result<u64> {
    let XfsGeometry { block_size, data_blocks, .. } = xfs_geometry(directory)?;
    Ok(data_blocks.saturating_mul(block_size.into()))
}

/// Has the mounted XFS in which `directory` is cover `size` bytes of its device, or a few less. It does not shrink.
///
/// # Errors
///
/// What the system says, for example when the device is not that large.
pub fn grow_xfs(directory: BorrowedFd<'_>, size: u64) -> io::Result<()> {
    let XfsGeometry { block_size, data_blocks, inode_percentage, .. } = xfs_geometry(directory)?;
    let blocks = size / u64::from(block_size.max(1));
    if blocks <= data_blocks {
        return Ok(());
    }
    let growth = XfsGrowth { blocks, inode_percentage };
    // SAFETY: the structure has the kernel's layout and outlives the call, which keeps no pointer.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), XFS_IOC_FSGROWFSDATA as _, &raw const growth) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
