//! Drills, one after each boot and each split.

use std::convert::Infallible;

use polis_supervisor::with_causes;
use polis_unlock::{ClusterUnlockKey, Epoch, NoDrill};
use tokio::sync::watch;

use crate::{DrillError, Owner, StoreMembersError, Surroundings, drill};

/// What a drill is about: the unlock file as it is now, and the key that opens the data.
#[derive(Clone)]
pub struct Exercise {
    /// Which one it is; each has another number, and none has 0.
    pub number: u64,
    /// The member, with its unlock file.
    pub owner: Owner,
    /// The key that opens the data, or the one that will.
    pub key: ClusterUnlockKey,
}

/// How far an exercise is. What was said of an earlier one says nothing about a later one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drilled {
    /// Number of the exercise; 0 while there is none.
    pub exercise: u64,
    /// How far it is.
    pub outcome: DrillOutcome,
}

/// How far the member knows that a cold start would open it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrillOutcome {
    /// Nothing was tried yet: nobody has said what with.
    #[default]
    NotYet,
    /// A drill is under way. Whom it waits for is in [`Surroundings::status`].
    UnderWay,
    /// Enough others have opened their shares of the split of this epoch, and they give the key.
    Verified(Epoch),
    /// There is nothing to try, which for [`NoDrill::Local`] is as good.
    Nothing(NoDrill),
    /// A cold start would fail.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

/// Runs a drill for whatever there is to be drilled, and again whenever that is another; one that is under way is given up for it. So
/// whoever has split the key anew says it here, and reads `drilled`.
///
/// # Errors
///
/// When a member list could not be stored.
pub async fn drills(
    surroundings: &Surroundings,
    mut exercises: watch::Receiver<Option<Exercise>>,
    drilled: watch::Sender<Drilled>,
) -> Result<Infallible, StoreMembersError> {
    loop {
        let exercise = exercises.borrow_and_update().clone();
        let Some(Exercise { number, owner, key }) = exercise else {
            drilled.send_replace(Drilled::default());
            wait(&mut exercises).await;
            continue;
        };
        let tell = |outcome| drilled.send_replace(Drilled { exercise: number, outcome });
        tell(DrillOutcome::UnderWay);
        let outcome = tokio::select! {
            biased;
            () = wait(&mut exercises) => continue,
            outcome = drill(surroundings, owner, key) => outcome,
        };
        tell(match outcome {
            Ok(epoch) => DrillOutcome::Verified(epoch),
            Err(DrillError::Nothing(nothing)) => DrillOutcome::Nothing(nothing),
            Err(DrillError::Store(error)) => return Err(error),
            Err(error @ DrillError::Failed(_)) => DrillOutcome::Failed { reason: with_causes(&error) },
        });
        wait(&mut exercises).await;
    }
}

/// Waits for another exercise: for ever once nobody has any.
async fn wait(exercises: &mut watch::Receiver<Option<Exercise>>) {
    if exercises.changed().await.is_err() {
        std::future::pending().await
    }
}
