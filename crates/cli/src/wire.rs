//! Values of the wire contract in the forms that are shown.

use prost_types::Duration;

/// The name of a value of an enum without its prefix, such as `UP`; the number of one that this version does not know.
pub(crate) fn name<E: TryFrom<i32>>(value: i32, of: impl Fn(&E) -> &'static str, prefix: &str) -> String {
    match E::try_from(value) {
        Ok(known) => {
            let name = of(&known);
            name.strip_prefix(prefix).unwrap_or(name).to_owned()
        }
        Err(_) => value.to_string(),
    }
}

/// A duration in seconds.
#[expect(clippy::cast_precision_loss, reason = "what is measured here is far below 2^52 seconds")]
pub(crate) fn seconds(duration: &Duration) -> f64 {
    duration.seconds as f64 + f64::from(duration.nanos) / 1e9
}

#[cfg(test)]
mod tests {
    use polis_proto::common::NodeState;

    use super::*;

    #[test]
    fn names_and_seconds() {
        let state = |value| name::<NodeState>(value, NodeState::as_str_name, "NODE_STATE_");
        assert_eq!((&*state(3), &*state(99)), ("UP", "99"));
        assert!((seconds(&Duration { seconds: 2, nanos: 250_000_000 }) - 2.25).abs() < 1e-9);
    }
}
