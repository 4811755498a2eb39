//! The functions that filters may use: those of the language, and the few that its crate leaves to others.

use cel::common::types::{CelBool, CelString, STRING_TYPE};
use cel::common::value::CowVal;
use cel::{Env, ExecutionError};

use super::moment::Moment;

/// Largest regular expression once compiled, in bytes. It is compiled for each node.
const MAX_COMPILED_EXPRESSION: usize = 64 * 1024;

/// The language, and `duration`, `timestamp` and `matches`.
pub(super) fn environment() -> Env {
    let mut environment = Env::stdlib();
    let added = environment
        .add_overload("duration", "string_to_duration", vec![STRING_TYPE], duration)
        .and_then(|()| environment.add_overload("timestamp", "string_to_timestamp", vec![STRING_TYPE], timestamp))
        .and_then(|()| environment.add_overload("matches", "matches", vec![STRING_TYPE, STRING_TYPE], matches))
        .and_then(|()| {
            environment.add_member_overload("matches", "matches_string", STRING_TYPE, vec![STRING_TYPE], matches)
        });
    added.expect("the names of the functions are not taken");
    environment
}

fn duration<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let duration = Moment::parse_duration(text(&arguments, 0)?);
    duration.map(CowVal::owned).map_err(|error| ExecutionError::function_error("duration", error))
}

fn timestamp<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let timestamp = Moment::parse_timestamp(text(&arguments, 0)?);
    timestamp.map(CowVal::owned).map_err(|error| ExecutionError::function_error("timestamp", error))
}

fn matches<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let expression = regex::RegexBuilder::new(text(&arguments, 1)?).size_limit(MAX_COMPILED_EXPRESSION).build();
    let expression = expression.map_err(|error| ExecutionError::function_error("matches", error))?;
    Ok(CowVal::owned(CelBool::from(expression.is_match(text(&arguments, 0)?))))
}

fn text<'a>(arguments: &'a [CowVal<'_, '_>], number: usize) -> Result<&'a str, ExecutionError> {
    let argument = arguments.get(number).and_then(|argument| argument.downcast_ref::<CelString<'_>>());
    argument.map(CelString::inner).ok_or(ExecutionError::MissingArgumentOrTarget)
}
