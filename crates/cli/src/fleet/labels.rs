//! `polis node set label`.

use std::process::ExitCode;

use polis_parameters::Label;
use polis_proto::api::UpdateNodeLabelsRequest;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::update_node_labels_request::{self, Pair};

use super::reach;
use crate::arguments::ConnectionArguments;
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::Progress;

/// What is to become of the labels.
#[derive(Debug, Default, PartialEq)]
struct Change {
    upsert: Vec<(String, String)>,
    delete: Vec<String>,
}

pub(super) fn run(id: &str, labels: &[String], connection: &ConnectionArguments) -> Result<ExitCode, Failure> {
    let change = parse(labels)?;
    Operator::run(connection, "node set label", async |operator| {
        let node = reach::one_to_change(operator, id, "did not get other labels").await?;
        let what = format!("the labels of {} were not changed", node.node_id);
        operator
            .call(&what, Repeat::Always, async |channel| {
                let pairs = change.upsert.iter().map(|(key, value)| Pair { key: key.clone(), value: value.clone() });
                let request = UpdateNodeLabelsRequest {
                    node: Some(update_node_labels_request::Node::Id(node.node_id.clone())),
                    upsert: pairs.collect(),
                    delete: change.delete.clone(),
                };
                ManagementClient::new(channel).update_node_labels(request).await.map(|_| ())
            })
            .await?;
        let set = change.upsert.iter().map(|(key, value)| format!("{key}={value}"));
        let removed = change.delete.iter().map(|key| format!("without {key}"));
        let words: Vec<String> = set.chain(removed).collect();
        Progress::start().line(&format!("{}: {}", node.node_id, words.join(", ")));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Takes all of them, or names every bad one.
fn parse(texts: &[String]) -> Result<Change, Failure> {
    let (mut change, mut bad) = (Change::default(), Vec::new());
    for text in texts {
        let parsed = match text.strip_suffix('-').filter(|_| !text.contains('=')) {
            Some(key) => Label::new(key, "").map(|label| change.delete.push(label.key().to_owned())),
            None => text
                .parse::<Label>()
                .map(|label| change.upsert.push((label.key().to_owned(), label.value().to_owned()))),
        };
        if let Err(error) = parsed {
            bad.push(format!("{}: {error}", text.escape_debug()));
        }
    }
    let keys: Vec<&String> = change.upsert.iter().map(|(key, _)| key).chain(&change.delete).collect();
    for (index, key) in keys.iter().enumerate() {
        if keys[..index].contains(key) {
            bad.push(format!("{key}: it stands there twice"));
        }
    }
    if bad.is_empty() {
        return Ok(change);
    }
    let failure = Failure::usage("the labels are not usable; nothing was changed")
        .hint("write KEY=VALUE to set a label, KEY- to remove it");
    Err(bad.into_iter().fold(failure, Failure::because_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_set_and_removed() {
        let texts = ["site=lab", "rack-", "empty=", "a-b=c", "odd-name-", "x="].map(str::to_owned);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parse(&texts).unwrap(),
            Change {
                upsert: vec![pair("site", "lab"), pair("empty", ""), pair("a-b", "c"), pair("x", "")],
                delete: vec!["rack".into(), "odd-name".into()],
            }
        );
    }

    #[test]
    fn every_bad_one_is_named() {
        let texts = ["novalue", "-", "a=b=c", "twice=1", "twice-", "good=1"].map(str::to_owned);
        let failure = format!("{:?}", parse(&texts).unwrap_err());
        for part in ["novalue: ", "-: ", "a=b=c: ", "twice: it stands there twice", "KEY- to remove"] {
            assert!(failure.contains(part), "{part:?} is missing in {failure}");
        }
        assert!(!failure.contains("good"));
    }
}
