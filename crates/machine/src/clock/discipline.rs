//! What the answers of servers of time mean for the clock. Decides, and does nothing.

/// How far the answers of two servers may differ, beside what their round trips explain: a server that is off by more is wrong.
const AGREE_MICROSECONDS: i64 = 250_000;

/// Closer than this the clock is left alone: the network is no more exact.
const CLOSE_MICROSECONDS: i64 = 1_000;

/// From here on the clock is set at once; below, it is slewed, so that no interval that somebody measures with it is wrong. At most
/// what the kernel slews.
const STEP_MICROSECONDS: i64 = polis_sys::hardware::MAX_SLEW_MICROSECONDS;

/// What one server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// How much the clock is behind.
    pub(crate) offset_microseconds: i64,
    /// How long the question and its answer took on the way; half of it is the largest error.
    pub(crate) delay_microseconds: i64,
}

/// What is to be done to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// Nothing: it is as right as can be told, by this much.
    Leave(i64),
    /// It is to make this up gradually.
    Slew(i64),
    /// It is to be set, by this much.
    Step(i64),
}

impl Adjustment {
    /// How much the clock is behind.
    pub(crate) const fn microseconds(self) -> i64 {
        match self {
            Self::Leave(microseconds) | Self::Slew(microseconds) | Self::Step(microseconds) => microseconds,
        }
    }
}

/// What the answers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There are none.
    NoAnswer,
    /// No majority of them agrees.
    Disagree,
    /// The clock is off by this.
    Adjust {
        /// What is to be done.
        adjustment: Adjustment,
        /// How far the clock may still be off afterwards.
        error_microseconds: i64,
    },
}

/// Judges the answers of one round. `first` when the clock has not been right since the start: then it is set whatever it is off
/// by, as nothing measures with it yet.
pub(crate) fn judge(samples: &[Sample], first: bool) -> Verdict {
    if samples.is_empty() {
        return Verdict::NoAnswer;
    }
    let agree = |one: &Sample, other: &Sample| {
        let explained = one.delay_microseconds.saturating_add(other.delay_microseconds) / 2;
        let apart = one.offset_microseconds.abs_diff(other.offset_microseconds);
        apart <= AGREE_MICROSECONDS.saturating_add(explained).unsigned_abs()
    };
    let has_majority = |one: &&Sample| samples.iter().filter(|other| agree(one, other)).count() * 2 > samples.len();
    // The quickest answer is the most exact one.
    let best = samples.iter().filter(has_majority).min_by_key(|sample| sample.delay_microseconds);
    let Some(best) = best else { return Verdict::Disagree };
    let offset = best.offset_microseconds;
    let adjustment = if offset.abs() < CLOSE_MICROSECONDS {
        Adjustment::Leave(offset)
    } else if first || offset.abs() >= STEP_MICROSECONDS {
        Adjustment::Step(offset)
    } else {
        Adjustment::Slew(offset)
    };
    Verdict::Adjust { adjustment, error_microseconds: best.delay_microseconds / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn verdict(offsets_and_delays: &[(i64, i64)], first: bool) -> Verdict {
        let samples: Vec<_> = offsets_and_delays
            .iter()
            .map(|&(offset_microseconds, delay_microseconds)| Sample { offset_microseconds, delay_microseconds })
            .collect();
        judge(&samples, first)
    }

    #[test]
    fn a_majority_that_agrees_is_believed() {
        let adjust = |adjustment, error_microseconds| Verdict::Adjust { adjustment, error_microseconds };
        for (samples, first, expected) in [
            (&[][..], true, Verdict::NoAnswer),
            (&[(90 * SECOND, 2000)], true, adjust(Adjustment::Step(90 * SECOND), 1000)),
            (&[(90 * SECOND, 2000)], false, adjust(Adjustment::Step(90 * SECOND), 1000)),
            (&[(-20_000, 2000)], true, adjust(Adjustment::Step(-20_000), 1000)),
            (&[(-20_000, 2000)], false, adjust(Adjustment::Slew(-20_000), 1000)),
            (&[(500, 2000)], true, adjust(Adjustment::Leave(500), 1000)),
            // Two that differ: nobody knows which is right.
            (&[(0, 2000), (10 * SECOND, 2000)], true, Verdict::Disagree),
            // One liar of three, wherever it stands.
            (&[(0, 2000), (10 * SECOND, 10), (100, 3000)], false, adjust(Adjustment::Leave(0), 1000)),
            (&[(-10 * SECOND, 10), (0, 2000), (100, 3000)], false, adjust(Adjustment::Leave(0), 1000)),
            // The quickest of those that agree.
            (&[(30_000, 90_000), (20_000, 4000)], false, adjust(Adjustment::Slew(20_000), 2000)),
            // A slow answer may be as wrong as it is slow.
            (&[(0, 1000), (SECOND, 2 * SECOND)], false, adjust(Adjustment::Leave(0), 500)),
        ] {
            assert_eq!(verdict(samples, first), expected, "{samples:?} first {first}");
        }
    }

    #[test]
    fn what_is_slewed_is_what_the_kernel_slews() {
        for offset in [-SECOND, -499_999, -1000, 1000, 499_999, 500_000, i64::MAX / 4, i64::MIN / 4] {
            if let Verdict::Adjust { adjustment: Adjustment::Slew(slewed), .. } = verdict(&[(offset, 0)], false) {
                assert!(slewed.abs() <= polis_sys::hardware::MAX_SLEW_MICROSECONDS, "{offset}");
            }
        }
    }
}
