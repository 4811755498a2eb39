//! Where the configuration lies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the directory below the user's configuration: that of `metroctl`, so that both clients share it.
const NAME: &str = "metroctl";

/// The configuration directory: the given one, else `$XDG_CONFIG_HOME/metroctl`, else `~/.config/metroctl`. `None` when
/// the environment names no home.
pub(crate) fn resolve(given: Option<&Path>, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config"))).map(|base| base.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_set_wins() {
        let check = |given: Option<&str>, config: &str, home: &str, expect: Option<&str>| {
            let environment = |name: &str| {
                let value = if name == "HOME" { home } else { config };
                (!value.is_empty()).then(|| OsString::from(value))
            };
            assert_eq!(resolve(given.map(Path::new), environment), expect.map(PathBuf::from));
        };
        check(Some("here"), "/c", "/h", Some("here"));
        check(None, "/c", "/h", Some("/c/metroctl"));
        check(None, "relative", "/h", Some("/h/.config/metroctl"));
        check(None, "", "/h", Some("/h/.config/metroctl"));
        check(None, "", "", None);
    }
}
