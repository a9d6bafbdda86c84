//! Beginnings and ends: of sandboxes, of the service, of `sandcell run`.

#[path = "../fixture/mod.rs"]
mod fixture;

mod cycles;
mod death;
mod exhaustion;
mod expiry;
mod logging;
mod notify;
mod ps;
mod reload;
mod run;
mod stop;
