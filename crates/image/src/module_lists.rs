//! Which kernel modules an image has. What one of them needs comes with it; what a kernel has built in is left out.

/// A module that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    /// Parameters to load it with.
    pub(crate) parameters: &'static str,
    /// Whether there is no image without it, module or built in.
    pub(crate) required: bool,
}

const fn required(name: &'static str) -> Wanted {
    Wanted { name, parameters: "", required: true }
}

const fn optional(name: &'static str) -> Wanted {
    Wanted { name, parameters: "", required: false }
}

/// What every machine needs, in the order in which it is loaded, before the drivers: a processor's own ciphers must be there before
/// anything asks for a cipher, or the slow ones are taken for good.
pub(crate) const ALWAYS: &[Wanted] = &[
    // Ciphers: XTS and GCM by the processor where it can, and by software.
    optional("aesni_intel"),
    required("xts"),
    required("ecb"),
    required("gcm"),
    required("ctr"),
    optional("ghash_clmulni_intel"),
    required("ghash_generic"),
    optional("crc32c_intel"),
    // How cryptsetup asks for ciphers.
    required("af_alg"),
    required("algif_skcipher"),
    required("algif_aead"),
    // Block devices that encrypt and authenticate.
    required("dm_mod"),
    required("dm_crypt"),
    required("dm_integrity"),
    // File systems, with what FAT needs for its names.
    required("xfs"),
    required("vfat"),
    required("nls_cp437"),
    required("nls_ascii"),
    optional("efivarfs"),
    // Where the kernel keeps its last words.
    optional("efi_pstore"),
    // Network devices without hardware.
    required("8021q"),
    required("bonding"),
    // The button of the case, and how it is heard of.
    optional("button"),
    optional("evdev"),
];

/// What a virtual machine may have.
pub(crate) const VIRTUAL_MACHINE: &[Wanted] = &[
    optional("virtio_pci"),
    optional("virtio_blk"),
    optional("virtio_scsi"),
    optional("virtio_net"),
    optional("virtio_console"),
    optional("virtio_rng"),
    optional("qemu_fw_cfg"),
    optional("i6300esb"),
];

/// What other machines may have: drivers of disks, networks, watchdogs and keyboards that need no firmware file.
pub(crate) const HARDWARE: &[Wanted] = &[
    optional("nvme"),
    optional("ahci"),
    optional("ata_piix"),
    optional("sd_mod"),
    optional("mpt3sas"),
    optional("megaraid_sas"),
    optional("smartpqi"),
    optional("xhci_pci"),
    optional("ehci_pci"),
    optional("usb_storage"),
    optional("uas"),
    optional("usbhid"),
    optional("hid_generic"),
    optional("sdhci_pci"),
    optional("sdhci_acpi"),
    optional("mmc_block"),
    optional("vmw_pvscsi"),
    optional("hv_vmbus"),
    optional("hv_storvsc"),
    optional("hv_netvsc"),
    optional("xen_blkfront"),
    optional("xen_netfront"),
    optional("vmxnet3"),
    optional("ena"),
    optional("gve"),
    optional("e1000"),
    optional("e1000e"),
    optional("igb"),
    optional("igc"),
    optional("ixgbe"),
    optional("i40e"),
    optional("ice"),
    optional("r8169"),
    optional("tg3"),
    optional("bnxt_en"),
    optional("mlx4_en"),
    optional("mlx5_core"),
    optional("atlantic"),
    optional("iTCO_wdt"),
    optional("wdat_wdt"),
    optional("sp5100_tco"),
    optional("tpm_crb"),
    optional("tpm_tis"),
];

/// The last of all: it takes the place of a watchdog only where no hardware has one.
pub(crate) const LAST: &[Wanted] = &[Wanted { name: "softdog", parameters: "", required: false }];
