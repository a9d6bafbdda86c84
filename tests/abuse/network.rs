//! Connections from inside, as many as a sandbox can make, against the service's own descriptors.

use serde_json::json;

use crate::fixture::{Launch, Service};

/// Descriptors of the service. What sandboxes may open (limits.open_files) cannot be more.
const DESCRIPTORS: usize = 1100;
/// Connections of one sandbox: three of them could take all.
const CONNECTIONS: usize = 400;

#[test]
fn connections_of_sandboxes_leave_the_service_descriptors() {
    let service = Service::launch(&Launch {
        config: &format!(
            "network.connections = {CONNECTIONS}\nnetwork.connections_per_second = 1000"
        ),
        descriptor_limit: Some(DESCRIPTORS),
        ..Launch::default()
    });
    let neighbour = service.create();
    let flood = format!(
        "import socket\nkept = []\n\
         for _ in range({CONNECTIONS}):\n    \
             try:\n        \
                 s = socket.create_connection(('127.0.0.1', 3128), 2)\n        \
                 s.sendall(b'GET /simple/ HTTP/1.1\\r\\n')\n        \
                 kept.append(s)\n    \
             except OSError: pass\n\
         print(len(kept))"
    );
    let attackers = [(); 3].map(|()| service.create_with(&json!({ "network": "packages" })));
    for attacker in &attackers {
        attacker.stdout(&flood);
    }
    let taken = service.process().descriptors().len();
    assert!(taken < DESCRIPTORS * 3 / 4, "{taken} of {DESCRIPTORS}");
    neighbour.assert_usable();
    service.create().assert_usable();
    service.assert_healthy();
    // Those that were too many are told of outside.
    let told = service.get(&attackers[2].path("network")).ok().json();
    let refusals = told["refusals"].to_string();
    assert!(refusals.contains("no connection left"), "{told}");
    for attacker in &attackers {
        attacker.stdout("for s in kept: s.close()");
        attacker.assert_usable();
    }
    let asked = "import time, urllib.request\n\
                 for _ in range(50):\n    \
                     try: print(urllib.request.urlopen('http://127.0.0.1:3128/simple/').status); break\n    \
                     except OSError: time.sleep(0.1)";
    assert_eq!(attackers[2].stdout(asked), "200\n");
}
