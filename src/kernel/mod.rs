//! Kernels: the protocol, the zygote that forks them, and executions.

pub mod protocol;
