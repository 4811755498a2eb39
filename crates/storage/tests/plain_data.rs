//! The plain data partition: formatted once, opened by its owner only, and nothing of anyone else is touched.

use std::path::Path;
use std::sync::Arc;

use polis_secret::Secret32;
use polis_storage::data::{DataError, DataPartition as _, Found, KeyOperation, Progress, ProgressSender, UnlockKeys};
use polis_storage::journal::{FormatPermit, Intent, StorageSecurity};
use polis_storage::simulation::{Failure, Image, SimulatedDisk};
use polis_storage::{Disk, DiskPath, HostDisk, Journal, PlainData};

const NODE: &str = "metropolis-00000000000000000000000000000001";
const OTHER: &str = "metropolis-00000000000000000000000000000002";

fn permit() -> FormatPermit {
    Journal::new(Intent {
        parameters: b"parameters".to_vec(),
        node_key: Secret32::new([1; 32]),
        node_public_key: [2; 32],
        join_key: Secret32::new([3; 32]),
        share_key: Secret32::new([4; 32]),
        storage_security: Some(StorageSecurity::Insecure),
    })
    .permit_format()
    .unwrap()
}

fn progress() -> ProgressSender {
    ProgressSender::new(Progress::default())
}

async fn format(data: &PlainData, owner: &str) -> Result<(), DataError> {
    data.format(permit(), owner, None, &progress()).await
}

async fn open(data: &PlainData, owner: &str) -> Result<(), DataError> {
    data.open(owner, None, &progress()).await
}

async fn prepare(data: &PlainData) -> Found {
    data.prepare(&progress()).await.unwrap()
}

fn on_host(root: &Path) -> PlainData {
    PlainData::new(Arc::new(HostDisk::open(root).unwrap()))
}

#[tokio::test]
async fn it_is_formatted_once_and_opened_by_its_owner() {
    let root = tempfile::tempdir().unwrap();
    let data = on_host(root.path());
    assert_eq!(prepare(&data).await, Found::Nothing);
    assert!(matches!(open(&data, NODE).await, Err(DataError::NotFormatted { .. })));
    assert_eq!(prepare(&data).await, Found::Nothing, "opening makes nothing");
    let progress = progress();
    data.format(permit(), NODE, None, &progress).await.unwrap();
    assert_eq!(progress.borrow().step, "formatting the data directory");
    assert_eq!(prepare(&data).await, Found::Formatted { owner: Some(NODE.to_owned()) });
    let before = Image::read_from(root.path()).unwrap();
    open(&data, NODE).await.unwrap();
    open(&data, NODE).await.unwrap();
    format(&data, NODE).await.unwrap();
    data.close().await.unwrap();
    data.close().await.unwrap();
    open(&on_host(root.path()), NODE).await.unwrap();
    assert!(Image::read_from(root.path()).unwrap() == before);
}

#[tokio::test]
async fn the_data_of_another_node_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let data = on_host(root.path());
    format(&data, OTHER).await.unwrap();
    let before = Image::read_from(root.path()).unwrap();
    for error in [open(&data, NODE).await.unwrap_err(), format(&data, NODE).await.unwrap_err()] {
        let text = error.to_string();
        assert!(matches!(error, DataError::OtherNode { .. }), "{error:?}");
        assert!(text.contains(NODE) && text.contains(OTHER), "{text}");
        assert!(text.contains(root.path().join("data").to_str().unwrap()), "{text}");
    }
    assert!(Image::read_from(root.path()).unwrap() == before);
}

#[tokio::test]
async fn what_this_node_did_not_make_is_not_formatted_over() {
    for foreign in ["photo.jpg", "etcd/data/member", "node/credentials", "node/.credentials.polis-tmp", "other/"] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data").join(foreign);
        if foreign.ends_with('/') {
            std::fs::create_dir_all(&path).unwrap();
        } else {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "precious").unwrap();
        }
        let before = Image::read_from(root.path()).unwrap();
        let data = on_host(root.path());
        let expected = root.path().join("data").join(foreign.trim_end_matches('/'));
        assert_eq!(prepare(&data).await, Found::Foreign { path: expected.clone() });
        let error = format(&data, NODE).await.unwrap_err();
        let DataError::ForeignContent { found, .. } = error else { panic!("{foreign}: {error:?}") };
        assert_eq!(found, expected);
        assert!(matches!(open(&data, NODE).await, Err(DataError::NotFormatted { .. })), "{foreign}");
        assert!(Image::read_from(root.path()).unwrap() == before, "{foreign}");
    }
}

