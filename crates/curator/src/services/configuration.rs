//! The three-way merge of the cluster's configuration (metropolis.md, G.9).

use polis_proto::common::ClusterConfiguration;
use polis_proto::common::cluster_configuration::Kubernetes;
use polis_proto::common::cluster_configuration::kubernetes::NodeLabelsToSynchronize;

use super::text::shown;

/// The one field that can change.
const LABEL_RULES: &str = "kubernetes.node_labels_to_synchronize";

/// The fields that cannot, whole messages among them.
const FIXED: [&str; 4] = ["cluster_domain", "tpm_mode", "storage_security_policy", "kubernetes"];

/// Most rules about labels: the configuration is sent to every node that registers.
const MAX_RULES: usize = 128;

/// Longest regular expression of a rule, in bytes.
const MAX_RULE_LENGTH: usize = 1024;

/// Largest expression once compiled, in bytes: enough for long lists of alternatives, and cheap to try.
const MAX_COMPILED_RULE: usize = 256 * 1024;

/// Why the configuration is not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConfigureError {
    /// `new_config` is not set.
    #[error("new_config is not set")]
    NoNew,
    /// `update_mask` is not set, or names nothing.
    #[error("update_mask names no field; the one that can change is {LABEL_RULES}")]
    NoMask,
    /// The mask names a field that the configuration does not have.
    #[error("update_mask names {0}, which is no field of the configuration; the one that can change is {LABEL_RULES}")]
    Unknown(String),
    /// The mask names a field that cannot change.
    #[error("update_mask names {0}, which cannot change; the one that can is {LABEL_RULES}")]
    Fixed(String),
    /// A configuration lacks the message in which the field of the mask is.
    #[error("{0} has no kubernetes, in which the field of update_mask lies")]
    Missing(&'static str),
    /// The caller has changed another configuration than the present one.
    #[error(
        "the configuration has changed since it was read: {LABEL_RULES} is not what base_config says; read it again"
    )]
    BaseDiffers,
    /// Too many rules.
    #[error("new_config has {0} rules in {LABEL_RULES}, and there can be {MAX_RULES}")]
    TooManyRules(usize),
    /// A rule is no regular expression.
    #[error("the rule {0} in {LABEL_RULES} is not a regular expression of at most {MAX_RULE_LENGTH} bytes")]
    Rule(String),
}

impl ConfigureError {
    /// Whether the request was right, and the state of the cluster is not what it expects.
    pub(super) const fn is_precondition(&self) -> bool {
        match self {
            Self::BaseDiffers => true,
            Self::NoNew
            | Self::NoMask
            | Self::Unknown(_)
            | Self::Fixed(_)
            | Self::Missing(_)
            | Self::TooManyRules(_)
            | Self::Rule(_) => false,
        }
    }
}

/// What the configuration becomes: `present`, with the fields that `mask` names taken from `new`, provided that they are in
/// `present` as they are in `base`, if that is given.
///
/// # Errors
///
/// The first thing that is wrong with the request.
pub(super) fn merge(
    present: &ClusterConfiguration,
    base: Option<&ClusterConfiguration>,
    new: Option<&ClusterConfiguration>,
    mask: Option<&[String]>,
) -> Result<ClusterConfiguration, ConfigureError> {
    let new = new.ok_or(ConfigureError::NoNew)?;
    let paths = mask.filter(|paths| !paths.is_empty()).ok_or(ConfigureError::NoMask)?;
    for path in paths {
        if FIXED.contains(&&**path) {
            return Err(ConfigureError::Fixed(path.clone()));
        }
        if path != LABEL_RULES {
            return Err(ConfigureError::Unknown(shown(path)));
        }
    }
    let base = base.map(|base| rules(base, "base_config")).transpose()?;
    let new = rules(new, "new_config")?;
    check_rules(new)?;
    let known = present.kubernetes.as_ref().map_or(&[][..], |kubernetes| &kubernetes.node_labels_to_synchronize);
    if base.is_some_and(|base| base != known) {
        return Err(ConfigureError::BaseDiffers);
    }
    let kubernetes = Kubernetes { node_labels_to_synchronize: new.to_vec() };
    Ok(ClusterConfiguration { kubernetes: Some(kubernetes), ..present.clone() })
}

fn rules<'a>(
    configuration: &'a ClusterConfiguration,
    name: &'static str,
) -> Result<&'a [NodeLabelsToSynchronize], ConfigureError> {
    let kubernetes = configuration.kubernetes.as_ref().ok_or(ConfigureError::Missing(name))?;
    Ok(&kubernetes.node_labels_to_synchronize)
}

/// Rules are used far from here and much later, where nobody could tell who made the mistake.
fn check_rules(rules: &[NodeLabelsToSynchronize]) -> Result<(), ConfigureError> {
    if rules.len() > MAX_RULES {
        return Err(ConfigureError::TooManyRules(rules.len()));
    }
    let bad = rules.iter().find(|rule| {
        rule.regexp.len() > MAX_RULE_LENGTH
            || regex::RegexBuilder::new(&rule.regexp).size_limit(MAX_COMPILED_RULE).build().is_err()
    });
    bad.map_or(Ok(()), |rule| Err(ConfigureError::Rule(shown(&rule.regexp))))
}

