//! The figures, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::json;

use crate::BenchError;
use crate::place::Place;
use crate::statistics::{Interval, median};

/// Everything that was measured.
pub(crate) struct Report {
    file_system: String,
    runs: u32,
    processors: usize,
    figures: Vec<Figure>,
    /// What could not be measured: which part, and why.
    failures: Vec<(&'static str, String)>,
}

/// Something that was measured.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// One value for each time that it was measured.
    pub(crate) values: Vec<f64>,
    /// What the median itself must be.
    pub(crate) target: Option<Target>,
    /// The same of others.
    pub(crate) beside: Vec<Beside>,
    /// Share of all processors that everything else took meanwhile, 0 to 1.
    pub(crate) others: f64,
}

/// A value of somebody else that stands beside ours.
pub(crate) struct Beside {
    pub(crate) label: &'static str,
    pub(crate) values: Vec<f64>,
    /// What the ratio of the medians must be.
    pub(crate) target: Option<Target>,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Milliseconds,
    Mebibytes,
    Kibibytes,
    /// Processor time by time.
    Cores,
    Count,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

/// How a figure stands to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    /// The median misses it, but not the whole interval: more measurements would tell.
    Close,
    Missed,
}

impl Verdict {
    const fn text(self) -> &'static str {
        match self {
            Self::Met => "ok",
            Self::Close => "close",
            Self::Missed => "MISSED",
        }
    }
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// A target is missed when no value of the interval meets it.
    fn judge(self, value: f64, interval: Interval) -> Verdict {
        let best = match self {
            Self::AtMost(_) | Self::Below(_) => interval.low,
            Self::AtLeast(_) => interval.high,
        };
        match (self.is_met(value), self.is_met(best)) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::Close,
            (false, false) => Verdict::Missed,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::Below(limit) => format!("< {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        format!("{}{}", self.number(value), self.symbol())
    }

    fn number(self, value: f64) -> String {
        match self {
            Self::Milliseconds | Self::Mebibytes | Self::Kibibytes => format!("{value:.1}"),
            Self::Cores => format!("{value:.3}"),
            Self::Count => format!("{value:.0}"),
        }
    }

    const fn symbol(self) -> &'static str {
        match self {
            Self::Milliseconds => " ms",
            Self::Mebibytes => " MiB",
            Self::Kibibytes => " KiB",
            Self::Cores => " core",
            Self::Count => "",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "milliseconds",
            Self::Mebibytes => "mebibytes",
            Self::Kibibytes => "kibibytes",
            Self::Cores => "cores",
            Self::Count => "count",
        }
    }
}

/// Headings of the table.
const HEADINGS: [&str; 10] = ["FIGURE", "POLIS", "BESIDE", "", "RATIO", "95 %", "TARGET", "", "N", "OTHERS"];

impl Report {
    pub(crate) fn new(place: &Place, runs: u32) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { file_system: place.file_system.clone(), runs, processors, figures: Vec::new(), failures: Vec::new() }
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Says that a part could not be measured.
    pub(crate) fn fail(&mut self, part: &'static str, error: &BenchError) {
        self.failures.push((part, error.to_string()));
    }

    /// What is to be said beside the table: targets that were missed, and what could not be measured. Empty when all is well.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let missed = self.figures.iter().flat_map(Figure::missed).map(|missed| format!("missed: {missed}"));
        let failed = self.failures.iter().map(|(part, error)| format!("not measured: {part}: {error}"));
        missed.chain(failed).collect()
    }

    /// Whether all that was asked for could be measured.
    pub(crate) fn is_whole(&self) -> bool {
        self.failures.is_empty()
    }

    /// The table, for reading.
    pub(crate) fn table(&self) -> String {
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        for figure in &self.figures {
            rows.extend(figure.rows());
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; HEADINGS.len()] = std::array::from_fn(width);
        let mut text = format!(
            "Medians of N values. 95 %: where the median, or the ratio of the medians, lies; a target is missed when all of that \
             misses it. File system: {}, fsync on. Processors: {}. OTHERS: share of all processors that went elsewhere \
             meanwhile; with more than a few percent the figures say little.\n\n",
            self.file_system, self.processors
        );
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                // A string takes whatever is written.
                let _ = write!(line, "{cell:width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// Everything, for programs: also the single values.
    pub(crate) fn json(&self) -> serde_json::Value {
        json!({
            "file_system": self.file_system,
            "runs": self.runs,
            "processors": self.processors,
            "figures": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "failures": self.failures.iter().map(|(part, error)| json!({ "part": part, "error": error })).collect::<Vec<_>>(),
        })
    }
}

/// What is compared with a target.
struct Judged {
    value: f64,
    interval: Interval,
    target: Option<Target>,
}

impl Judged {
    fn verdict(&self) -> Option<Verdict> {
        self.target.map(|target| target.judge(self.value, self.interval))
    }

    fn target_text(&self) -> String {
        self.target.map_or_else(String::new, Target::text)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "value": self.value,
            "interval": [self.interval.low, self.interval.high],
            "target": self.target.map(Target::text),
            "verdict": self.verdict().map(Verdict::text),
            "met": self.verdict().map(|verdict| verdict != Verdict::Missed),
        })
    }
}

