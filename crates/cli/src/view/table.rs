//! A table of aligned columns without lines around them, as `kubectl` and `ps` show theirs: it can be read, and cut by
//! `awk`.

use std::fmt::Write as _;

use super::paint::{Paint, width};

/// Spaces between two columns.
const GAP: usize = 2;

/// Rows of cells under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: impl Into<Vec<&'static str>>) -> Self {
        Self { heading: heading.into(), rows: Vec::new() }
    }

    /// Adds a row; an empty cell is shown as `-`, so that every row has as many words as the heading.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).collect());
    }

    pub(crate) fn render(&self, paint: Paint) -> String {
        let heading: Vec<String> = self.heading.iter().map(|title| paint.dim(title)).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.heading.len())
            .map(|column| lines.iter().filter_map(|line| line.get(column)).map(|cell| width(cell)).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in lines {
            let mut padding = 0;
            for (cell, column) in line.iter().zip(&widths) {
                let _ = write!(text, "{:padding$}{cell}", "");
                padding = column - width(cell) + GAP;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let mut table = Table::new(["NODE", "STATE", "ROLES"]);
        table.row(["1".into(), "Running".into(), "ConsensusMember".into()]);
        table.row(["22".into(), "New".into(), String::new()]);
        assert_eq!(
            table.render(Paint::plain()),
            "NODE  STATE    ROLES\n\
             1     Running  ConsensusMember\n\
             22    New      -\n"
        );
    }
}
