//! Beginnings and ends: of sandboxes, of the service, of `sandcell run`.

#[path = "../fixture/mod.rs"]
mod fixture;

mod cycles;
mod death;
mod expiry;
mod run;
mod stop;
