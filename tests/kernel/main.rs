//! Real code in a kernel: what a script sees, what limits show, and what survives a copy of the kernel.

#[path = "../fixture/mod.rs"]
mod fixture;

mod asyncio;
mod copies;
mod environment;
mod exits;
mod folders;
mod limits;
mod links;
mod packages;
mod patching;
mod prints;
mod requests;
mod results;
mod sources;
mod spawn;
mod stdin;
