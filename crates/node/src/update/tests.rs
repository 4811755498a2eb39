//! Orders about a machine, whose EFI system partition is a directory, with a registry on loopback.

use std::path::Path;

use polis_image::slots::{ENTRY_DIRECTORY, IMAGE_DIRECTORY, NewImage};
use polis_storage::HostDisk;
use polis_supervisor::Supervisor;
use polis_update::{Digest, ImageLayout};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A machine that was started from the image that came with its disk.
struct TestMachine {
    place: tempfile::TempDir,
    slots: MachineSlots,
    conditions: Conditions,
}

fn machine(esp: Option<EspState>) -> TestMachine {
    let place = tempfile::tempdir().unwrap();
    let image = b"MZ the first image";
    let entry = Slots::first(&NewImage { sha256: Digest::of(image).0, version: "1".into() });
    let write = |directory: &str, name: String, content: &[u8]| {
        let directory = place.path().join(ESP).join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(name), content).unwrap();
    };
    write(ENTRY_DIRECTORY, entry.file_name(), entry.text().as_bytes());
    write(IMAGE_DIRECTORY, entry.image.to_string(), image);
    let conditions = Conditions::default();
    let disk = Arc::new(HostDisk::open(place.path()).unwrap());
    let selected = Ok(SelectedEntry(Some(entry.file_name())));
    let esp = esp.unwrap_or(EspState::Mounted { device: "/dev/vda1".into() });
    let slots = MachineSlots::new(disk, esp, selected, conditions.clone());
    TestMachine { place, slots, conditions }
}

/// Runs something under a supervisor.
async fn under_supervisor<T: Send + 'static>(
    test: impl FnOnce(Context) -> std::pin::Pin<Box<dyn Future<Output = T> + Send>> + Send + 'static,
) -> T {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let parts = std::sync::Mutex::new(Some((test, sender)));
    let supervisor = Supervisor::builder().start(polis_supervisor::runnable(move |context: Context| {
        let parts = parts.lock().unwrap().take();
        async move {
            context.healthy();
            if let Some((test, sender)) = parts {
                let _ = sender.send(test(context.clone()).await);
            }
            Err(context.cancelled().await.into())
        }
    }));
    let result = receiver.await.unwrap();
    supervisor.shutdown().await.unwrap();
    result
}

/// A registry with one image; answers as many requests as it gets.
async fn serve(listener: TcpListener, directory: std::path::PathBuf, blobs_wait: Arc<tokio::sync::Semaphore>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
        while !head.ends_with(b"\r\n\r\n") {
            let count = stream.read(&mut buffer).await.unwrap();
            head.extend_from_slice(&buffer[..count]);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
        if path.contains("/blobs/") {
            blobs_wait.acquire().await.unwrap().forget();
        }
        let content = std::fs::read(directory.join(path)).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.write_all(&content).await;
    }
}

fn publish(place: &Path, image: &[u8]) -> Digest {
    ImageLayout { image, version: "2", repository: "polis" }.write(&place.join("artifact")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_goes_to_the_other_slot_one_at_a_time_with_progress() {
    let TestMachine { place, slots, conditions } = machine(None);
    let image = b"MZ the second image";
    let digest = publish(place.path(), image);
    let listener = TcpListener::bind("127.1.61.1:0").await.unwrap();
    let reference: ImageReference =
        format!("http://{}/polis@{digest}", listener.local_addr().unwrap()).parse().unwrap();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let server = tokio::spawn(serve(listener, place.path().join("artifact"), Arc::clone(&gate)));
    under_supervisor(move |context| {
        Box::pin(async move {
            let before = slots.boot_status(&context).await.unwrap();
            assert_eq!(before.running, before.next);
            let update = tokio::spawn({
                let (slots, context, reference) = (slots.clone(), context.clone(), reference.clone());
                async move { slots.update(&context, reference).await }
            });
            let mut watch = conditions.watch();
            watch.wait_for(|conditions| conditions.contains_key(UPDATE_UNDER_WAY)).await.unwrap();
            let second = slots.update(&context, reference).await;
            assert!(matches!(second, Err(OrderError::Busy)), "{second:?}");
            assert!(matches!(slots.roll_back(&context).await, Err(OrderError::Busy)));
            gate.add_permits(1);
            update.await.unwrap().unwrap();
            assert!(conditions.get(UPDATE_UNDER_WAY).is_none());
            let after = slots.boot_status(&context).await.unwrap();
            assert_eq!(after.running, before.running);
            let next = after.next.unwrap();
            assert_eq!((next.slot.as_str(), next.version.as_str(), next.good), ("b", "2", false));
            assert_eq!(next.sha256, Digest::of(image).0);
            // It is no unified kernel image, which a start without the firmware needs.
            let loaded = slots.load_next_kernel(&context).await;
            assert!(matches!(loaded, Err(OrderError::Load(LoadError::Parts(_)))), "{loaded:?}");
            // The other slot has nothing that was good.
            let back = slots.roll_back(&context).await;
            assert!(matches!(back, Err(OrderError::Slots(SlotsError::Refused(_)))), "{back:?}");
        })
    })
    .await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_written_is_told_before_anything_is_fetched() {
    let read_only = EspState::ReadOnly { device: "/dev/vda1".into(), reason: "Read-only file system".into() };
    for (esp, expected) in [(read_only, "Read-only file system"), (EspState::Volatile, "without disks")] {
        let TestMachine { place: _place, slots, .. } = machine(Some(esp));
        // Nobody is there.
        let reference = format!("http://127.1.61.2:9/polis@{}", Digest::of(b"")).parse().unwrap();
        let text = under_supervisor(move |context| {
            Box::pin(async move { explain(&slots.update(&context, reference).await.unwrap_err()) })
        })
        .await;
        assert!(text.contains(expected), "{text}");
    }
}
