//! The wire contract: messages, clients and servers generated from the schemas in `proto/`, and who may call which RPC.
//!
//! Packages under `metropolis`, `osbase` and `version` are Metropolis' own, field for field; packages under `polis` are
//! ours, and `google.rpc` is gRPC's. Messages that carry secrets have no `Debug`, so that they cannot reach a log.
//!
//! One service of Metropolis is missing: `NodeDebugService` of `metropolis.proto.api`. Its name and those of its
//! messages are reserved, and no node serves it.

#![forbid(unsafe_code)]

macro_rules! package {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

pub mod authorization;

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated; the schemas carry the documentation")]
pub mod google {
    pub mod rpc {
        package!("google.rpc");
    }
}

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated; the schemas carry the documentation")]
pub mod metropolis {
    pub mod proto {
        pub mod api {
            package!("metropolis.proto.api");
        }
        pub mod common {
            package!("metropolis.proto.common");
        }
        pub mod ext {
            package!("metropolis.proto.ext");
        }
        pub mod private {
            package!("metropolis.proto.private");
        }
    }
    pub mod node {
        pub mod core {
            pub mod curator {
                pub mod proto {
                    pub mod api {
                        package!("metropolis.node.core.curator.proto.api");
                    }
                    pub mod private {
                        package!("metropolis.node.core.curator.proto.private");
                    }
                }
            }
        }
    }
}

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated; the schemas carry the documentation")]
pub mod osbase {
    pub mod logtree {
        pub mod proto {
            package!("osbase.logtree.proto");
        }
    }
    pub mod net {
        pub mod proto {
            package!("osbase.net.proto");
        }
    }
}

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated; the schemas carry the documentation")]
pub mod polis {
    pub mod cluster {
        pub mod v1 {
            package!("polis.cluster.v1");
        }
    }
    pub mod curator {
        pub mod v1 {
            package!("polis.curator.v1");
        }
    }
    pub mod enrolment {
        pub mod v1 {
            package!("polis.enrolment.v1");
        }
    }
    pub mod node {
        pub mod v1 {
            package!("polis.node.v1");
        }
    }
    pub mod recovery {
        pub mod v1 {
            package!("polis.recovery.v1");
        }
    }
    pub mod rpc {
        pub mod v1 {
            package!("polis.rpc.v1");
        }
    }
    pub mod storage {
        pub mod v1 {
            package!("polis.storage.v1");
        }
    }
    pub mod unlock {
        pub mod v1 {
            package!("polis.unlock.v1");
        }
    }
}

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated; the schemas carry the documentation")]
pub mod version {
    pub mod spec {
        package!("version.spec");
    }
}

pub use google::rpc as google_rpc;
pub use metropolis::node::core::curator::proto::{api as curator_api, private as curator_private};
pub use metropolis::proto::{api, common, ext, private as node_private};
pub use osbase::logtree::proto as logtree;
pub use polis::cluster::v1 as cluster;
pub use polis::curator::v1 as curator_state;
pub use polis::enrolment::v1 as enrolment;
pub use polis::node::v1 as node_api;
pub use polis::recovery::v1 as recovery;
pub use polis::rpc::v1 as rpc_detail;
pub use polis::storage::v1 as storage;
pub use polis::unlock::v1 as unlock;

/// All schemas with all that they import, as a serialized `google.protobuf.FileDescriptorSet`, options included.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
