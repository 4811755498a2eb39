//! What a Reboot call means for a node that is a daemon, and for one that has a machine to itself (metropolis.md J.2).

use polis_proto::api::RebootRequest;
use polis_proto::api::reboot_request::{NextBoot, Type};
use tonic::Status;

use crate::power::End;

/// What the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// A process on a machine of somebody else.
    Daemon,
    /// The first process of a machine of its own.
    Machine {
        /// Its firmware can be asked to stop in its menu.
        has_firmware_menu: bool,
    },
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The other image is to be tried at the next start.
    pub(super) roll_back: bool,
    /// The kernel of the image that starts next is to be loaded.
    pub(super) load_kernel: bool,
    /// How the node ends.
    pub(super) end: End,
}

impl Plan {
    /// Nothing but an end.
    const fn end(end: End) -> Self {
        Self { roll_back: false, load_kernel: false, end }
    }

    /// An end, and the next kernel without the firmware.
    const fn next_kernel() -> Self {
        Self { roll_back: false, load_kernel: true, end: End::LoadedKernel }
    }
}

/// What is to be done.
///
/// # Errors
///
/// INVALID_ARGUMENT for what cannot be wanted at the same time, UNIMPLEMENTED with the reason for what the node cannot do, and for
/// values that this build does not know.
pub(super) fn plan(request: RebootRequest, host: Host) -> Result<Plan, Status> {
    let kind = match Type::try_from(request.r#type) {
        Ok(kind @ (Type::Firmware | Type::Kexec | Type::PowerOff)) => kind,
        Ok(Type::Invalid) | Err(_) => {
            return Err(Status::unimplemented(format!("type {} is not one that this node knows", request.r#type)));
        }
    };
    let Ok(next) = NextBoot::try_from(request.next_boot) else {
        return Err(Status::unimplemented(format!("next_boot {} is not one that this node knows", request.next_boot)));
    };
    match (next, kind, host) {
        (NextBoot::StartFirmwareUi, Type::Kexec, _) => Err(Status::invalid_argument(
            "a start that goes straight into the next kernel does not pass the firmware's menu: choose one of the two",
        )),
        (NextBoot::StartNormal, Type::PowerOff, _) => Ok(Plan::end(End::Stop)),
        // A daemon has one way to start again.
        (NextBoot::StartNormal, Type::Kexec, Host::Daemon) => Ok(Plan::end(End::Restart)),
        (NextBoot::StartNormal, Type::Kexec, Host::Machine { .. }) => Ok(Plan::next_kernel()),
        (NextBoot::StartNormal, Type::Firmware | Type::Invalid, _) => Ok(Plan::end(End::Restart)),
        (NextBoot::StartFirmwareUi, _, Host::Daemon) => Err(Status::unimplemented(
            "this node runs as a daemon on a machine that is not its own, and does not touch its firmware",
        )),
        (NextBoot::StartRollback, _, Host::Daemon) => Err(Status::unimplemented(
            "this node runs as a daemon and has one version installed: the earlier one is brought back by whatever installed \
             Polis on this machine",
        )),
        (NextBoot::StartRollback, Type::Firmware | Type::Invalid, Host::Machine { .. }) => {
            Ok(Plan { roll_back: true, ..Plan::end(End::Restart) })
        }
        (NextBoot::StartRollback, Type::Kexec, Host::Machine { .. }) => {
            Ok(Plan { roll_back: true, ..Plan::next_kernel() })
        }
        (NextBoot::StartRollback, Type::PowerOff, Host::Machine { .. }) => {
            Ok(Plan { roll_back: true, ..Plan::end(End::Stop) })
        }
        (NextBoot::StartFirmwareUi, Type::PowerOff, Host::Machine { .. }) => Err(Status::unimplemented(
            "the firmware is asked for its menu only together with a restart: choose one of the two",
        )),
        (NextBoot::StartFirmwareUi, _, Host::Machine { has_firmware_menu: false }) => {
            Err(Status::unimplemented("the firmware of this machine cannot be asked to stop in its menu"))
        }
        (NextBoot::StartFirmwareUi, Type::Firmware | Type::Invalid, Host::Machine { has_firmware_menu: true }) => {
            Ok(Plan::end(End::FirmwareMenu))
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn every_combination_has_its_answer() {
        let (firmware, kexec, off) = (Type::Firmware as i32, Type::Kexec as i32, Type::PowerOff as i32);
        let (normal, rollback, menu) =
            (NextBoot::StartNormal as i32, NextBoot::StartRollback as i32, NextBoot::StartFirmwareUi as i32);
        let (restart, stop, kernel) = (Plan::end(End::Restart), Plan::end(End::Stop), Plan::next_kernel());
        let back = |plan: Plan| Ok(Plan { roll_back: true, ..plan });
        let not_done = || Err(Code::Unimplemented);
        let table = [
            (firmware, normal, Ok(restart), Ok(restart)),
            (kexec, normal, Ok(restart), Ok(kernel)),
            (off, normal, Ok(stop), Ok(stop)),
            (firmware, rollback, not_done(), back(restart)),
            (kexec, rollback, not_done(), back(kernel)),
            (off, rollback, not_done(), back(stop)),
            (firmware, menu, not_done(), Ok(Plan::end(End::FirmwareMenu))),
            (kexec, menu, Err(Code::InvalidArgument), Err(Code::InvalidArgument)),
            (off, menu, not_done(), not_done()),
            (0, normal, not_done(), not_done()),
            (99, menu, not_done(), not_done()),
            (firmware, 99, not_done(), not_done()),
            (off, -1, not_done(), not_done()),
        ];
        for (r#type, next_boot, daemon, machine) in table {
            let got = |host| plan(RebootRequest { r#type, next_boot }, host).map_err(|status| status.code());
            assert_eq!(got(Host::Daemon), daemon, "type {type}, next boot {next_boot}");
            assert_eq!(got(Host::Machine { has_firmware_menu: true }), machine, "type {type}, next boot {next_boot}");
        }
        let request = RebootRequest { r#type: firmware, next_boot: menu };
        let refused = plan(request, Host::Machine { has_firmware_menu: false }).map_err(|status| status.code());
        assert_eq!(refused, Err(Code::Unimplemented));
    }
}
