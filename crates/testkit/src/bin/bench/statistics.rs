//! What several measurements of the same thing say, and how sure that is. Pure.

/// Share of the chance that an interval covers, to 1.
const CONFIDENCE: f64 = 0.95;

/// How often the values are drawn anew. With more, the ends of an interval move by less than the table shows.
const RESAMPLES: usize = 2_000;

/// Where each series of draws begins: the same measurements always give the same table.
const SEED: u64 = 0x706f_6c69_7300_0001;

/// The range in which a value lies, as far as the measurements tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// Of the median of these values.
    pub(crate) fn of_median(values: &[f64]) -> Self {
        let mut draws = Draws(SEED);
        Self::of(|| median(&draws.resample(values)))
    }

    /// Of the ratio of two medians.
    pub(crate) fn of_ratio(values: &[f64], beside: &[f64]) -> Self {
        let mut draws = Draws(SEED);
        Self::of(|| median(&draws.resample(values)) / median(&draws.resample(beside)))
    }

    /// By the percentiles of what comes out of values that are drawn anew.
    fn of(mut draw: impl FnMut() -> f64) -> Self {
        let mut drawn: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
        drawn.sort_by(f64::total_cmp);
        let outside = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
        Self { low: drawn[outside], high: drawn[RESAMPLES - 1 - outside] }
    }
}

/// The value in the middle, of an even number the mean of the two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Numbers by chance (SplitMix64): good enough to draw values, and the same in each run.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// As many values as there are, each drawn from all.
    fn resample(&mut self, values: &[f64]) -> Vec<f64> {
        let count = values.len() as u64;
        values.iter().map(|_| values[(self.next() % count) as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        for (values, expected) in [(&[3.0][..], 3.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 2.0, 9.0], 3.0)] {
            assert_eq!(median(values), expected);
        }
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn an_interval_is_around_the_median_and_narrower_with_more_values() {
        let spread = |count: u32| -> Vec<f64> { (0..count).map(|number| f64::from(number % 10)).collect() };
        let (few, many) = (Interval::of_median(&spread(10)), Interval::of_median(&spread(1_000)));
        for (interval, values) in [(few, spread(10)), (many, spread(1_000))] {
            let middle = median(&values);
            assert!(interval.low <= middle && middle <= interval.high, "{interval:?}");
        }
        assert!(few.low >= 0.0 && few.high <= 9.0, "{few:?}");
        assert!(few.low < few.high && many.high - many.low < few.high - few.low, "{few:?} {many:?}");
    }

    #[test]
    fn one_value_is_its_own_interval() {
        assert_eq!(Interval::of_median(&[7.5]), Interval { low: 7.5, high: 7.5 });
        assert_eq!(Interval::of_ratio(&[6.0], &[3.0]), Interval { low: 2.0, high: 2.0 });
    }

    #[test]
    fn an_outlier_moves_an_interval_little() {
        let mut values = vec![10.0; 20];
        values[0] = 1e6;
        assert_eq!(Interval::of_median(&values), Interval { low: 10.0, high: 10.0 });
        assert_eq!(Interval::of_ratio(&values, &[5.0; 20]), Interval { low: 2.0, high: 2.0 });
    }

    #[test]
    fn an_interval_covers_what_it_should() {
        // Samples of 20 from values that are spread evenly over 0..1000: nearly all intervals hold the true median.
        let mut draws = Draws(SEED);
        let trials = 200;
        let covered = (0..trials).filter(|_| {
            let values: Vec<f64> = (0..20).map(|_| (draws.next() % 1_000) as f64).collect();
            let interval = Interval::of_median(&values);
            interval.low <= 499.5 && 499.5 <= interval.high
        });
        let covered = covered.count();
        assert!((trials * 88 / 100..=trials).contains(&covered), "{covered} of {trials}");
    }
}
