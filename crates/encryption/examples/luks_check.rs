//! Does one step in the life of a data partition on a device, and prints what came of it, one line each: for a virtual machine, since
//! a host may have no device mapper.
//!
//! `luks_check ROOT DEVICE SECURITY STEP`, where SECURITY is `insecure`, `encrypted` or `authenticated`, and STEP is
//!
//! | step | what it does |
//! |---|---|
//! | `life` | formats, writes, adds and removes keys, closes and opens again; ends closed |
//! | `format` | formats and opens, and ends as a killed process does: without closing |
//! | `resume` | formats what a format that was cut off has left, and opens |
//! | `open` | opens with the second key, or the first, checks what was written, and ends without closing |
//! | `grown` | as `open`, on a device that is larger than it was, and waits until the file system covers most of it |
//! | `many` | opens, makes a directory of many files and flushes it, says `flushed`, and waits for the power to fail |
//! | `look` | says what is on the device |
//!
//! The last line is `luks_check STEP: ok`, or `luks_check STEP: failed: REASON`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use polis_encryption::LuksData;
use polis_secret::Secret32;
use polis_storage::data::{DataError, DataPartition as _, Found, Progress, ProgressSender, UnlockKeys};
use polis_storage::journal::{FormatPermit, Intent, StorageSecurity};
use polis_storage::{DataGate, DiskPath, HostDisk, Journal, durable};

const NODE: &str = "metropolis-00000000000000000000000000000001";
const OTHER: &str = "metropolis-00000000000000000000000000000002";
/// Files of the step `many`: enough for several blocks of the directory, each of which is allocated anew.
const MANY: usize = 400;
/// How long the file system may take to grow, in a virtual machine: all that it grows over is written.
const GROWTH_PATIENCE: std::time::Duration = std::time::Duration::from_secs(900);

struct Check {
    root: PathBuf,
    device: PathBuf,
    security: StorageSecurity,
    started: Instant,
}

type Outcome = Result<(), Box<dyn Error>>;

impl Check {
    fn data(&self) -> Result<LuksData, Box<dyn Error>> {
        let disk = Arc::new(HostDisk::open(&self.root)?);
        Ok(LuksData::new(disk, DataGate::closed(), self.device.clone(), self.security))
    }

    fn keys(&self, cluster: u8) -> Option<UnlockKeys> {
        let keys = UnlockKeys { node: Secret32::new([0x4e; 32]), cluster: Secret32::new([cluster; 32]) };
        (self.security != StorageSecurity::Insecure).then_some(keys)
    }

    fn say(&self, what: &str) {
        println!("{:>8} ms  {what}", self.started.elapsed().as_millis());
    }

    fn file(&self) -> PathBuf {
        self.root.join("data/node/kept")
    }

    async fn look(&self, data: &LuksData) -> Result<Found, DataError> {
        let found = data.prepare(&progress()).await?;
        self.say(&format!("found {found:?}"));
        Ok(found)
    }

    async fn format(&self, data: &LuksData) -> Outcome {
        expect(self.look(data).await? == Found::Nothing, "the device is blank")?;
        expect(
            matches!(data.open(NODE, self.keys(1).as_ref(), &progress()).await, Err(DataError::NotFormatted { .. })),
            "it does not open",
        )?;
        data.format(permit(), NODE, self.keys(1).as_ref(), &progress()).await?;
        self.say("formatted");
        data.open(NODE, self.keys(1).as_ref(), &progress()).await?;
        self.say("opened");
        let disk = HostDisk::open(&self.root)?;
        durable::write(&disk, "check", &DiskPath::parse("data/node/kept")?, 0o600, b"kept")?;
        let content = vec![0x6b_u8; 1 << 20];
        for number in 0..32 {
            let path = format!("data/node/large{number}");
            durable::write(&disk, "check", &DiskPath::parse(&path)?, 0o600, &content)?;
        }
        self.say("written");
        Ok(())
    }

    async fn resume(&self, data: &LuksData) -> Outcome {
        expect(
            !matches!(self.look(data).await?, Found::Foreign { .. }),
            "a format that was cut off is not taken for foreign",
        )?;
        // A blank device is nobody's, and another node might as well have it.
        if data.prepare(&progress()).await? != Found::Nothing {
            let other = data.format(permit(), OTHER, self.keys(1).as_ref(), &progress()).await;
            expect(matches!(other, Err(DataError::OtherNode { .. })), "another node does not go on with it")?;
        }
        data.format(permit(), NODE, self.keys(1).as_ref(), &progress()).await?;
        data.open(NODE, self.keys(1).as_ref(), &progress()).await?;
        let disk = HostDisk::open(&self.root)?;
        durable::write(&disk, "check", &DiskPath::parse("data/node/kept")?, 0o600, b"kept")?;
        Ok(())
    }

