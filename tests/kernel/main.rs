//! Real code in a kernel: what a script sees, what limits show, and what survives a copy of the kernel.

#[path = "../fixture/mod.rs"]
mod fixture;

mod copies;
mod folders;
mod links;
mod packages;
mod requests;
