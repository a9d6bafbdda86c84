//! What leaves a sandbox, over real sockets in network namespaces that the tests make.

mod changes;
mod client;
mod forwarding;
mod lab;
mod limits;
mod log;
mod refusals;
mod throughput;
