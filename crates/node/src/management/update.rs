//! What an UpdateNode call asks for, and what its outcome is for whoever called (metropolis.md J.2).

use polis_proto::api::{ActivationMode, UpdateNodeRequest};
use polis_update::{ImageReference, LoadError, SlotsError};
use tonic::Status;

use crate::update::{OrderError, explain};

/// When the image is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// At the next start, whenever that is.
    Later,
    /// At once, through the firmware.
    Restart,
    /// At once, without the firmware.
    LoadedKernel,
}

/// What is to be done.
///
/// # Errors
///
/// INVALID_ARGUMENT when the mode is not set, or the image is not named with its digest.
pub(super) fn order(request: UpdateNodeRequest) -> Result<(ImageReference, Activation), Status> {
    let activation = match ActivationMode::try_from(request.activation_mode) {
        Ok(ActivationMode::None) => Activation::Later,
        Ok(ActivationMode::Reboot) => Activation::Restart,
        Ok(ActivationMode::Kexec) => Activation::LoadedKernel,
        Ok(ActivationMode::Invalid) | Err(_) => {
            return Err(Status::invalid_argument(format!(
                "activation_mode is {}, and must be one of none, reboot and kexec",
                request.activation_mode
            )));
        }
    };
    let image =
        request.os_image.ok_or_else(|| Status::invalid_argument("os_image, the image to install, is missing"))?;
    let reference = ImageReference::new(&image.scheme, &image.host, &image.repository, &image.tag, &image.digest);
    let reference = reference.map_err(|error| Status::invalid_argument(format!("os_image names no image: {error}")))?;
    Ok((reference, activation))
}

/// That a daemon has no image.
pub(super) fn no_machine() -> Status {
    Status::failed_precondition(
        "this node runs as a daemon: its version is changed by whatever installed Polis on this machine, and a restart",
    )
}

/// An order that was not carried out.
pub(super) fn refusal(error: &OrderError) -> Status {
    let text = explain(error);
    match error {
        OrderError::Busy => Status::aborted(text),
        OrderError::Volatile
        | OrderError::Slots(SlotsError::Refused(_) | SlotsError::NoNext)
        | OrderError::Load(LoadError::LockedDown | LoadError::Parts(_)) => Status::failed_precondition(text),
        OrderError::Load(LoadError::NotOffered) => Status::unimplemented(text),
        OrderError::Fetch(_)
        | OrderError::ReadOnly { .. }
        | OrderError::Selected(_)
        | OrderError::Slots(
            SlotsError::NoRoom { .. } | SlotsError::FreeSpace(_) | SlotsError::Disk(_) | SlotsError::ReadBack { .. },
        )
        | OrderError::Load(LoadError::Kernel(_)) => Status::unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use polis_image::slots::{PlanRefused, Slot};
    use polis_proto::api::OsImageRef;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_request_must_say_what_and_when() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let image = |digest: &str| {
            Some(OsImageRef {
                scheme: "http".into(),
                host: "192.0.2.1:5000".into(),
                repository: "polis".into(),
                tag: "v1".into(),
                digest: digest.into(),
            })
        };
        for (activation_mode, os_image, expected) in [
            (1, image(&digest), Ok(Activation::Later)),
            (2, image(&digest), Ok(Activation::Restart)),
            (3, image(&digest), Ok(Activation::LoadedKernel)),
            (0, image(&digest), Err("activation_mode")),
            (9, image(&digest), Err("activation_mode")),
            (2, None, Err("missing")),
            (2, image(""), Err("digest")),
            (2, image("sha256:00"), Err("digest")),
            (2, Some(OsImageRef { digest: digest.clone(), ..OsImageRef::default() }), Err("host")),
        ] {
            let request = UpdateNodeRequest { activation_mode, os_image };
            match (order(request), expected) {
                (Ok((reference, activation)), Ok(expected)) => {
                    assert_eq!(activation, expected);
                    assert_eq!(reference.to_string(), format!("http://192.0.2.1:5000/polis:v1@{digest}"));
                }
                (Err(status), Err(text)) => {
                    assert!(status.code() == Code::InvalidArgument && status.message().contains(text), "{status:?}");
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn outcomes_have_their_codes() {
        let slots = |error| OrderError::Slots(error);
        for (error, code) in [
            (OrderError::Busy, Code::Aborted),
            (OrderError::Volatile, Code::FailedPrecondition),
            (OrderError::ReadOnly { reason: "r".into() }, Code::Unavailable),
            (slots(SlotsError::Refused(PlanRefused::OnTrial { slot: Slot::B })), Code::FailedPrecondition),
            (slots(SlotsError::NoRoom { needed: 2, free: 1 }), Code::Unavailable),
            (OrderError::Load(LoadError::NotOffered), Code::Unimplemented),
            (OrderError::Load(LoadError::LockedDown), Code::FailedPrecondition),
        ] {
            assert_eq!(refusal(&error).code(), code, "{error:?}");
        }
    }
}
