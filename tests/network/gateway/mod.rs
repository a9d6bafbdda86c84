//! The package gateway, without sandboxes: a small server on loopback around it.

mod fake;
mod files;
mod pages;
mod real;
mod secure;
mod serving;
