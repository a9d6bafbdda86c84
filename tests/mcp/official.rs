//! The official client from PyPI, in both generations of the protocol.

use std::path::Path;
use std::process::Command;

use crate::clients::{CLIENTS, FLOW, python};
use crate::fixture::program::run;
use crate::fixture::{Launch, Service};

#[track_caller]
fn drive(service: &Service, key: &[&str]) {
    let mut flow = Command::new(python());
    flow.arg(Path::new(CLIENTS).join("mcp_flow.py"))
        .arg(format!("http://{}/mcp", service.address))
        .args(key);
    let ran = run(&mut flow, FLOW);
    println!("{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}

#[test]
fn the_official_client_does_everything_with_a_key() {
    let service = Service::launch(&Launch {
        config: "server.api_keys = ['a-key']",
        preload: true,
        ..Launch::default()
    });
    drive(&service, &["a-key"]);
}
