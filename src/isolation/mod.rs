//! What stands between code in a sandbox and the host.

pub mod seccomp;