#[tokio::test]
async fn a_link_in_place_of_a_directory_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), root.path().join("data")).unwrap();
    let error = format(&on_host(root.path()), NODE).await.unwrap_err();
    let path = error.disk_error().unwrap().path.clone();
    assert!(path.starts_with(root.path().join("data")), "{}", path.display());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_half_done_format_is_finished() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("data/etcd")).unwrap();
    std::fs::create_dir(root.path().join("data/lost+found")).unwrap();
    let stale = root.path().join(format!("data/.partition.{:032x}.polis-tmp", 1));
    std::fs::write(&stale, "stale").unwrap();
    let data = on_host(root.path());
    assert_eq!(prepare(&data).await, Found::HalfFormatted);
    format(&data, NODE).await.unwrap();
    assert!(!stale.exists());
    open(&data, NODE).await.unwrap();
}

#[tokio::test]
async fn a_damaged_marker_is_not_taken_for_none() {
    let root = tempfile::tempdir().unwrap();
    let data = on_host(root.path());
    format(&data, NODE).await.unwrap();
    let marker = root.path().join("data/partition");
    let bytes = std::fs::read(&marker).unwrap();
    std::fs::write(&marker, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(open(&data, NODE).await, Err(DataError::Marker { .. })));
    assert!(matches!(format(&data, NODE).await, Err(DataError::Marker { .. })));
    assert_eq!(std::fs::read(&marker).unwrap().len(), bytes.len() - 1);
}

#[tokio::test]
async fn any_failed_step_can_be_tried_again_in_the_same_process() {
    let steps = {
        let disk = Arc::new(SimulatedDisk::default());
        format(&PlainData::new(disk.clone()), NODE).await.unwrap();
        disk.position()
    };
    for failing in 0..steps {
        let disk = Arc::new(SimulatedDisk::default());
        let data = PlainData::new(disk.clone());
        disk.fail_once(failing, Failure::Full);
        let error = format(&data, NODE).await.unwrap_err();
        assert!(error.disk_error().unwrap().is_full(), "{failing}: {error}");
        format(&data, NODE).await.unwrap();
        disk.fail_once(0, Failure::Forbidden);
        let error = open(&data, NODE).await.unwrap_err();
        assert!(error.disk_error().unwrap().is_forbidden(), "{failing}: {error}");
        open(&data, NODE).await.unwrap();
        let names = disk.list(&DiskPath::parse("data").unwrap()).unwrap();
        assert_eq!(names, ["etcd", "node", "partition"], "{failing}");
    }
}

#[tokio::test]
async fn it_says_that_it_is_insecure_and_knows_no_keys() {
    let data = PlainData::new(Arc::new(SimulatedDisk::default()));
    let description = data.describe();
    assert_eq!(description.storage_security, StorageSecurity::Insecure);
    assert!(description.warning.unwrap().contains("without encryption"));
    let keys = || UnlockKeys { node: Secret32::random(), cluster: Secret32::random() };
    let results = [
        (KeyOperation::TestOpen, data.test_open(&keys()).await.map(|_| ())),
        (KeyOperation::AddKey, data.add_key(&keys(), &keys()).await),
        (KeyOperation::CountKeys, data.count_keys().await.map(|_| ())),
        (KeyOperation::RemoveOthers, data.remove_others(&keys()).await),
        (KeyOperation::Unlock, data.open(NODE, Some(&keys()), &progress()).await),
        (KeyOperation::Unlock, data.format(permit(), NODE, Some(&keys()), &progress()).await),
    ];
    for (expected, result) in results {
        let error = result.unwrap_err();
        let DataError::NotSupported { operation, backend: "plain" } = error else { panic!("{expected}: {error:?}") };
        assert_eq!(operation, expected);
    }
}
