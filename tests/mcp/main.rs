//! MCP, driven by clients that others wrote and, where bytes matter, by hand.

#[path = "../fixture/mod.rs"]
mod fixture;

mod clients;
mod official;
mod rpc;
mod sets;
