//! What the supervisor sees and reaches of servers inside is of one sandbox.

use sandcell::isolation::spec::Ablation;

use crate::Place;
use crate::laboratory::Laboratory;

const PORT: u16 = 5002;

/// Ports of a sandbox beside one that listens.
fn seen_beside_a_server(laboratory: &Laboratory) -> Vec<u16> {
    let (server, neighbour) = (laboratory.create(), laboratory.create());
    let listen = format!("import socket\ns = socket.create_server(('127.0.0.1', {PORT}))");
    server.python(&listen);
    assert_eq!(server.ports(), [PORT]);
    neighbour.ports()
}

#[test]
fn ports_are_those_of_one_sandbox() {
    assert!(seen_beside_a_server(&Laboratory::start()).is_empty());
    let shared = Laboratory::without(Ablation {
        no_netns: true,
        ..Ablation::default()
    });
    assert_eq!(seen_beside_a_server(&shared), [PORT], "nothing is noticed");
}

#[test]
fn a_dial_reaches_one_sandbox_and_never_its_way_out() {
    let laboratory = Laboratory::start();
    let (server, neighbour) = (laboratory.create(), laboratory.create());
    server.python(&format!(
        "import socket\n\
         s = socket.create_server(('127.0.0.1', {PORT}))\n\
         p = socket.create_server(('127.0.0.1', 3128))"
    ));
    assert_eq!(server.dial(PORT), Ok(()));
    assert_eq!(neighbour.dial(PORT), Err("port_closed"));
    assert_eq!(server.dial(3128), Err("invalid_field"));
    assert_eq!(server.ports(), [PORT]);
}
