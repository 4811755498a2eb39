//! Durations as people write and read them.

use std::time::Duration;

use jiff::SignedDuration;

/// Longest duration that an argument may ask for: a week. A longer one is surely a slip.
const MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Takes `90s`, `1m30s`, `500ms`, or a plain number of seconds.
///
/// # Errors
///
/// Why the text is not a usable duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => parse_with_units(text)?,
    };
    if duration > MAX {
        return Err("at most 7 days (168h) are possible".into());
    }
    Ok(duration)
}

fn parse_with_units(text: &str) -> Result<Duration, String> {
    let form = "write a number and a unit, for example 90s, 1m30s or 500ms";
    let signed: SignedDuration = text.parse().map_err(|_| format!("not a duration; {form}"))?;
    Duration::try_from(signed).map_err(|_| format!("it lies in the past; {form}"))
}

/// The duration in the two largest units that matter: `0.42 s`, `59 s`, `2 min 5 s`, `3 h 0 min`, `2 d 1 h`.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.2} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        86_400.. => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        let check =
            |text: &str, milliseconds: u64| assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        check("0", 0);
        check("5", 5_000);
        check("90s", 90_000);
        check("500ms", 500);
        check("1m30s", 90_000);
        check("1m 30s", 90_000);
        check("2m", 120_000);
        check("1h", 3_600_000);
        check("1.5s", 1_500);
        check("168h", 7 * 86_400_000);
    }

    #[test]
    fn what_is_refused() {
        let check = |text: &str, reason: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        };
        check("", "not a duration");
        check("soon", "not a duration");
        check("5 apples", "not a duration");
        check("-5s", "in the past");
        check("169h", "at most 7 days");
        check("99999999999999999999999s", "not a duration");
        check("18446744073709551615", "at most 7 days");
    }

    #[test]
    fn what_people_read() {
        let check = |milliseconds: u64, text: &str| assert_eq!(show(Duration::from_millis(milliseconds)), text);
        check(0, "0.00 s");
        check(421, "0.42 s");
        check(9_999, "10.00 s");
        check(59_900, "59 s");
        check(125_000, "2 min 5 s");
        check(3_600_000, "1 h 0 min");
        check(49 * 3_600_000, "2 d 1 h");
    }
}
