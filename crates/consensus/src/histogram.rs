//! Histograms in the text form of Prometheus, as etcd tells them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// Durations that were counted in buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// How many were at most as long as each bound, in seconds; ordered by the bound.
    buckets: Vec<(f64, u64)>,
    /// Their sum, in seconds.
    sum: f64,
    count: u64,
}

impl Histogram {
    /// The histograms with this name, by the value of their label `To`, which is empty for one without.
    pub(crate) fn parse(metrics: &str, name: &str) -> BTreeMap<String, Self> {
        let mut found: BTreeMap<String, Self> = BTreeMap::new();
        for line in metrics.lines().filter_map(|line| line.strip_prefix(name)) {
            let Some((head, value)) = line.rsplit_once(' ') else { continue };
            let (kind, labels) = head.split_once('{').unwrap_or((head, ""));
            let label = |name: &str| {
                let labels = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
                labels.filter(|(label, _)| *label == name).map(|(_, value)| value.trim_matches('"').to_owned()).next()
            };
            let Ok(value) = value.parse::<f64>() else { continue };
            let histogram = found.entry(label("To").unwrap_or_default()).or_default();
            match kind {
                "_bucket" => {
                    let bound =
                        label("le").map(|bound| bound.replace("+Inf", "inf")).and_then(|bound| bound.parse().ok());
                    histogram.buckets.extend(bound.map(|bound: f64| (bound, value as u64)));
                }
                "_sum" => histogram.sum = value,
                "_count" => histogram.count = value as u64,
                _ => {}
            }
        }
        found
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let known = |index: usize| earlier.buckets.get(index).map_or(0, |(_, count)| *count);
        let buckets = self.buckets.iter().enumerate();
        Self {
            buckets: buckets.map(|(index, (bound, count))| (*bound, count.saturating_sub(known(index)))).collect(),
            sum: (self.sum - earlier.sum).max(0.0),
            count: self.count.saturating_sub(earlier.count),
        }
    }

    /// Their mean, if there are any.
    pub(crate) fn mean(&self) -> Option<Duration> {
        if self.count == 0 { None } else { Duration::try_from_secs_f64(self.sum / self.count as f64).ok() }
    }

    /// A duration that this share of them does not exceed: the bound of a bucket, at most twice the true one.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        if self.count == 0 {
            return None;
        }
        let enough = self.count as f64 * share;
        let bound = self.buckets.iter().find(|(_, count)| *count as f64 >= enough)?.0;
        // What is above the last bound is longer than any pace can be.
        Some(Duration::try_from_secs_f64(bound).unwrap_or(Duration::MAX / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# HELP x_seconds Something.
# TYPE x_seconds histogram
x_seconds_bucket{le="0.001"} 90
x_seconds_bucket{le="0.002"} 98
x_seconds_bucket{le="0.064"} 100
x_seconds_bucket{le="+Inf"} 100
x_seconds_sum 0.5
x_seconds_count 100
y_seconds_bucket{To="a",le="0.1"} 2
y_seconds_bucket{To="a",le="+Inf"} 2
y_seconds_sum{To="a"} 0.1
y_seconds_count{To="a"} 2
y_seconds_bucket{To="b",le="0.1"} 0
y_seconds_sum{To="b"} 0
y_seconds_count{To="b"} 0
"#;

    #[test]
    fn means_and_quantiles_follow_from_the_text() {
        let ms = Duration::from_millis;
        let x = Histogram::parse(METRICS, "x_seconds").remove("").unwrap();
        assert_eq!(x.mean(), Some(ms(5)));
        for (share, expected) in [(0.5, ms(1)), (0.9, ms(1)), (0.95, ms(2)), (0.99, ms(64)), (1.0, ms(64))] {
            assert_eq!(x.quantile(share), Some(expected), "{share}");
        }
        let y = Histogram::parse(METRICS, "y_seconds");
        assert_eq!(y["a"].mean(), Some(ms(50)));
        assert_eq!((y["b"].mean(), y["b"].quantile(0.5)), (None, None));
        assert_eq!(Histogram::parse(METRICS, "z_seconds"), BTreeMap::new());
    }

    #[test]
    fn only_what_is_new_counts() {
        let earlier = Histogram { buckets: vec![(0.001, 5), (f64::INFINITY, 6)], sum: 0.1, count: 6 };
        let later = Histogram { buckets: vec![(0.001, 5), (f64::INFINITY, 8)], sum: 0.5, count: 8 };
        let new = later.since(&earlier);
        assert_eq!(new.mean(), Some(Duration::from_millis(200)));
        assert!(new.quantile(0.99).unwrap() > Duration::from_secs(1_000_000));
        assert_eq!(later.since(&later).mean(), None);
    }
}