impl Figure {
    /// The median.
    fn own(&self) -> Judged {
        Judged { value: median(&self.values), interval: Interval::of_median(&self.values), target: self.target }
    }

    /// The ratio to the median of somebody else.
    fn ratio(&self, beside: &Beside) -> Judged {
        Judged {
            value: median(&self.values) / median(&beside.values),
            interval: Interval::of_ratio(&self.values, &beside.values),
            target: beside.target,
        }
    }

    /// Targets that are missed, in words.
    fn missed(&self) -> Vec<String> {
        let is_missed = |judged: &Judged| judged.verdict() == Some(Verdict::Missed);
        let own = Some(self.own())
            .filter(is_missed)
            .map(|own| format!("{}: {}, target {}", self.name, self.unit.text(own.value), own.target_text()));
        let beside = self.beside.iter().filter_map(|beside| {
            let ratio = Some(self.ratio(beside)).filter(is_missed)?;
            Some(format!("{}: {:.3} of {}, target {}", self.name, ratio.value, beside.label, ratio.target_text()))
        });
        own.into_iter().chain(beside).collect()
    }

    fn rows(&self) -> Vec<[String; HEADINGS.len()]> {
        let row = |beside: [String; 3], judged: &Judged, number: &dyn Fn(f64) -> String| {
            let [label, value_beside, ratio] = beside;
            let [name, own] = [self.name.clone(), self.unit.text(median(&self.values))];
            let range = format!("{}-{}", number(judged.interval.low), number(judged.interval.high));
            let verdict = judged.verdict().map_or("", Verdict::text).to_owned();
            let (count, others) = (self.values.len().to_string(), format!("{:.0} %", self.others * 100.0));
            [name, own, label, value_beside, ratio, range, judged.target_text(), verdict, count, others]
        };
        let mut rows = Vec::new();
        if self.target.is_some() || self.beside.is_empty() {
            rows.push(row(Default::default(), &self.own(), &|value| self.unit.number(value)));
        }
        for beside in &self.beside {
            let ratio = self.ratio(beside);
            let value = self.unit.text(median(&beside.values));
            // Nothing beside nothing has no ratio.
            let number = |value: f64| if value.is_finite() { format!("{value:.3}") } else { "?".to_owned() };
            let cells = [beside.label.to_owned(), value, number(ratio.value)];
            rows.push(row(cells, &ratio, &number));
        }
        // What a row has in common with the one above is not said again.
        for row in rows.iter_mut().skip(1) {
            for column in [0, 1, HEADINGS.len() - 2, HEADINGS.len() - 1] {
                row[column].clear();
            }
        }
        rows
    }

    fn json(&self) -> serde_json::Value {
        let beside = self.beside.iter().map(|beside| {
            json!({
                "name": beside.label,
                "median": median(&beside.values),
                "values": beside.values,
                "ratio": self.ratio(beside).json(),
            })
        });
        json!({
            "name": self.name,
            "unit": self.unit.name(),
            "median": self.own().json(),
            "values": self.values,
            "beside": beside.collect::<Vec<_>>(),
            "others": self.others,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(values: &[f64], target: Option<Target>, beside: Vec<Beside>) -> Figure {
        Figure { name: "figure".into(), unit: Unit::Count, values: values.to_vec(), target, beside, others: 0.071 }
    }

    #[test]
    fn a_figure_is_judged_by_itself_or_by_its_ratio() {
        let beside = |label, value, limit| Beside { label, values: vec![value], target: Some(Target::AtMost(limit)) };
        let judged = figure(&[2.0], None, vec![beside("a", 4.0, 0.5), beside("b", 2.0, 0.5)]);
        let rows = judged.rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ["figure", "2", "a", "4", "0.500", "0.500-0.500", "<= 0.5", "ok", "1", "7 %"]);
        assert_eq!(rows[1], ["", "", "b", "2", "1.000", "1.000-1.000", "<= 0.5", "MISSED", "", ""]);
        assert_eq!(judged.missed(), ["figure: 1.000 of b, target <= 0.5"]);
        for (target, verdict) in [
            (Target::AtMost(2.0), "ok"),
            (Target::Below(2.0), "MISSED"),
            (Target::AtLeast(2.0), "ok"),
            (Target::AtLeast(2.1), "MISSED"),
        ] {
            assert_eq!(figure(&[2.0], Some(target), Vec::new()).rows()[0][7], verdict, "{target:?}");
        }
    }

    #[test]
    fn a_target_is_missed_when_the_whole_interval_misses_it() {
        let interval = Interval { low: 1.0, high: 3.0 };
        for (target, verdict) in [
            (Target::AtMost(2.0), Verdict::Met),
            (Target::AtMost(1.9), Verdict::Close),
            (Target::AtMost(1.0), Verdict::Close),
            (Target::Below(1.0), Verdict::Missed),
            (Target::AtMost(0.9), Verdict::Missed),
            (Target::AtLeast(2.0), Verdict::Met),
            (Target::AtLeast(3.0), Verdict::Close),
            (Target::AtLeast(3.1), Verdict::Missed),
        ] {
            assert_eq!(target.judge(2.0, interval), verdict, "{target:?}");
        }
        assert!(figure(&[1.0, 5.0, 9.0], Some(Target::AtMost(4.0)), Vec::new()).missed().is_empty());
    }
}
