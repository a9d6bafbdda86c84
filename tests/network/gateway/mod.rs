//! The package gateway, without sandboxes: a small server on loopback around it.

mod real;
mod serving;
