//! What leaves a sandbox: over real sockets in network namespaces that the tests make, and the package
//! index as sandboxes see it.

#[path = "../fixture/mod.rs"]
mod fixture;

mod changes;
mod client;
mod forwarding;
mod gateway;
mod lab;
mod limits;
mod log;
mod refusals;
mod throughput;
