//! What the build script makes of the option on an RPC, and what it refuses.

#[path = "../build/authorization.rs"]
mod authorization;

use std::path::Path;

use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};
use protox::{Compiler, Error};

const SCHEMA: &str = "test.proto";

/// A schema that is nowhere but in memory.
struct Memory(String);

impl FileResolver for Memory {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        if name == SCHEMA { File::from_source(name, &self.0) } else { Err(Error::file_not_found(name)) }
    }
}

/// The table for a service with one RPC `Call`, which has this body.
fn table(body: &str) -> Result<String, String> {
    let source = format!(
        "syntax = \"proto3\";
        package test;
        import \"metropolis/proto/ext/authorization.proto\";
        message Empty {{}}
        service Service {{
          rpc Call(Empty) returns (stream Empty) {{ {body} }}
        }}"
    );
    let mut resolver = ChainFileResolver::new();
    resolver.add(Memory(source));
    resolver.add(IncludeFileResolver::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.open_file(SCHEMA).unwrap();
    authorization::table(&compiler.descriptor_pool())
}

/// The table for the RPC with this option.
fn with_option(value: &str) -> Result<String, String> {
    table(&format!("option (metropolis.proto.ext.authorization) = {{ {value} }};"))
}

#[test]
fn an_option_becomes_an_entry() {
    let entry = |authorization: &str| {
        format!(
            "&[\n    Method {{ path: \"/test.Service/Call\", service: \"test.Service\", name: \"Call\", \
             authorization: {authorization}, client_streaming: false, server_streaming: true }},\n]\n"
        )
    };
    assert_eq!(with_option("allow_unauthenticated: true"), Ok(entry("Authorization::AllowUnauthenticated")));
    assert_eq!(
        with_option("need: PERMISSION_READ_NODE_LOGS need: PERMISSION_UPDATE_NODE"),
        Ok(entry("Authorization::Need(&[Permission::ReadNodeLogs, Permission::UpdateNode])"))
    );
}

#[test]
fn an_rpc_that_does_not_say_who_may_call_it_is_refused() {
    let problem = table("").unwrap_err();
    assert_eq!(problem, "/test.Service/Call: has no option metropolis.proto.ext.authorization");
}

#[test]
fn an_option_that_does_not_decide_is_refused() {
    let cases = [
        ("", "neither need nor allow_unauthenticated"),
        ("allow_unauthenticated: false", "neither need nor allow_unauthenticated"),
        ("need: PERMISSION_UPDATE_NODE allow_unauthenticated: true", "both need and allow_unauthenticated"),
        ("need: PERMISSION_UNSPECIFIED", "needs PERMISSION_UNSPECIFIED"),
        ("need: PERMISSION_UPDATE_NODE need: PERMISSION_UNSPECIFIED", "needs PERMISSION_UNSPECIFIED"),
    ];
    for (option, expected) in cases {
        let problem = with_option(option).unwrap_err();
        assert!(problem.starts_with("/test.Service/Call: ") && problem.contains(expected), "{option}: {problem}");
    }
}
