//! The wire contract: messages generated from the schemas in `proto/`, and nothing else.
//!
//! Packages under `metropolis`, `osbase` and `version` are Metropolis' own, field for field; packages under `polis` are
//! ours. Messages that carry keys have no `Debug`, so that they cannot reach a log.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "generated; the schemas carry the documentation")]
#![allow(clippy::all, reason = "generated")]

macro_rules! package {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

pub mod metropolis {
    pub mod proto {
        pub mod common {
            package!("metropolis.proto.common");
        }
        pub mod api {
            package!("metropolis.proto.api");
        }
    }
    pub mod node {
        pub mod core {
            pub mod curator {
                pub mod proto {
                    pub mod private {
                        package!("metropolis.node.core.curator.proto.private");
                    }
                }
            }
        }
    }
}

pub mod osbase {
    pub mod net {
        pub mod proto {
            package!("osbase.net.proto");
        }
    }
}

pub mod version {
    pub mod spec {
        package!("version.spec");
    }
}

pub mod polis {
    pub mod storage {
        pub mod v1 {
            package!("polis.storage.v1");
        }
    }
}

pub use metropolis::node::core::curator::proto::private as curator_private;
pub use metropolis::proto::{api, common};
pub use polis::storage::v1 as storage;
