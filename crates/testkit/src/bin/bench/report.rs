//! The figures, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::json;

use crate::place::Place;

/// Everything that was measured.
pub(crate) struct Report {
    file_system: String,
    runs: u32,
    processors: usize,
    figures: Vec<Figure>,
}

/// Something that was measured.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// One value for each run.
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
    Count,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
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
        match self {
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Mebibytes => format!("{value:.1} MiB"),
            Self::Count => format!("{value:.0}"),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "milliseconds",
            Self::Mebibytes => "mebibytes",
            Self::Count => "count",
        }
    }
}

/// Headings of the table.
const HEADINGS: [&str; 8] = ["FIGURE", "POLIS", "BESIDE", "", "RATIO", "TARGET", "", "OTHERS"];

impl Report {
    pub(crate) fn new(place: &Place, runs: u32) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { file_system: place.file_system.clone(), runs, processors, figures: Vec::new() }
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
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
            "Median of {}. File system: {}, fsync on. Processors: {}. OTHERS: share of all processors that went elsewhere \
             meanwhile; with more than a few percent the figures say little.\n\n",
            self.runs, self.file_system, self.processors
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
        })
    }
}

impl Figure {
    fn rows(&self) -> Vec<[String; HEADINGS.len()]> {
        let own = median(&self.values);
        let verdict = |target: Option<Target>, value| {
            target.map_or("", |target| if target.is_met(value) { "ok" } else { "MISSED" })
        };
        let text = |target: Option<Target>| target.map_or_else(String::new, Target::text);
        let row = |beside: [String; 3], target: Option<Target>, value: f64| {
            let [label, value_beside, ratio] = beside;
            let [name, own] = [self.name.clone(), self.unit.text(own)];
            let others = format!("{:.0} %", self.others * 100.0);
            [name, own, label, value_beside, ratio, text(target), verdict(target, value).to_owned(), others]
        };
        let mut rows = Vec::new();
        if self.target.is_some() || self.beside.is_empty() {
            rows.push(row(Default::default(), self.target, own));
        }
        for beside in &self.beside {
            let value = median(&beside.values);
            let ratio = own / value;
            let cells = [beside.label.to_owned(), self.unit.text(value), format!("{ratio:.3}")];
            rows.push(row(cells, beside.target, ratio));
        }
        // What a row has in common with the one above is not said again.
        for row in rows.iter_mut().skip(1) {
            row[0].clear();
            row[1].clear();
            row[HEADINGS.len() - 1].clear();
        }
        rows
    }

    fn json(&self) -> serde_json::Value {
        let own = median(&self.values);
        let beside = self.beside.iter().map(|beside| {
            let ratio = own / median(&beside.values);
            json!({
                "name": beside.label,
                "median": median(&beside.values),
                "values": beside.values,
                "ratio": ratio,
                "target": beside.target.map(Target::text),
                "met": beside.target.map(|target| target.is_met(ratio)),
            })
        });
        json!({
            "name": self.name,
            "unit": self.unit.name(),
            "median": own,
            "values": self.values,
            "target": self.target.map(Target::text),
            "met": self.target.map(|target| target.is_met(own)),
            "beside": beside.collect::<Vec<_>>(),
            "others": self.others,
        })
    }
}

/// The value in the middle, of an even number the mean of the two.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
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
    }

    #[test]
    fn a_figure_is_judged_by_itself_or_by_its_ratio() {
        let beside = |label, value, limit| Beside { label, values: vec![value], target: Some(Target::AtMost(limit)) };
        let figure = |values: &[f64], target, beside| Figure {
            name: "figure".into(),
            unit: Unit::Count,
            values: values.to_vec(),
            target,
            beside,
            others: 0.071,
        };
        let rows = figure(&[1.0, 3.0], None, vec![beside("a", 4.0, 0.5), beside("b", 2.0, 0.5)]).rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ["figure", "2", "a", "4", "0.500", "<= 0.5", "ok", "7 %"]);
        assert_eq!(rows[1], ["", "", "b", "2", "1.000", "<= 0.5", "MISSED", ""]);
        for (target, verdict) in [
            (Target::AtMost(2.0), "ok"),
            (Target::Below(2.0), "MISSED"),
            (Target::AtLeast(2.0), "ok"),
            (Target::AtLeast(2.1), "MISSED"),
        ] {
            assert_eq!(figure(&[2.0], Some(target), Vec::new()).rows()[0][6], verdict, "{target:?}");
        }
    }
}
