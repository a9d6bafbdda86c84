//! What a service manager is told, over a socket as systemd has it.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::program::run;
use crate::fixture::{Launch, Service, temp_dir};

const SOON: Duration = Duration::from_secs(20);
const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/sandcell.service");

fn listen(address: &SocketAddr) -> UnixDatagram {
    let socket = UnixDatagram::bind_addr(address).expect("a socket can be made");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    socket
}

fn next(socket: &UnixDatagram) -> Vec<String> {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("a message comes");
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_service_says_when_it_is_ready_reloads_and_stops() {
    let dir = temp_dir();
    let path = dir.path().join("notify");
    let name = format!("sandcell-test-{}", std::process::id());
    for (spelled, address) in [
        (path.display().to_string(), SocketAddr::from_pathname(&path)),
        (format!("@{name}"), SocketAddr::from_abstract_name(&name)),
    ] {
        let socket = listen(&address.expect("an address"));
        let service = Service::launch(&Launch {
            env: &[("NOTIFY_SOCKET", &spelled)],
            ..Launch::default()
        });
        let ready = next(&socket);
        assert_eq!(ready[0], "READY=1");
        let status = format!("STATUS=serves http://{}", service.address);
        assert_eq!(ready[1], status);
        service.process().signal(Signal::HUP);
        let reloading = next(&socket);
        assert_eq!(reloading[0], "RELOADING=1");
        let time = reloading[1]
            .strip_prefix("MONOTONIC_USEC=")
            .expect("a time");
        let uptime = fs::read_to_string("/proc/uptime").expect("a file of the kernel's");
        let uptime: f64 = uptime
            .split(' ')
            .next()
            .expect("seconds")
            .parse()
            .expect("a number");
        let told = time.parse::<f64>().expect("a number") / 1e6;
        assert!((uptime - told).abs() < 60.0, "{uptime} {told}");
        assert_eq!(next(&socket), ["READY=1"]);
        service.end_with(Signal::TERM);
        assert_eq!(next(&socket), ["STOPPING=1"]);
    }
}

#[test]
fn a_watchdog_is_fed_in_time_and_only_where_there_is_one() {
    let dir = temp_dir();
    let path = dir.path().join("notify");
    let socket = listen(&SocketAddr::from_pathname(&path).expect("an address"));
    let spelled = path.display().to_string();
    let service = Service::launch(&Launch {
        env: &[("NOTIFY_SOCKET", &spelled), ("WATCHDOG_USEC", "400000")],
        ..Launch::default()
    });
    assert_eq!(next(&socket)[0], "READY=1");
    let begun = Instant::now();
    for _ in 0..5 {
        let before = Instant::now();
        assert_eq!(next(&socket), ["WATCHDOG=1"]);
        assert!(before.elapsed() < Duration::from_millis(400));
    }
    assert!(
        begun.elapsed() > Duration::from_millis(600),
        "it is no flood"
    );
    drop(service);
    // The negative control: another process's watchdog is none of ours.
    fs::remove_file(&path).expect("removed");
    let socket = listen(&SocketAddr::from_pathname(&path).expect("an address"));
    let _service = Service::launch(&Launch {
        env: &[
            ("NOTIFY_SOCKET", &spelled),
            ("WATCHDOG_USEC", "100000"),
            ("WATCHDOG_PID", "1"),
        ],
        ..Launch::default()
    });
    assert_eq!(next(&socket)[0], "READY=1");
    let silence = Some(Duration::from_millis(500));
    socket.set_read_timeout(silence).expect("a timeout");
    assert!(socket.recv(&mut [0; 64]).is_err());
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let verify = |unit: &Path| {
        run(
            Command::new("systemd-analyze").arg("verify").arg(unit),
            Duration::from_secs(60),
        )
    };
    // Where the program is installed is the packager's matter.
    let text = fs::read_to_string(UNIT).expect("the unit is there");
    let here = text.replace("/usr/local/bin/sandcell", crate::fixture::SANDCELL);
    let dir = temp_dir();
    let unit = dir.path().join("sandcell.service");
    fs::write(&unit, &here).expect("a file can be written");
    let told = verify(&unit);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(!told.stderr.contains("sandcell.service"), "{}", told.stderr);
    // The negative control.
    let wrong = here.replace("KillMode=mixed", "KillMood=mixed");
    fs::write(&unit, wrong).expect("a file can be written");
    assert!(verify(&unit).stderr.contains("KillMood"));
}
