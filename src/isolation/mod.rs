//! Isolation: how a sandbox is made of namespaces, cgroups, an overlay, identity and filters.

pub mod apart;
pub mod cgroup;
pub mod channel;
mod dial;
mod error;
pub(crate) mod filework;
pub mod glob;
pub mod grant;
pub mod host;
mod host_root;
mod identity;
mod inbox;
pub(crate) mod init;
mod listener;
mod migrations;
pub mod nursery;
pub mod posture;
mod rootfs;
pub mod seccomp;
pub mod spawner;
pub mod spec;
pub(crate) mod sys;
pub(crate) mod terminal;
pub mod view;

pub use error::{Context, Error};
