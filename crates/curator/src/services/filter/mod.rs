//! The filter of GetNodes: an expression of the Common Expression Language over one node (metropolis.md, G.4).
//!
//! The variable `node` is the message that GetNodes sends, read as a protobuf message is read: a field that is not set has the
//! default value, and `has(node.status)` tells whether it is set. The names of the values of NodeState, Health and
//! NodeTPMUsage stand for their numbers, alone and qualified by their packages. There are `duration("5s")` and
//! `timestamp("2026-01-02T03:04:05Z")`, to compare with; `matches` takes regular expressions.
//!
//! Expressions come from the network. Reading one takes bounded time and stack ([`MAX_LENGTH`], [`MAX_OPERATORS`],
//! [`MAX_PARENTHESES`], [`MAX_DEPTH`]), and what one evaluation can cost is bounded before the first one ([`MAX_COST`]).

mod check;
mod cost;
mod functions;
mod message;
mod moment;

use std::sync::Arc;

use cel::common::types::CelBool;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, IdedExpr, Value};
use polis_proto::api;

use self::message::{Message, Part};
use super::text::shown;

/// Longest expression, in bytes: enough to name some eighty nodes by their ids.
pub(super) const MAX_LENGTH: usize = 4096;

/// Most characters and words of an expression that are or may be operators: the parser needs stack for each.
pub(super) const MAX_OPERATORS: usize = 256;

/// Deepest nesting of parentheses, brackets and conditions.
pub(super) const MAX_PARENTHESES: u16 = 24;

/// Deepest tree of an expression: evaluation goes down it by recursion, on the stack of whoever asks. Chains of `||` and `&&` are
/// no deep trees.
pub(super) const MAX_DEPTH: usize = 24;

/// Stack of the thread that reads an expression, in bytes. The parser needs up to 60 KiB for an operator when it is built without
/// optimization, and only what is used costs memory.
const PARSER_STACK: usize = 32 * 1024 * 1024;

/// Most steps that the evaluation for one node can take, at the worst: a few hundredths of a second.
pub(super) const MAX_COST: u64 = 300_000;

/// A filter that can be asked about nodes. Clones are cheap.
#[derive(Clone)]
pub(super) struct Filter {
    /// Absent when every node is to be shown.
    expression: Option<Arc<IdedExpr>>,
    environment: Arc<Env>,
}

/// Why a filter is not usable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FilterError {
    /// Too long to be read.
    #[error("the filter has {0} bytes, and at most {MAX_LENGTH} are allowed")]
    TooLong(usize),
    /// Too many operators to be read.
    #[error("the filter has more than {MAX_OPERATORS} operators")]
    TooManyOperators,
    /// Too deep to be evaluated.
    #[error("the filter is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// There is no thread to read it with.
    #[error("this node has no thread left to read the filter with: {0}")]
    NoThread(String),
    /// Not an expression.
    #[error("the filter is not an expression of the Common Expression Language: {0}")]
    Syntax(String),
    /// A name that means nothing.
    #[error("the filter names {name}, which is {problem}")]
    Name {
        /// The name.
        name: String,
        /// What it is instead of something known.
        problem: &'static str,
    },
    /// Evaluating it might take too long.
    #[error("the filter could take too long to evaluate; use fewer loops inside of loops")]
    TooCostly,
    /// It cannot be evaluated for a node.
    #[error("the filter fails for a node: {0}")]
    Evaluation(String),
    /// It is neither true nor false for a node.
    #[error("the filter must be true or false for each node, but it is of the type {0}")]
    NotBoolean(String),
}

impl Filter {
    /// Reads an expression. An empty one is true for every node.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as far as that can be told without a node.
    pub(super) fn new(text: &str) -> Result<Self, FilterError> {
        let environment = Arc::new(functions::environment());
        if text.is_empty() {
            return Ok(Self { expression: None, environment });
        }
        if text.len() > MAX_LENGTH {
            return Err(FilterError::TooLong(text.len()));
        }
        if cost::operators(text) > MAX_OPERATORS {
            return Err(FilterError::TooManyOperators);
        }
        let mut expression = parse(Arc::clone(&environment), text.to_owned())?;
        if cost::depth(&expression) > MAX_DEPTH {
            return Err(FilterError::TooDeep);
        }
        check::names_and_presence(&mut expression)?;
        if cost::of(&expression) > MAX_COST {
            return Err(FilterError::TooCostly);
        }
        Ok(Self { expression: Some(Arc::new(expression)), environment })
    }

    /// Whether every node is to be shown.
    pub(super) const fn is_empty(&self) -> bool {
        self.expression.is_none()
    }

    /// Whether the node is to be shown.
    ///
    /// # Errors
    ///
    /// When it cannot be told for this node.
    pub(super) fn admits(&self, node: &Arc<api::Node>) -> Result<bool, FilterError> {
        let Some(expression) = &self.expression else { return Ok(true) };
        let names = Names(Arc::clone(node));
        let mut context = Context::with_env(Arc::clone(&self.environment));
        context.set_variable_resolver(&names);
        let found = Value::resolve_val(expression, &context);
        let found = found.map_err(|error| FilterError::Evaluation(shown(&error.to_string())))?;
        match found.downcast_ref::<CelBool>() {
            Some(admitted) => Ok(*admitted.inner()),
            None => Err(FilterError::NotBoolean(found.get_type().name().to_owned())),
        }
    }
}

/// Reads an expression, on a thread with enough stack for the deepest one.
fn parse(environment: Arc<Env>, text: String) -> Result<IdedExpr, FilterError> {
    let thread = std::thread::Builder::new().name("filter".into()).stack_size(PARSER_STACK);
    let thread = thread.spawn(move || {
        // The parser gives up at the first mistake: what it would say about the rest helps nobody.
        let parser = environment.parser().max_recursion_depth(MAX_PARENTHESES).error_recovery_limit(1);
        parser.parse(&text).map_err(|errors| FilterError::Syntax(syntax(&errors)))
    });
    let thread = thread.map_err(|error| FilterError::NoThread(error.to_string()))?;
    thread.join().unwrap_or_else(|_| Err(FilterError::Syntax("it makes the parser fail".into())))
}

/// The first mistake, where it is and what was expected.
fn syntax(errors: &cel::ParseErrors) -> String {
    let first = errors.errors.first();
    first.map_or_else(
        || "it cannot be read".to_owned(),
        |error| format!("at line {}, column {}: {}", error.pos.0, error.pos.1, shown(&error.msg)),
    )
}

/// What names stand for while a node is looked at.
struct Names(Arc<api::Node>);

impl VariableResolver for Names {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        if name == check::NODE {
            return Some(CowVal::owned(Message::new(Arc::clone(&self.0), Part::Node)));
        }
        check::constant(name).map(|number| CowVal::owned(cel::common::types::CelInt::from(i64::from(number))))
    }
}

#[cfg(test)]
mod tests;