#[cfg(test)]
mod tests {
    use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};

    use super::*;

    fn configuration(rules: Option<&[&str]>) -> ClusterConfiguration {
        ClusterConfiguration {
            cluster_domain: "cluster.internal".into(),
            tpm_mode: TpmMode::BestEffort.into(),
            storage_security_policy: StorageSecurityPolicy::Permissive.into(),
            kubernetes: rules.map(|rules| Kubernetes {
                node_labels_to_synchronize: rules
                    .iter()
                    .map(|rule| NodeLabelsToSynchronize { regexp: (*rule).into() })
                    .collect(),
            }),
        }
    }

    struct Case {
        present: ClusterConfiguration,
        base: Option<ClusterConfiguration>,
        new: Option<ClusterConfiguration>,
        mask: Option<&'static [&'static str]>,
        expect: Result<ClusterConfiguration, ConfigureError>,
    }

    fn check(name: &str, case: Case) {
        let mask = case.mask.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
        let found = merge(&case.present, case.base.as_ref(), case.new.as_ref(), mask.as_deref());
        assert_eq!(found, case.expect, "{name}");
    }

    #[test]
    fn only_the_rules_about_labels_change() {
        let old = configuration(Some(&["^old$"]));
        let new = configuration(Some(&["^new$", "^other$"]));
        let other = ClusterConfiguration { tpm_mode: TpmMode::Required.into(), ..new.clone() };
        const MASK: Option<&[&str]> = Some(&[LABEL_RULES]);
        let case = |base: Option<&ClusterConfiguration>, next: Option<&ClusterConfiguration>, mask, expect| Case {
            present: old.clone(),
            base: base.cloned(),
            new: next.cloned(),
            mask,
            expect,
        };
        check("with the right base", case(Some(&old), Some(&new), MASK, Ok(new.clone())));
        check("without a base", case(None, Some(&new), MASK, Ok(new.clone())));
        check("fields outside of the mask stay", case(None, Some(&other), MASK, Ok(new.clone())));
        let cleared = configuration(Some(&[]));
        check("rules can be cleared", case(Some(&old), Some(&cleared), MASK, Ok(cleared.clone())));
        check("the base is another", case(Some(&new), Some(&new), MASK, Err(ConfigureError::BaseDiffers)));
        check("no new one", case(Some(&old), None, MASK, Err(ConfigureError::NoNew)));
        check("no mask", case(Some(&old), Some(&new), None, Err(ConfigureError::NoMask)));
        check("an empty mask", case(Some(&old), Some(&new), Some(&[]), Err(ConfigureError::NoMask)));
        check(
            "a field that does not exist",
            case(None, Some(&new), Some(&["beep"]), Err(ConfigureError::Unknown("beep".into()))),
        );
        check(
            "a field that does not exist, after one that does",
            case(None, Some(&new), Some(&[LABEL_RULES, "kubernetes.x"]), {
                Err(ConfigureError::Unknown("kubernetes.x".into()))
            }),
        );
        for fixed in ["kubernetes", "tpm_mode", "storage_security_policy", "cluster_domain"] {
            let mask: &'static [&'static str] = vec![fixed].leak();
            check(fixed, case(None, Some(&new), Some(mask), Err(ConfigureError::Fixed(fixed.into()))));
        }
        let bare = configuration(None);
        check("new without kubernetes", case(None, Some(&bare), MASK, Err(ConfigureError::Missing("new_config"))));
        check(
            "base without kubernetes",
            case(Some(&bare), Some(&new), MASK, Err(ConfigureError::Missing("base_config"))),
        );
        check(
            "a present one without kubernetes",
            Case { present: bare, base: None, new: Some(new.clone()), mask: MASK, expect: Ok(new.clone()) },
        );
    }

    #[test]
    fn rules_are_regular_expressions_and_bounded() {
        let long = "a".repeat(MAX_RULE_LENGTH + 1);
        let deep = "(a{1000}){1000}";
        for (rules, expect) in [
            (vec!["^node\\.example\\.com/[a-z]+$", ""], None),
            (vec!["^a$", "("], Some(ConfigureError::Rule("(".into()))),
            (vec![deep], Some(ConfigureError::Rule(deep.into()))),
            (vec![&*long], Some(ConfigureError::Rule(shown(&long)))),
            (vec!["a"; MAX_RULES + 1], Some(ConfigureError::TooManyRules(MAX_RULES + 1))),
        ] {
            let new = configuration(Some(&rules));
            let found = merge(&configuration(None), None, Some(&new), Some(&[LABEL_RULES.to_owned()]));
            assert_eq!(found.err(), expect, "{rules:?}");
        }
    }
}
