//! [`Kept`]: a record of two generations that can be made anew from what the cluster says, so that damage to it is reported and
//! stops nobody.

use polis_condition::Severity;
use polis_storage::{GenerationsError, Loaded, Record, TwoGenerations, TwoGenerationsError};
use polis_supervisor::{Context, with_causes};

/// A record on the disk, with what it is called.
pub(crate) struct Kept<T> {
    file: TwoGenerations<T>,
    /// What it is, for people.
    what: &'static str,
    /// Name of the condition that says that it was damaged.
    condition: &'static str,
}

impl<T: Record + Send + Sync + 'static> Kept<T> {
    pub(crate) const fn new(file: TwoGenerations<T>, what: &'static str, condition: &'static str) -> Self {
        Self { file, what, condition }
    }

    /// The last good copy; none if there is no usable one.
    ///
    /// # Errors
    ///
    /// When the disk fails, or a newer version of Polis has written the file.
    pub(crate) async fn load(&self, context: &Context) -> Result<Option<T>, TwoGenerationsError> {
        let file = self.file.clone();
        match context.blocking(move || file.load()).await {
            Ok(Some(Loaded { value, fault: None, .. })) => Ok(Some(value)),
            Ok(Some(Loaded { value, fault: Some(fault), .. })) => {
                self.report(context, &format!("one of its two files is damaged, and the other is used: {fault}"));
                Ok(Some(self.mend(context, value).await))
            }
            Ok(None) => Ok(None),
            Err(error) if is_damage(&error) => {
                self.report(context, &with_causes(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the next generation, also over two that cannot be used.
    ///
    /// # Errors
    ///
    /// When the disk fails, or a newer version of Polis has written the file.
    pub(crate) async fn store(
        &self,
        context: &Context,
        record: T,
        site: &'static str,
    ) -> Result<(), TwoGenerationsError> {
        let file = self.file.clone();
        context
            .blocking(move || match file.store(&record, site) {
                Err(error) if is_damage(&error) => {
                    file.discard(site)?;
                    file.store(&record, site)
                }
                stored => stored,
            })
            .await
    }

    /// Writes the record once more, over the damaged file: as long as nothing changes nobody else would, and a second fault would
    /// cost the record. A disk that does not take it now stops nobody; the next start tries again.
    async fn mend(&self, context: &Context, value: T) -> T {
        let file = self.file.clone();
        let (value, stored) = context
            .blocking(move || {
                let stored = file.store(&value, "kept/mend");
                (value, stored)
            })
            .await;
        if let Err(error) = stored {
            tracing::warn!(reason = with_causes(&error), "{} cannot be written anew yet", self.what);
        }
        value
    }

    fn report(&self, context: &Context, damage: &str) {
        let what = self.what;
        tracing::warn!(damage, "{what} on this node's disk was damaged; it is written anew");
        context.conditions().raise(
            self.condition,
            Severity::Warning,
            format!("{what} was damaged and is written anew: {damage}"),
            "nothing is lost once the cluster has been reached; look at the disk if it happens again",
        );
    }
}

/// What is whole and not of the future, and yet cannot be read, was not written by anybody who meant it.
const fn is_damage(error: &TwoGenerationsError) -> bool {
    match error {
        TwoGenerationsError::Files(GenerationsError::BothUnusable { .. }) | TwoGenerationsError::Invalid { .. } => true,
        TwoGenerationsError::Files(
            GenerationsError::Disk(_) | GenerationsError::FutureVersion { .. } | GenerationsError::TooLong { .. },
        ) => false,
    }
}
