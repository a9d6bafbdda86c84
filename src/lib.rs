//! sandcell: warm, isolated, stateful Python sandboxes on bare Linux.

pub mod api;
pub mod cli;
pub mod config;
pub mod isolation;
pub mod kernel;
pub mod mirror;
pub mod supervisor;
