//! Does one thing to a disk and prints what came of it, one line each: for a virtual machine, whose kernel knows partitions.
//!
//! | arguments | what it does |
//! |---|---|
//! | `layout DISK MIB` | lays out a disk with an EFI system partition of so many mebibytes |
//! | `grow DISK` | has the data partition take what is free, and says what the kernel knows of it before and after |
//! | `install IMAGE DISK` | installs an image, which may be another disk, whatever is on the disk |
//! | `boot` | finds the disk that was booted from, and its partitions |
//!
//! The last line is `disks_check: ok`, or `disks_check: failed: REASON`.

use std::error::Error;
use std::path::Path;

use polis_disks::{
    BootDisk, Device, DiskLayout, Growth, Guids, InstallPlan, InstallRequest, LayoutRequest, MIB, Places, Role, Table,
};

fn layout(disk: &str, mebibytes: &str) -> Result<(), Box<dyn Error>> {
    let device = Device::open_exclusive(Path::new(disk))?;
    let layout = DiskLayout::plan(&LayoutRequest {
        disk_size: device.size(),
        sector_size: device.sector_size(),
        esp_size: mebibytes.parse::<u64>()? * MIB,
        least_data_size: MIB,
        guids: Guids::random(),
    })?;
    print!("{layout}");
    layout.write(&device)?;
    Ok(())
}

/// Sectors of 512 bytes of a partition, as the kernel knows them.
fn known(disk: &str, number: u32) -> String {
    let name = Path::new(disk).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = Places::default().sysfs.join(format!("block/{name}/{name}{number}/size"));
    std::fs::read_to_string(path).map_or_else(|error| error.to_string(), |text| text.trim_end().to_owned())
}

fn grow(disk: &str) -> Result<(), Box<dyn Error>> {
    let device = Device::open_writable(Path::new(disk))?;
    let table = Table::read(&device)?.ok_or("the disk has no table")?;
    match Growth::plan(&table)? {
        Growth::Nothing => println!("nothing to do"),
        Growth::Plan(plan) => {
            println!("{plan}");
            println!("the kernel knows {} sectors", known(disk, plan.number));
            println!("{:?}", plan.execute(&device)?);
            println!("the kernel knows {} sectors", known(disk, plan.number));
        }
    }
    Ok(())
}

fn install(image: &str, disk: &str) -> Result<(), Box<dyn Error>> {
    let request = InstallRequest { image: image.into(), disk: disk.into(), accept_loss: true };
    let plan = InstallPlan::new(&request, &Places::default())?;
    print!("{plan}");
    plan.execute(&Places::default(), |_| ())?;
    println!("the kernel knows {} and {} sectors", known(disk, 1), known(disk, 2));
    Ok(())
}

fn boot() -> Result<(), Box<dyn Error>> {
    let places = Places::default();
    let disk = BootDisk::find(&places)?;
    for role in [Role::Esp, Role::Data] {
        println!("{role}: {}", disk.find_role(&places, role)?.display());
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match *arguments {
        ["layout", disk, mebibytes] => layout(disk, mebibytes),
        ["grow", disk] => grow(disk),
        ["install", image, disk] => install(image, disk),
        ["boot"] => boot(),
        _ => Err("usage: disks_check layout DISK MIB | grow DISK | install IMAGE DISK | boot".into()),
    };
    match outcome {
        Ok(()) => println!("disks_check: ok"),
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text.push_str(&format!(": {error}"));
                source = error.source();
            }
            println!("disks_check: failed: {text}");
            std::process::exit(1);
        }
    }
}
