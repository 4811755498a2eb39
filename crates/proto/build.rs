//! Compiles the schemas with protox: no protoc is needed.

#[path = "build/authorization.rs"]
mod authorization;

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::{fs, io};

use protox::Compiler;

/// Every schema; what one imports comes with it.
const SCHEMAS: [&str; 21] = [
    "google/rpc/status.proto",
    "metropolis/node/core/curator/proto/api/api.proto",
    "metropolis/node/core/curator/proto/private/lock.proto",
    "metropolis/node/core/curator/proto/private/storage.proto",
    "metropolis/proto/api/aaa.proto",
    "metropolis/proto/api/configuration.proto",
    "metropolis/proto/api/management.proto",
    "metropolis/proto/common/common.proto",
    "metropolis/proto/ext/authorization.proto",
    "metropolis/proto/private/private.proto",
    "osbase/logtree/proto/logtree.proto",
    "osbase/net/proto/net.proto",
    "polis/cluster/v1/cluster.proto",
    "polis/curator/v1/state.proto",
    "polis/enrolment/v1/enrolment.proto",
    "polis/node/v1/node.proto",
    "polis/recovery/v1/recovery.proto",
    "polis/rpc/v1/detail.proto",
    "polis/storage/v1/storage.proto",
    "polis/unlock/v1/unlock.proto",
    "version/spec/spec.proto",
];

/// Messages with secrets in them, and what is nested in them: they must not be printable, so their types get no Debug.
/// A message that contains one of them has to be here as well, or the crate does not compile.
const SECRET: [&str; 18] = [
    ".metropolis.node.core.curator.proto.api.CommitNodeRequest",
    ".metropolis.node.core.curator.proto.api.JoinNodeResponse",
    ".metropolis.node.core.curator.proto.api.RegisterNodeRequest",
    ".metropolis.node.core.curator.proto.private.Node",
    ".metropolis.node.core.curator.proto.private.RegisterTicket",
    ".metropolis.proto.api.EscrowRequest",
    ".metropolis.proto.api.GetRegisterTicketResponse",
    ".metropolis.proto.api.NodeParameters",
    ".metropolis.proto.private.SealedConfiguration",
    ".polis.cluster.v1.RotateRegisterTicketResponse",
    ".polis.enrolment.v1.StoreUnlockKeyRequest",
    ".polis.recovery.v1.Blob.Content",
    ".polis.storage.v1.Journal",
    ".polis.storage.v1.NodeCredentials",
    ".polis.storage.v1.PeerCredentials",
    ".polis.unlock.v1.RecoverRequest",
    ".polis.unlock.v1.Share",
    ".polis.unlock.v1.UnlockResponse",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut compiler = Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(SCHEMAS)?;

    write(out.join("methods.rs"), authorization::table(&compiler.descriptor_pool())?.as_bytes())?;
    write(out.join("descriptors.bin"), &compiler.encode_file_descriptor_set())?;

    let mut config = prost_build::Config::new();
    config.skip_debug(SECRET);
    config.enable_type_names();
    // The domain that every implementation of protobuf puts before the name of a type in an Any.
    config.type_name_domain(["."], "type.googleapis.com");
    // The comments of the schemas become documentation.
    let descriptors = compiler.include_source_info(true).file_descriptor_set();
    tonic_prost_build::configure().build_transport(false).compile_fds_with_config(descriptors, config)?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a build that was cut short runs its script again")]
fn write(path: PathBuf, content: &[u8]) -> io::Result<()> {
    fs::write(path, content)
}
