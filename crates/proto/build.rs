//! Compiles the schemas with protox: no protoc is needed.

use std::io::Result;

const SCHEMAS: [&str; 4] = [
    "metropolis/node/core/curator/proto/private/storage.proto",
    "metropolis/proto/api/configuration.proto",
    "polis/storage/v1/storage.proto",
    "version/spec/spec.proto",
];

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(SCHEMAS, ["proto"]).map_err(std::io::Error::other)?;
    let mut config = prost_build::Config::new();
    // Messages with keys in them must not be printable; their types get no Debug.
    config.skip_debug([
        ".polis.storage.v1.Journal",
        ".polis.storage.v1.NodeCredentials",
        ".polis.storage.v1.PeerCredentials",
        ".metropolis.node.core.curator.proto.private.Node",
        ".metropolis.proto.api.NodeParameters",
    ]);
    config.compile_fds(descriptors)
}
