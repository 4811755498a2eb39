//! Named values below each other: the form in which one thing is shown.

use std::fmt::Write as _;

use super::paint::Paint;

/// Fields of one thing, one per line, values aligned.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(&'static str, String)>);

impl Fields {
    /// Adds a field; a value of several lines is aligned as a block.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<String>) {
        self.0.push((name, value.into()));
    }

    /// Adds a field if there is a value.
    pub(crate) fn add_some(&mut self, name: &'static str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    pub(crate) fn render(&self, paint: Paint) -> String {
        let column = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in &self.0 {
            let value = value.replace('\n', &format!("\n{:column$}  ", ""));
            let _ = writeln!(text, "{}{:padding$}  {value}", paint.dim(name), "", padding = column - name.len());
        }
        text
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_below_each_other() {
        let mut fields = Fields::default();
        fields.add("State", "Running");
        fields.add("Consensus", "one\ntwo");
        fields.add_some("Reason", None::<String>);
        assert_eq!(fields.render(Paint::plain()), "State      Running\nConsensus  one\n           two\n");
    }
}
