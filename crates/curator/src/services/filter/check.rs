//! What is checked in an expression before it meets a node: that its names mean something. And the one thing that is changed
//! in it: `has` on a field of a message asks whether the field is set.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};
use polis_proto::api;
use polis_proto::common::{NodeState, NodeTpmUsage};

use super::FilterError;
use super::message::{Field, PRESENCE, Part, field};
use crate::services::text::shown;

/// The variable.
pub(super) const NODE: &str = "node";

/// Names of types that the language has for values that occur here, as in `type(node.id) == string`.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// The number that a name of an enumeration stands for, alone or qualified.
pub(super) fn constant(name: &str) -> Option<i32> {
    let of = |package: &str| match name.rsplit_once('.') {
        None => Some(name),
        Some((prefix, last)) if prefix.trim_start_matches('.') == package => Some(last),
        Some(_) => None,
    };
    let state = of("metropolis.proto.common.NodeState").and_then(NodeState::from_str_name).map(i32::from);
    let health = || of("metropolis.proto.api.Node.Health").and_then(api::node::Health::from_str_name).map(i32::from);
    let usage = || of("metropolis.proto.common.NodeTPMUsage").and_then(NodeTpmUsage::from_str_name).map(i32::from);
    state.or_else(health).or_else(usage)
}

/// What is known of a value without looking at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Message(Part),
    /// A list of such messages.
    Messages(Part),
    Nothing,
}

/// The variables of the loops around an expression, and what is known of them.
type Variables = Vec<(String, Known)>;

/// Checks every name, and rewrites what `has` asks of messages.
pub(super) fn names_and_presence(expression: &mut IdedExpr) -> Result<(), FilterError> {
    visit(expression, &mut Variables::new()).map(|_| ())
}

fn visit(expression: &mut IdedExpr, variables: &mut Variables) -> Result<Known, FilterError> {
    // A qualified name is written like fields of a message.
    if qualified(&expression.expr).is_some_and(|name| name.contains('.') && constant(&name).is_some()) {
        return Ok(Known::Nothing);
    }
    match &mut expression.expr {
        Expr::Ident(name) => known(name, variables),
        Expr::Select(select) => match visit(&mut select.operand, variables)? {
            Known::Message(part) => {
                let known = known_field(part, &select.field)?;
                if select.test {
                    select.field.insert(0, PRESENCE);
                }
                Ok(known)
            }
            Known::Messages(_) => Err(unknown(&select.field, "no field of a list")),
            Known::Nothing => Ok(Known::Nothing),
        },
        Expr::Call(call) => {
            for part in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
                visit(part, variables)?;
            }
            Ok(Known::Nothing)
        }
        Expr::List(list) => {
            list.elements.iter_mut().try_for_each(|element| visit(element, variables).map(|_| ()))?;
            Ok(Known::Nothing)
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                visit_entry(&mut entry.expr, variables)?;
            }
            Ok(Known::Nothing)
        }
        Expr::Struct(message) => Err(unknown(&message.type_name, "no type of which a filter can make values")),
        Expr::Comprehension(comprehension) => {
            let element = match visit(&mut comprehension.iter_range, variables)? {
                Known::Messages(part) => Known::Message(part),
                Known::Message(_) | Known::Nothing => Known::Nothing,
            };
            visit(&mut comprehension.accu_init, variables)?;
            let outside = variables.len();
            variables.push((comprehension.accu_var.clone(), Known::Nothing));
            variables.push((comprehension.iter_var.clone(), element));
            variables.extend(comprehension.iter_var2.clone().map(|name| (name, Known::Nothing)));
            visit(&mut comprehension.loop_cond, variables)?;
            visit(&mut comprehension.loop_step, variables)?;
            visit(&mut comprehension.result, variables)?;
            variables.truncate(outside);
            Ok(Known::Nothing)
        }
        Expr::Literal(_) => Ok(Known::Nothing),
        Expr::Unspecified => Err(FilterError::Syntax("a part of it is empty".into())),
    }
}

fn visit_entry(entry: &mut EntryExpr, variables: &mut Variables) -> Result<(), FilterError> {
    match entry {
        EntryExpr::MapEntry(entry) => {
            visit(&mut entry.key, variables)?;
            visit(&mut entry.value, variables)?;
        }
        EntryExpr::StructField(field) => {
            visit(&mut field.value, variables)?;
        }
    }
    Ok(())
}

/// What a name stands for.
fn known(name: &str, variables: &Variables) -> Result<Known, FilterError> {
    // The innermost variable of a name counts.
    if let Some((_, known)) = variables.iter().rev().find(|(variable, _)| variable == name) {
        return Ok(*known);
    }
    if name == NODE {
        return Ok(Known::Message(Part::Node));
    }
    if constant(name).is_some() || TYPES.contains(&name) {
        return Ok(Known::Nothing);
    }
    Err(unknown(
        name,
        "unknown; there are the variable `node` and the names of NodeState, Node.Health and NodeTPMUsage",
    ))
}

fn known_field(part: Part, name: &str) -> Result<Known, FilterError> {
    // What fields there are is the same for every node.
    match field(&api::Node::default(), part, name) {
        None => Err(unknown(name, "no field of this message")),
        Some(Field::Message(part, _)) => Ok(Known::Message(part)),
        Some(Field::Messages(part, _)) => Ok(Known::Messages(part(0))),
        Some(Field::Text(_) | Field::Bytes(_) | Field::Number(_) | Field::Count(_) | Field::Moment(..)) => {
            Ok(Known::Nothing)
        }
    }
}

fn unknown(name: &str, problem: &'static str) -> FilterError {
    FilterError::Name { name: shown(name), problem }
}

/// `a.b.c`, if the expression is nothing but names with dots between them.
fn qualified(expression: &Expr) -> Option<String> {
    let mut names = Vec::new();
    let mut next = expression;
    while let Expr::Select(select) = next {
        if select.test {
            return None;
        }
        names.push(&*select.field);
        next = &select.operand.expr;
    }
    let Expr::Ident(first) = next else { return None };
    names.push(first);
    names.reverse();
    Some(names.join("."))
}