    /// Opens with the second key if it opens, as after a rotation, else with the first.
    async fn open(&self, data: &LuksData) -> Outcome {
        self.look(data).await?;
        let keys = match (self.keys(2), self.keys(1)) {
            (Some(second), first) => {
                if data.test_open(&second).await? {
                    Some(second)
                } else {
                    first
                }
            }
            (None, _) => None,
        };
        self.say("tested the keys");
        data.open(NODE, keys.as_ref(), &progress()).await?;
        self.say("opened");
        expect(std::fs::read(self.file())? == b"kept", "what was written is there")?;
        Ok(())
    }

    async fn life(&self) -> Outcome {
        let data = self.data()?;
        self.format(&data).await?;
        if let (Some(first), Some(second), Some(third)) = (self.keys(1), self.keys(2), self.keys(3)) {
            data.add_key(&first, &second).await?;
            expect(data.test_open(&first).await? && data.test_open(&second).await?, "both keys open it")?;
            expect(!data.test_open(&third).await?, "another key does not")?;
            self.say("added a key");
            data.remove_others(&second).await?;
            expect(!data.test_open(&first).await? && data.test_open(&second).await?, "only the second key opens it")?;
            self.say("removed a key");
            data.close().await?;
            self.say("closed");
            let refused = data.open(NODE, Some(&first), &progress()).await;
            expect(matches!(refused, Err(DataError::WrongKeys { .. })), "the removed key does not open it")?;
        } else {
            data.close().await?;
        }
        expect(!self.file().exists(), "closed, nothing is there")?;
        let keys = self.keys(2);
        let refused = data.open(OTHER, keys.as_ref(), &progress()).await;
        expect(matches!(refused, Err(DataError::OtherNode { .. })), "another node does not get it")?;
        self.open(&data).await?;
        data.close().await?;
        self.open(&data).await?;
        data.close().await?;
        self.say("closed");
        Ok(())
    }

    async fn grown(&self) -> Outcome {
        let data = self.data()?;
        self.open(&data).await?;
        let device = polis_disks::Device::open(&self.device)?.size();
        let deadline = Instant::now() + GROWTH_PATIENCE;
        loop {
            let covered = rustix::fs::statvfs(self.root.join("data")).map(|now| now.f_blocks * now.f_frsize)?;
            self.say(&format!("covers {covered} of {device} bytes"));
            if covered > device / 4 * 3 {
                return Ok(data.close().await?);
            }
            expect(Instant::now() < deadline, "it grows over the device")?;
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        }
    }

    async fn many(&self) -> Outcome {
        let data = self.data()?;
        self.open(&data).await?;
        let directory = self.root.join("data/etcd/data/many");
        let existed = directory.exists();
        if existed {
            let names = std::fs::read_dir(&directory)?.count();
            expect(names == MANY, &format!("all {MANY} files are there: {names}"))?;
            self.say("all files are there");
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir(&directory)?;
        for number in 0..MANY {
            std::fs::File::create_new(directory.join(format!("a-file-with-a-long-name-{number:040}")))?;
        }
        rustix::fs::fsync(std::fs::File::open(&directory)?)?;
        self.say("flushed");
        // The power fails, or whoever has started this ends it.
        loop {
            std::thread::park();
        }
    }

    async fn step(&self, step: &str) -> Outcome {
        match step {
            "life" => self.life().await,
            "format" => self.format(&self.data()?).await,
            "resume" => self.resume(&self.data()?).await,
            "open" => self.open(&self.data()?).await,
            "grown" => self.grown().await,
            "many" => self.many().await,
            "look" => Ok(self.look(&self.data()?).await.map(drop)?),
            other => Err(format!("no step is called {other}").into()),
        }
    }
}

fn expect(holds: bool, what: &str) -> Outcome {
    if holds { Ok(()) } else { Err(format!("it does not hold that {what}").into()) }
}

fn permit() -> FormatPermit {
    let intent = Intent {
        parameters: b"parameters".to_vec(),
        node_key: Secret32::new([1; 32]),
        node_public_key: [2; 32],
        join_key: Secret32::new([3; 32]),
        share_key: Secret32::new([4; 32]),
        storage_security: Some(StorageSecurity::AuthenticatedEncrypted),
    };
    Journal::new(intent).permit_format().expect("a new journal permits it")
}

fn progress() -> ProgressSender {
    ProgressSender::new(Progress::default())
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, device, security, step] = &*arguments else {
        eprintln!(
            "usage: luks_check ROOT DEVICE insecure|encrypted|authenticated life|format|resume|open|grown|many|look"
        );
        std::process::exit(2);
    };
    let security = match &**security {
        "insecure" => StorageSecurity::Insecure,
        "encrypted" => StorageSecurity::Encrypted,
        _ => StorageSecurity::AuthenticatedEncrypted,
    };
    let check = Check { root: root.into(), device: Path::new(device).to_owned(), security, started: Instant::now() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
    let outcome = runtime.block_on(check.step(step));
    match outcome {
        Ok(()) => println!("luks_check {step}: ok"),
        Err(error) => {
            println!("luks_check {step}: failed: {}", chain(&*error));
            std::process::exit(1);
        }
    }
}
