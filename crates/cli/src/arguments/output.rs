//! How a result is to be shown.

use clap::ValueEnum;

/// Form of what a command lists or shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For reading
    #[default]
    Table,
    /// For reading, with everything that is known
    Wide,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}
