//! What a Reboot call means for a node that is a daemon (metropolis.md J.2).

use polis_proto::api::RebootRequest;
use polis_proto::api::reboot_request::{NextBoot, Type};
use tonic::Status;

use crate::power::End;

/// What is to be done.
///
/// # Errors
///
/// INVALID_ARGUMENT for what cannot be wanted at the same time, UNIMPLEMENTED with the reason for what a daemon cannot do, and for
/// values that this build does not know.
pub(super) fn end(request: RebootRequest) -> Result<End, Status> {
    let kind = match Type::try_from(request.r#type) {
        Ok(kind @ (Type::Firmware | Type::Kexec | Type::PowerOff)) => kind,
        Ok(Type::Invalid) | Err(_) => {
            return Err(Status::unimplemented(format!("type {} is not one that this node knows", request.r#type)));
        }
    };
    match (NextBoot::try_from(request.next_boot), kind) {
        (Ok(NextBoot::StartNormal), Type::PowerOff) => Ok(End::Stop),
        // A daemon has one way to start again.
        (Ok(NextBoot::StartNormal), Type::Firmware | Type::Kexec | Type::Invalid) => Ok(End::Restart),
        (Ok(NextBoot::StartFirmwareUi), Type::Kexec) => Err(Status::invalid_argument(
            "a start that goes straight into the next kernel does not pass the firmware's menu: choose one of the two",
        )),
        (Ok(NextBoot::StartFirmwareUi), Type::Firmware | Type::PowerOff | Type::Invalid) => Err(Status::unimplemented(
            "this node runs as a daemon on a machine that is not its own, and does not touch its firmware",
        )),
        (Ok(NextBoot::StartRollback), Type::Firmware | Type::Kexec | Type::PowerOff | Type::Invalid) => {
            Err(Status::unimplemented(
                "this node runs as a daemon and has one version installed: the earlier one is brought back by whatever installed \
                 Polis on this machine",
            ))
        }
        (Err(_), Type::Firmware | Type::Kexec | Type::PowerOff | Type::Invalid) => {
            Err(Status::unimplemented(format!("next_boot {} is not one that this node knows", request.next_boot)))
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
        let table = [
            (firmware, normal, Ok(End::Restart)),
            (kexec, normal, Ok(End::Restart)),
            (off, normal, Ok(End::Stop)),
            (firmware, rollback, Err(Code::Unimplemented)),
            (kexec, rollback, Err(Code::Unimplemented)),
            (off, rollback, Err(Code::Unimplemented)),
            (firmware, menu, Err(Code::Unimplemented)),
            (kexec, menu, Err(Code::InvalidArgument)),
            (off, menu, Err(Code::Unimplemented)),
            (0, normal, Err(Code::Unimplemented)),
            (99, menu, Err(Code::Unimplemented)),
            (firmware, 99, Err(Code::Unimplemented)),
            (off, -1, Err(Code::Unimplemented)),
        ];
        for (r#type, next_boot, expect) in table {
            let got = end(RebootRequest { r#type, next_boot }).map_err(|status| status.code());
            assert_eq!(got, expect, "type {type}, next boot {next_boot}");
        }
    }
}
