//! Distinguished names.

use polis_logtree::{DistinguishedName, NAME_BYTES, NameError};
use proptest::prelude::*;

#[test]
fn a_name_is_parsed_or_refused_with_the_reason() {
    let empty = |text: &str| Err(NameError::EmptyPart(text.into()));
    let cases: [(&str, Result<&[&str], NameError>); 9] = [
        ("", Ok(&[])),
        ("root", Ok(&["root"])),
        ("root.role.kubernetes", Ok(&["root", "role", "kubernetes"])),
        ("root.dhcp-server.eth0:1", Ok(&["root", "dhcp-server", "eth0:1"])),
        (".", empty(".")),
        ("..", empty("..")),
        (".root", empty(".root")),
        ("root.", empty("root.")),
        ("root..network", empty("root..network")),
    ];
    for (text, expected) in cases {
        let parsed = text.parse::<DistinguishedName>();
        let parts = parsed.as_ref().map(|name| name.parts().collect::<Vec<_>>()).map_err(Clone::clone);
        assert_eq!(parts, expected.map(<[&str]>::to_vec), "{text:?}");
        if let Ok(name) = parsed {
            assert_eq!(name.to_string(), text);
        }
    }
    let long = "x".repeat(NAME_BYTES + 1);
    assert_eq!(DistinguishedName::parse(&long), Err(NameError::TooLong(NAME_BYTES + 1)));
    assert!(DistinguishedName::parse(&long[1..]).is_ok());
}

#[test]
fn children_and_parents() {
    let root = DistinguishedName::root();
    let network = root.child("root").unwrap().child("network").unwrap();
    assert_eq!(network.as_str(), "root.network");
    assert_eq!(network.parent().unwrap().as_str(), "root");
    assert_eq!(network.parent().unwrap().parent(), Some(root.clone()));
    assert_eq!(root.parent(), None);
    assert_eq!(network.child(""), Err(NameError::EmptyPart(String::new())));
    assert_eq!(network.child("a.b"), Err(NameError::DotInPart("a.b".into())));
    assert_eq!(network.child(&"x".repeat(NAME_BYTES)), Err(NameError::TooLong(NAME_BYTES + 13)));
    assert_eq!(format!("{network:>15}|{network:<15}|"), "   root.network|root.network   |");
}

#[test]
fn within() {
    let cases = [
        ("root.a", "root", true),
        ("root", "root", true),
        ("root", "root.a", false),
        ("root.ab", "root.a", false),
        ("root.a.b", "root.a", true),
        ("rooted", "root", false),
        ("anything", "", true),
        ("", "", true),
        ("", "root", false),
    ];
    for (name, other, expected) in cases {
        let parse = |text| DistinguishedName::parse(text).unwrap();
        assert_eq!(parse(name).is_within(&parse(other)), expected, "{name:?} within {other:?}");
    }
}

proptest! {
    /// A sorted list of names shows each name directly followed by everything below it.
    #[test]
    fn what_is_below_a_name_follows_it(
        mut names in prop::collection::vec(prop::collection::vec("[a-c!~-]{1,2}", 0..4), 1..30),
    ) {
        names.sort();
        names.dedup();
        let mut sorted: Vec<_> = names.iter().map(|parts| DistinguishedName::parse(&parts.join(".")).unwrap()).collect();
        sorted.sort();
        for (at, name) in sorted.iter().enumerate() {
            let follow = sorted[at..].iter().take_while(|other| other.is_within(name)).count();
            prop_assert_eq!(follow, sorted.iter().filter(|other| other.is_within(name)).count());
        }
    }
}
