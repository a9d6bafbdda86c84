//! What leaves a sandbox: the package index as sandboxes see it.

#[path = "../fixture/mod.rs"]
mod fixture;

mod gateway;
