//! Certificates of this crate and of another tool (OpenSSL's command line), each judged by the other side's rules.

mod damaged;
mod ephemeral;
mod foreign_authorities;
mod foreign_leaves;
mod openssl;
mod ours;
mod owner_key;
mod revocation;
