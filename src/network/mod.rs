//! What leaves a sandbox: the policy, the proxy that enforces it, and the package index.
//!
//! A sandbox has no route to anywhere. Init makes one listening socket inside its network namespace and
//! passes it up; what is accepted there is served here, outside, by [`Egress`]: requests for a path of
//! the listener itself go to the package [`Gateway`], everything else is a proxy request that the
//! [`Policy`] decides on.

mod address;
mod egress;
pub mod gateway;
mod policy;
mod refusal;
mod rule;
mod target;

pub use egress::{Egress, Index, Link, Refused, Resolver, Stats};
pub use gateway::{Gateway, INDEX_PATH, is_project_name, normalize};
pub use policy::{MAX_RULES, Policy};
pub use refusal::{Code, Refusal};
pub use rule::Rule;
pub use target::{Host, Target};

/// Port of the listener inside every sandbox that has one, on 127.0.0.1.
pub const PROXY_PORT: u16 = 3128;
