//! Histories as text: a failure prints one, and the environment variable [`REPLAY`] has it run again.
//!
//! `voters=3 confirmed=false seed=1 choice=7 Rest Remove(0) Rest`

use std::fmt;
use std::str::FromStr;

use proptest::prelude::*;

use crate::histories::{History, Step, history};

/// Environment variable with the history that is to be run.
pub(crate) const REPLAY: &str = "POLIS_HISTORY";

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { voters, two_confirmed, seed, choice, steps } = self;
        write!(formatter, "voters={voters} confirmed={two_confirmed} seed={seed} choice={choice}")?;
        steps.iter().try_for_each(|step| write!(formatter, " {step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As text first, which a column may be wider than.
        formatter.pad(&format!("{self:?}"))
    }
}

impl FromStr for History {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let mut value = |name: &str| {
            let word = words.next().unwrap_or_default();
            let value = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
            value.ok_or_else(|| format!("{word:?} is not {name}=..."))
        };
        Ok(Self {
            voters: number(value("voters")?)?,
            two_confirmed: number(value("confirmed")?)?,
            seed: number(value("seed")?)?,
            choice: number(value("choice")?)?,
            steps: words.map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, argument) = match text.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        Ok(match (name, argument) {
            ("Add", None) => Self::Add,
            ("Remove", Some(node)) => Self::Remove(number(node)?),
            ("Crash", Some(node)) => Self::Crash(number(node)?),
            ("CrashAll", None) => Self::CrashAll,
            ("Start", Some(node)) => Self::Start(number(node)?),
            ("Copy", Some(node)) => Self::Copy(number(node)?),
            ("PutBack", Some(node)) => Self::PutBack(number(node)?),
            ("Cut", Some(set)) => Self::Cut(number(set)?),
            ("Heal", None) => Self::Heal,
            ("Lead", None) => Self::Lead,
            ("Work", Some(node)) => Self::Work(number(node)?),
            ("Collect", Some(node)) => Self::Collect(number(node)?),
            ("Rest", None) => Self::Rest,
            _ => return Err(format!("{text:?} is no step")),
        })
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no value"))
}

proptest! {
    #[test]
    fn what_is_printed_is_the_same_history(history in history()) {
        prop_assert_eq!(history.to_string().parse::<History>(), Ok(history));
    }
}

#[test]
fn what_is_no_history_is_said() {
    for text in
        ["", "voters=3", "voters=x confirmed=false seed=1 choice=1", "voters=3 confirmed=false seed=1 choice=1 Fly(2)"]
    {
        assert!(text.parse::<History>().is_err(), "{text}");
    }
}
