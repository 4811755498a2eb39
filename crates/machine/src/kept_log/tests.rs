//! Tests of the kept log on a real directory.

use polis_logtree::LogTree;
use polis_storage::{HostDisk, Layout};
use polis_supervisor::testing::Harness;

use super::*;

fn data_directory() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join(MARKER), "").unwrap();
    scratch
}

fn messages(data: &Path) -> Vec<String> {
    read(data).unwrap().entries.into_iter().map(|entry| entry.message).collect()
}

/// Waits for something on the disk, which tells nobody.
async fn until(mut wanted: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !wanted() {
        assert!(Instant::now() < deadline, "it did not come to that");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn name(text: &str) -> DistinguishedName {
    DistinguishedName::parse(text).unwrap()
}

#[test]
fn the_log_is_where_the_layout_of_a_node_has_it() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(Arc::new(HostDisk::open(root.path()).unwrap()));
    let data = layout.data.directory.full_path();
    assert_eq!(layout.data.log.full_path(), data.join(LOG_DIRECTORY));
    assert_eq!(layout.data.partition.full_path(), data.join(MARKER));
}

#[tokio::test]
async fn what_is_said_before_during_and_at_the_end_is_kept_in_order() {
    let data = data_directory();
    let path = data.path().to_owned();
    let (open, watched) = watch::channel(None);
    let harness = Harness::start(move |context: Context| {
        context.log_tree().logger(&name("root.early")).info("before");
        keep(context, watched.clone(), Arc::new(AtomicBool::new(false)))
    });
    let tree: LogTree = harness.log_tree().clone();
    until(|| tree.names().contains(&name("root.early"))).await;
    tree.logger(&name("root.early")).warning("not open yet");
    open.send_replace(Some(path.clone()));
    until(|| messages(&path).contains(&"not open yet".to_owned())).await;
    tree.raw(&name("root.other")).write(b"a raw line\n");
    tree.logger(&name("root.early")).error("last\nwords");
    harness.finish().await;
    let kept = read(data.path()).unwrap();
    let of = |dn: &str| {
        kept.entries
            .iter()
            .filter(|entry| entry.dn == dn)
            .map(|entry| (&*entry.severity, &*entry.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("root.early"), [("info", "before"), ("warning", "not open yet"), ("error", "last\nwords")]);
    assert_eq!(of("root.other"), [("raw", "a raw line")]);
    assert_eq!(kept.damaged, 0);
}

#[test]
fn nothing_is_written_beside_a_partition_that_is_not_open() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(scratch.path().to_owned());
    assert!(writer.write(b"{}\n", Flush::Now).is_err());
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn each_start_has_its_own_segment_and_a_torn_one_costs_its_end() {
    let data = data_directory();
    let line = |message: &str| {
        let mut text = String::new();
        let entry = KeptEntry {
            timestamp: "2026-01-02T03:04:05Z".parse().unwrap(),
            dn: "root".into(),
            severity: "info".into(),
            location: None,
            message: message.into(),
        };
        text.push_str(&serde_json::to_string(&entry).unwrap());
        text.push('\n');
        text
    };
    let mut first = Writer::new(data.path().to_owned());
    first.write(line("one").as_bytes(), Flush::WhenDue).unwrap();
    first.write(line("two").as_bytes(), Flush::WhenDue).unwrap();
    let segment = data.path().join("log/segment-0000000000");
    // A power cut: the end of the line is missing, and the file system has left zeros in its place.
    let bytes = fs::read(&segment).unwrap();
    fs::write(&segment, [&bytes[..bytes.len() - 10], &[0; 10]].concat()).unwrap();

    let mut second = Writer::new(data.path().to_owned());
    second.write(line("three").as_bytes(), Flush::Now).unwrap();
    assert_eq!(messages(data.path()), ["one", "three"]);
    assert_eq!(read(data.path()).unwrap().damaged, 1);
    assert_eq!(fs::read_dir(data.path().join("log")).unwrap().count(), 2);
}

#[test]
fn the_whole_log_stays_within_its_bound() {
    let data = data_directory();
    let mut writer = Writer::new(data.path().to_owned());
    let batch = vec![b'\n'; BATCH_BYTES];
    for _ in 0..(LOG_BYTES * 3 / 2) / BATCH_BYTES as u64 {
        writer.write(&batch, Flush::WhenDue).unwrap();
        let total: u64 = segments::list(&data.path().join("log")).unwrap().iter().map(|segment| segment.bytes).sum();
        assert!(total <= LOG_BYTES, "{total}");
    }
    let segments = segments::list(&data.path().join("log")).unwrap();
    assert!(segments[0].number > 0 && segments.len() as u64 == LOG_BYTES / SEGMENT_BYTES, "{segments:?}");
}
