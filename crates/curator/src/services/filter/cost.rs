//! How much an expression can cost, found out without evaluating it.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};
use polis_parameters::MAX_LABELS;

/// What one use of a regular expression counts for: it is compiled each time.
const REGULAR_EXPRESSION: u64 = 500;

/// Characters and words that are or may be operators, and so may make what the parser has to read one level deeper. Those in
/// texts count, too: to leave them out, one would have to read texts exactly as the parser does.
pub(super) fn operators(text: &str) -> usize {
    // The second character of `==`, `!=`, `<=` and `>=` is part of the same operator.
    let before = std::iter::once(' ').chain(text.chars());
    let characters = text.chars().zip(before).filter(|(character, before)| match character {
        '=' => !"=!<>".contains(*before),
        other => "+-*/%.[({?!<>".contains(*other),
    });
    let characters = characters.count();
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    characters + words.filter(|word| *word == "in").count()
}

/// Steps that evaluating the expression for one node takes at most.
pub(super) fn of(expression: &IdedExpr) -> u64 {
    // The longest list of a node is that of its labels. Lists that are written down, or put together from others, have at most
    // as many elements as the expression has parts, times that.
    let parts = parts(&expression.expr);
    steps(&expression.expr, parts)
}

/// How many levels the tree of an expression has.
pub(super) fn depth(expression: &IdedExpr) -> usize {
    fn levels(expression: &Expr) -> usize {
        1 + children(expression).into_iter().map(levels).max().unwrap_or_default()
    }
    levels(&expression.expr)
}

/// How many parts an expression has, itself among them.
fn parts(expression: &Expr) -> u64 {
    1 + children(expression).into_iter().map(parts).sum::<u64>()
}

fn steps(expression: &Expr, parts: u64) -> u64 {
    let inside = |child: &Expr| steps(child, parts);
    match expression {
        Expr::Comprehension(loops) => {
            let once = inside(&loops.loop_cond.expr).saturating_add(inside(&loops.loop_step.expr));
            let rounds = longest(&loops.iter_range.expr, parts);
            let around = [&loops.iter_range, &loops.accu_init, &loops.result].map(|part| inside(&part.expr));
            around.into_iter().fold(once.saturating_mul(rounds), u64::saturating_add).saturating_add(1)
        }
        Expr::Call(call) => {
            let own = match &*call.func_name {
                "matches" => REGULAR_EXPRESSION,
                cel::common::ast::operators::IN => call.args.get(1).map_or(1, |list| longest(&list.expr, parts)),
                _ => 1,
            };
            children(expression).into_iter().map(inside).fold(own, u64::saturating_add)
        }
        Expr::Unspecified
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Select(_)
        | Expr::Struct(_) => children(expression).into_iter().map(inside).fold(1, u64::saturating_add),
    }
}

/// Most elements that an expression can have whose value is a list or a map.
fn longest(expression: &Expr, parts: u64) -> u64 {
    let labels = MAX_LABELS as u64;
    match expression {
        Expr::List(list) => list.elements.len() as u64,
        Expr::Map(map) => map.entries.len() as u64,
        // A field of the node, of a label or of a peer.
        Expr::Select(_) => labels.max(parts),
        Expr::Comprehension(loops) => longest(&loops.iter_range.expr, parts),
        Expr::Unspecified | Expr::Call(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {
            labels.saturating_mul(parts)
        }
    }
}

fn children(expression: &Expr) -> Vec<&Expr> {
    let expressions: Vec<&IdedExpr> = match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(loops) => {
            vec![&loops.iter_range, &loops.accu_init, &loops.loop_cond, &loops.loop_step, &loops.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Struct(message) => message.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
    };
    expressions.into_iter().map(|part| &part.expr).collect()
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}
