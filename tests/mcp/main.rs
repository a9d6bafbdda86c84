//! MCP, driven by clients that others wrote and, where bytes matter, by hand.

#[path = "../fixture/mod.rs"]
mod fixture;

mod call;
mod clients;
mod events;
mod node;
mod official;
mod resources;
mod rpc;
mod seeds;
mod sets;
mod stdio;
