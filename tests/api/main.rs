//! The REST interface over a real service: what the seed's README shows, and every bad input.

#[path = "../fixture/mod.rs"]
mod fixture;

mod access;
mod archives;
mod bad_input;
mod checkpoints;
mod closing;
mod commands;
mod contexts;
mod cors;
mod docs;
mod document;
mod executions;
mod files;
mod filetree;
mod flows;
mod fuzz;
mod journal;
mod kernel_cases;
mod keys;
mod lifetimes;
mod mirrors;
mod network;
mod odd_requests;
mod output;
mod packages;
mod picture;
mod ports;
mod processes;
mod restore;
mod served;
mod traps;
mod uploads;
mod watch;
