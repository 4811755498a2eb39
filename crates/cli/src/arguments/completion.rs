//! `polis completion` and `polis man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        source <(polis completion bash)\n  \
        polis completion zsh > ~/.zfunc/_polis\n  \
        polis completion fish > ~/.config/fish/completions/polis.fish"
)]
pub(crate) struct CompletionArguments {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  polis man --dir ~/.local/share/man/man1")]
pub(crate) struct ManualArguments {
    /// Write the pages of all commands into this directory; without it the first page goes to the standard output
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
