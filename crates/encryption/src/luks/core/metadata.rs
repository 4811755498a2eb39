//! What the LUKS header says, and what it means that nobody says it.

use polis_disks::Device;
use polis_storage::data::DataError;

use super::{Core, backend};
use crate::child::ToolError;
use crate::luks::commands;
use crate::luks::header::{Metadata, has_whole_copy};

impl Core {
    /// What the LUKS header says.
    pub(super) fn metadata(&self, device: &Device) -> Result<Metadata, DataError> {
        let (action, path) = ("reading the LUKS header", || self.device.clone());
        match self.tool(&commands::dump(&self.device), &[])? {
            // The program has found it whole; what it writes is its own.
            Ok(finished) => Metadata::parse(&finished.output).map_err(|error| DataError::Tool {
                action,
                path: path(),
                backend: backend(self.security),
                source: Box::new(error),
            }),
            Err(error @ ToolError::Failed { .. }) => {
                // Its exit status is the same for a header that is destroyed and for a device that did not answer, a lock that could
                // not be had, and so on. Damaged is final, so the header itself is asked.
                if has_whole_copy(device).map_err(|error| self.device_failed(error))? {
                    return Err(self.tool_failed(action, error));
                }
                let problem = format!("neither copy of its LUKS header is whole: {error}");
                Err(DataError::Damaged { path: path(), backend: backend(self.security), problem })
            }
            Err(error) => Err(self.tool_failed(action, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use polis_storage::data::{Found, Progress, ProgressSender};
    use polis_storage::journal::StorageSecurity;
    use polis_storage::{DataGate, HostDisk};
    use sha2::{Digest as _, Sha256};

    use super::super::LEAST_SIZE;
    use super::*;
    use crate::luks::header::SECOND_COPY;
    use crate::luks::names::{LABEL, luks_uuid};
    use crate::luks::tools::Tools;

    const NODE: &str = "metropolis-00000000000000000000000000000001";

    /// An image file with both copies of a header of ours, and a `cryptsetup` that does what a test says.
    struct World {
        directory: tempfile::TempDir,
        core: Core,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (root, image) = (directory.path().join("root"), directory.path().join("image"));
            std::fs::create_dir(&root).unwrap();
            let file = std::fs::File::create(&image).unwrap();
            file.set_len(LEAST_SIZE).unwrap();
            for (position, magic) in [(0, b"LUKS\xba\xbe\0\x02"), (SECOND_COPY, b"SKUL\xba\xbe\0\x02")] {
                file.write_all_at(&copy(magic), position).unwrap();
            }
            let disk = Arc::new(HostDisk::open(&root).unwrap());
            let tools = Tools::new(vec![directory.path().to_owned()]);
            let core = Core::new(disk, DataGate::closed(), image, StorageSecurity::Encrypted, tools);
            let world = Self { directory, core };
            world.does("echo 'nothing is asked of it yet'; exit 1");
            world
        }

        /// From now on, `cryptsetup` is this script.
        fn does(&self, script: &str) {
            // A new name and a rename: a file that somebody executes cannot be written to.
            let (written, program) = (self.directory.path().join("written"), self.directory.path().join("cryptsetup"));
            std::fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::rename(&written, &program).unwrap();
        }

        /// Changes one byte.
        fn damage(&self, position: u64) {
            let file = std::fs::File::options().read(true).write(true).open(&self.core.device).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, position).unwrap();
            file.write_all_at(&[!byte[0]], position).unwrap();
        }

        fn prepare(&self) -> Result<Found, DataError> {
            self.core.prepare(&ProgressSender::new(Progress::default()))
        }
    }

    fn copy(magic: &[u8; 8]) -> Vec<u8> {
        let mut copy = vec![0; usize::try_from(SECOND_COPY).unwrap()];
        copy[..8].copy_from_slice(magic);
        copy[8..16].copy_from_slice(&SECOND_COPY.to_be_bytes());
        let uuid = luks_uuid(NODE).to_string();
        for (position, text) in [(24, LABEL), (72, "sha256"), (168, &uuid), (208, NODE), (4096, "{\"keyslots\":{}}")] {
            copy[position..position + text.len()].copy_from_slice(text.as_bytes());
        }
        let checksum = Sha256::digest(&copy);
        copy[448..480].copy_from_slice(&checksum);
        copy
    }

    /// Without a header that is really damaged, no end of the program is one, and the next look, when all is well again, finds what
    /// has been there.
    #[test]
    fn a_program_that_fails_over_a_whole_header_is_no_damage() {
        let world = World::new();
        let scripts = [
            "echo 'Device is not a valid LUKS device.' >&2; exit 1",
            "echo 'No memory.' >&2; exit 3",
            "echo 'Cannot get a lock.' >&2; exit 5",
            "kill -KILL $$",
            "echo 'no json'",
        ];
        for broken in [None, Some(5000), Some(SECOND_COPY)] {
            // Also while one of the copies is not whole: the other is enough.
            if let Some(position) = broken {
                world.damage(position);
            }
            for script in scripts {
                world.does(script);
                let error = world.prepare().unwrap_err();
                assert!(
                    matches!(error, DataError::Tool { action: "reading the LUKS header", .. }),
                    "{script}, {broken:?}: {error:?}"
                );
            }
            world.does(&format!(
                "echo '{{\"tokens\":{{\"0\":{{\"type\":\"polis-data\",\"keyslots\":[],\"node\":\"{NODE}\"}}}}}}'"
            ));
            assert_eq!(world.prepare().unwrap(), Found::Formatted { owner: Some(NODE.to_owned()) });
            if let Some(position) = broken {
                world.damage(position);
            }
        }
    }

    #[test]
    fn a_header_without_a_whole_copy_is_damaged() {
        let world = World::new();
        // Not in the first sector, by which it is known as ours.
        for position in [5000, SECOND_COPY + 5000] {
            world.damage(position);
        }
        world.does("echo 'Device is not a valid LUKS device.' >&2; exit 1");
        let error = world.prepare().unwrap_err();
        assert!(
            matches!(&error, DataError::Damaged { problem, .. } if problem.contains("neither copy")
                && problem.contains("not a valid LUKS device")),
            "{error:?}"
        );
    }

    /// What this module takes for whole is what the real program writes, in both copies.
    #[test]
    fn a_header_of_the_real_program_is_whole() {
        let Some(program) =
            ["/sbin/cryptsetup", "/usr/sbin/cryptsetup"].into_iter().find(|path| Path::new(path).exists())
        else {
            assert!(std::env::var_os("CI").is_none(), "install cryptsetup-bin: nothing is skipped where CI is set");
            return;
        };
        let world = World::new();
        std::fs::File::create(&world.core.device).unwrap().set_len(LEAST_SIZE).unwrap();
        let device = || Device::open(&world.core.device).unwrap();
        assert!(!has_whole_copy(&device()).unwrap());
        let format = commands::luks_format(&world.core.device, NODE, StorageSecurity::Encrypted).unwrap();
        let command = crate::child::command(&PathBuf::from(program), format.arguments);
        let finished = crate::child::run(command, &[7; 32], std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(finished.status, polis_sys::ExitStatus::Exited { code: 0 }, "{}", finished.complaint);
        assert!(has_whole_copy(&device()).unwrap());
        for (first, second, expected) in [(true, false, true), (false, true, true), (true, true, false)] {
            let toggle = |damaged, position| {
                if damaged {
                    world.damage(position);
                }
            };
            let both = || {
                toggle(first, 5000);
                toggle(second, SECOND_COPY + 5000);
            };
            both();
            assert_eq!(has_whole_copy(&device()).unwrap(), expected, "{first}, {second}");
            both();
        }
    }
}
