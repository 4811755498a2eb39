//! [`Recording`]: what was done to a disk, and every power cut that could have come between.

use std::collections::BTreeSet;
use std::io;

use super::image::Image;
use super::model::Model;
use super::operation::{Operation, SyncSite};
use crate::path::DiskPath;

/// The state of a disk at the start and all that was done to it.
#[derive(Clone, Debug)]
pub struct Recording {
    /// What was on the disk, durably.
    pub initial: Image,
    /// Directories that are FAT, with all below them.
    pub fat: Vec<DiskPath>,
    /// What was done, in order.
    pub operations: Vec<Operation>,
}

impl Recording {
    /// The disk after the first `prefix` operations and a power cut that goes as `seed` says. Seeds below 8 are the
    /// extremes (all is lost, all is kept, all is torn), the others mix.
    ///
    /// # Errors
    ///
    /// When the operations do not fit the initial image.
    pub fn power_cut(&self, prefix: usize, seed: u64) -> io::Result<Image> {
        let mut model = Model::new(&self.initial, &self.fat);
        self.operations.iter().take(prefix).try_for_each(|operation| model.apply(operation))?;
        Ok(model.power_cut(seed))
    }

    /// The states between the operations, from before the first to after the last.
    ///
    /// # Errors
    ///
    /// When the operations do not fit the initial image.
    pub fn cuts(&self) -> io::Result<Vec<Cut>> {
        let mut model = Model::new(&self.initial, &self.fat);
        let mut cuts = vec![Cut { prefix: 0, model: model.clone() }];
        for (index, operation) in self.operations.iter().enumerate() {
            model.apply(operation)?;
            cuts.push(Cut { prefix: index + 1, model: model.clone() });
        }
        Ok(cuts)
    }

    /// Every place that synced something.
    #[must_use]
    pub fn sync_sites(&self) -> BTreeSet<SyncSite> {
        self.operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::Sync { site, .. } => Some(*site),
                Operation::CreateDirectory { .. }
                | Operation::CreateFile { .. }
                | Operation::ForgottenSync { .. }
                | Operation::Rename { .. }
                | Operation::RemoveFile { .. }
                | Operation::ClearDirectory { .. } => None,
            })
            .collect()
    }

    /// What would have been recorded from a program in which this sync is missing: a running process sees no difference.
    /// The operations keep their numbers.
    #[must_use]
    pub fn without_sync(&self, forgotten: SyncSite) -> Self {
        let mut recording = self.clone();
        for operation in &mut recording.operations {
            if matches!(operation, Operation::Sync { site, .. } if *site == forgotten) {
                *operation = Operation::ForgottenSync { site: forgotten };
            }
        }
        recording
    }
}

/// The disk at one point of a recording.
pub struct Cut {
    /// How many operations came before.
    pub prefix: usize,
    model: Model,
}

impl Cut {
    /// What a process sees here that is not cut off.
    #[must_use]
    pub fn image(&self) -> Image {
        self.model.image()
    }

    /// Whether everything is durable: then a power cut changes nothing, whatever the seed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.model.is_settled()
    }

    /// What is there after a power cut that goes as `seed` says: see [`Recording::power_cut`].
    #[must_use]
    pub fn power_cut(&self, seed: u64) -> Image {
        self.model.power_cut(seed)
    }
}
