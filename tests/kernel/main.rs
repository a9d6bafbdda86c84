//! Real code in a kernel: what a script sees, what limits show, and what survives a copy of the kernel.

#[path = "../fixture/mod.rs"]
mod fixture;

mod copies;
mod environment;
mod limits;
