use std::fs;
use std::path::Path;

use super::testing::{LIBRARIES, MadeUp, VERSION, uuid};
use super::*;

const NULL: (u64, u64) = (1, 3);
const ZERO: (u64, u64) = (1, 5);

fn find(host: &MadeUp) -> Gpus {
    Gpus::find(host.path()).expect("there are GPUs")
}

fn missing(host: &MadeUp) -> String {
    Gpus::find(host.path())
        .expect_err("there are none")
        .to_string()
}

fn names(gpus: &Gpus) -> Vec<Vec<String>> {
    let devices = gpus.devices().iter();
    devices.map(|device| device.names().to_vec()).collect()
}

fn grant_of(gpus: &Gpus, name: &str) -> Grant {
    let wish = Wish::Named(vec![name.into()]);
    let devices = wish.choose(gpus.devices(), |_| true);
    gpus.grant(&devices.expect("it is there"))
        .expect("it fits")
        .0
}

fn inside(shown: &[Shown]) -> Vec<&str> {
    shown.iter().map(|shown| shown.inside.as_str()).collect()
}

#[test]
fn a_driver_tells_of_its_gpus_itself() {
    let host = MadeUp::with_driver(&[NULL, ZERO]);
    let gpus = find(&host);
    assert_eq!(names(&gpus), [["0".into(), uuid(0)], ["1".into(), uuid(1)]]);
    assert!(gpus.how().contains(VERSION), "{}", gpus.how());
    let grant = grant_of(&gpus, &uuid(1));
    assert_eq!(
        inside(&grant.nodes),
        ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"]
    );
    assert_eq!(
        inside(&grant.files),
        [
            "/usr/bin/nvidia-smi",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        ]
    );
    let link = Link {
        path: format!("{LIBRARIES}/libcuda.so"),
        to: "libcuda.so.1".into(),
    };
    assert_eq!(grant.links, [link]);
}

#[test]
fn proc_and_sys_tell_of_the_chosen_gpu_only() {
    let host = MadeUp::with_driver(&[NULL, ZERO]);
    let grant = grant_of(&find(&host), "0");
    let paths: Vec<&str> = grant.proc.keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [
            "driver/nvidia/gpus/0000:01:00.0/information",
            "driver/nvidia/params",
            "driver/nvidia/version",
            "modules",
        ]
    );
    assert!(grant.proc["driver/nvidia/params"].contains("ModifyDeviceFiles: 0\n"));
    assert_eq!(
        grant.proc["modules"],
        "nvidia_uvm 1540096 0 - Live 0x0000000000000000\n\
         nvidia 56000 0 - Live 0x0000000000000000\n"
    );
    assert_eq!(
        grant.sys,
        [
            "module/nvidia",
            "module/nvidia_uvm",
            "devices/system/cpu",
            "devices/pci0000:00/0000:01:00.0",
        ]
    );
    assert_eq!(grant.sys_links.len(), 1);
}

#[test]
fn libraries_are_those_of_the_loaded_driver_and_this_architecture() {
    let host = MadeUp::with_driver(&[NULL]);
    // Another version of another package, an i386 one, and one that the loader alone knows of.
    host.built("/usr/lib64/libcuda.so.1", "libcuda", "f", 1);
    let library = host.at(&format!("{LIBRARIES}/libcuda.so.{VERSION}"));
    let mut i386 = fs::read(library).unwrap();
    i386[4] = 1;
    fs::write(host.at("/usr/lib/libnvidia-nvvm.so.4"), i386).unwrap();
    let place = format!("/opt/own/libnvidia-opencl.so.{VERSION}");
    host.built(&place, "libnvidia-opencl", "f", 1);
    let cache = ldcache::tests::cache(&[("libnvidia-opencl.so.1", &place)]);
    fs::write(host.at("/etc/ld.so.cache"), cache).unwrap();
    let grant = grant_of(&find(&host), "0");
    let from: Vec<&str> = grant.files.iter().map(|file| file.host.as_str()).collect();
    let cuda = [
        format!("{LIBRARIES}/libcuda.so.1"),
        format!("{LIBRARIES}/libcuda.so.{VERSION}"),
    ];
    assert!(
        from.iter().any(|path| cuda.iter().any(|c| c == path)),
        "{from:?}"
    );
    assert!(!from.contains(&"/usr/lib64/libcuda.so.1"), "{from:?}");
    assert!(!from.iter().any(|path| path.contains("nvvm")), "{from:?}");
    assert!(from.contains(&place.as_str()), "{from:?}");
}

#[test]
fn what_is_not_there_is_told_with_what_was_looked_for() {
    let empty = missing(&MadeUp::new());
    for part in [
        "nvidia.com/gpu",
        "/etc/cdi",
        "/proc/driver/nvidia/gpus",
        "nvidia-modprobe",
    ] {
        assert!(empty.contains(part), "{empty}");
    }
    let host = MadeUp::with_driver(&[NULL]);
    fs::remove_dir_all(host.at(LIBRARIES)).unwrap();
    assert!(
        missing(&host).contains("libcuda.so.1"),
        "{}",
        missing(&host)
    );
    let host = MadeUp::with_driver(&[NULL]);
    fs::remove_file(host.at("/dev/nvidia-uvm")).unwrap();
    let text = missing(&host);
    assert!(text.contains("/dev/nvidia-uvm is not there"), "{text}");
    assert!(Gpus::find(Path::new("/nowhere")).is_err());
}

#[test]
fn nodes_must_be_everybodys_devices() {
    let host = MadeUp::with_driver(&[NULL, ZERO]);
    host.mode("/dev/nvidia0", 0o660);
    let gpus = find(&host);
    assert_eq!(names(&gpus), [["1".into(), uuid(1)]]);
    assert!(
        gpus.notes()[0].contains("NVreg_DeviceFileMode"),
        "{:?}",
        gpus.notes()
    );
    fs::remove_file(host.at("/dev/nvidia1")).unwrap();
    host.text("/dev/nvidia1", "");
    assert!(missing(&host).contains("/dev/nvidia1 is no character device"));
}

#[test]
fn parts_of_a_split_gpu_are_given_one_by_one() {
    let host = MadeUp::with_driver(&[NULL, ZERO]);
    host.split(0, &[3, 11], 20);
    host.text(
        "/proc/driver/nvidia-caps/mig-minors",
        "gpu0/gi3/access 20\n",
    );
    let gpus = find(&host);
    let part = format!("MIG-{}/11/0", uuid(0));
    let ids: Vec<&str> = gpus.devices().iter().map(Device::id).collect();
    assert_eq!(ids, [format!("MIG-{}/3/0", uuid(0)), part.clone(), uuid(1)]);
    assert_eq!(gpus.devices()[1].names()[0], "0:1");
    let grant = grant_of(&gpus, &part);
    assert_eq!(
        inside(&grant.nodes),
        [
            "/dev/nvidia-caps/nvidia-cap22",
            "/dev/nvidia-caps/nvidia-cap23",
            "/dev/nvidia-uvm",
            "/dev/nvidia0",
            "/dev/nvidiactl",
        ]
    );
    let mig: Vec<&String> = grant
        .proc
        .keys()
        .filter(|path| path.contains("mig"))
        .collect();
    assert_eq!(
        mig,
        [
            "driver/nvidia-caps/mig-minors",
            "driver/nvidia/capabilities/gpu0/mig/gi11/access",
            "driver/nvidia/capabilities/gpu0/mig/gi11/ci0/access",
        ]
    );
    let whole = Wish::Named(vec!["0".into()]).choose(gpus.devices(), |_| true);
    assert!(matches!(whole, Err(Fault::Unknown { .. })), "{whole:?}");
}

/// As nvidia-ctk 1.17 writes it, shortened, with what computing does not need.
const JSON: &str = r#"{
  "cdiVersion": "0.5.0",
  "kind": "nvidia.com/gpu",
  "devices": [
    {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/dri/renderD129"}]}},
    {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0", "permissions": "rw"}]}},
    {"name": "MIG-5f2c", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia2"}, {"path": "/dev/nvidia-caps/nvidia-cap21"}]}},
    {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}}
  ],
  "containerEdits": {
    "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "LD_PRELOAD=/evil.so"],
    "additionalGids": [44],
    "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}, {"path": "/dev/nvidia-modeset"}],
    "hooks": [
      {"hookName": "createContainer", "path": "/bin/false", "args": ["nvidia-cdi-hook", "create-symlinks",
        "--link", "libcuda.so.1::/usr/lib64/libcuda.so", "--link", "x::/home/user/x", "--link", "x::/usr/../x"]},
      {"hookName": "createContainer", "path": "/bin/false", "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"]}
    ],
    "mounts": [
      {"hostPath": "/driver/libcuda.so.550", "containerPath": "/usr/lib64/libcuda.so.550", "options": ["ro", "nosuid", "nodev", "bind"]},
      {"hostPath": "/driver/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
      {"hostPath": "/driver/socket", "containerPath": "/usr/share/socket"},
      {"hostPath": "/driver", "containerPath": "/usr/share/driver"},
      {"hostPath": "/driver/nvidia-smi", "containerPath": "/home/user/nvidia-smi"},
      {"hostPath": "/driver/nvidia-smi", "containerPath": "/usr/bin/../../proc/x"}
    ]
  }
}"#;

/// The same in the other notation, by the same parser that the tests check against.
fn yaml(json: &str) -> String {
    // JSON is YAML too, but hardly anybody writes it so: block style for the outermost keys.
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    let mut text = String::from("---\n# written by hand\n");
    for (key, value) in value.as_object().unwrap() {
        match value {
            serde_json::Value::Array(items) => {
                text.push_str(&format!("{key}:\n"));
                for item in items {
                    text.push_str("- ");
                    let entries = item.as_object().unwrap().iter();
                    let lines: Vec<String> = entries.map(|(k, v)| format!("{k}: {v}")).collect();
                    text.push_str(&lines.join("\n  "));
                    text.push('\n');
                }
            }
            value => text.push_str(&format!("{key}: {value}\n")),
        }
    }
    text
}

fn described(file: &str, text: &str) -> MadeUp {
    let host = MadeUp::new();
    for (n, path) in [
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidia2",
        "/dev/nvidiactl",
    ]
    .iter()
    .chain(&[
        "/dev/nvidia-uvm",
        "/dev/nvidia-modeset",
        "/dev/nvidia-caps/nvidia-cap21",
    ])
    .enumerate()
    {
        host.node(path, 1, [3, 5, 7][n % 3], 0o666);
    }
    host.built("/driver/libcuda.so.550", "libcuda", "f", 1);
    host.text("/driver/nvidia-smi", "#!/bin/sh\n");
    drop(std::os::unix::net::UnixListener::bind(host.at("/driver/socket")).unwrap());
    host.text(file, text);
    host
}

fn check_described(host: &MadeUp) {
    let gpus = find(host);
    assert_eq!(names(&gpus), [vec!["0"], vec!["1"], vec!["MIG-5f2c"]]);
    let mig = grant_of(&gpus, "MIG-5f2c");
    assert_eq!(
        inside(&mig.nodes),
        [
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-uvm",
            "/dev/nvidia2",
            "/dev/nvidiactl"
        ]
    );
    let grant = grant_of(&gpus, "1");
    assert_eq!(
        inside(&grant.nodes),
        ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"]
    );
    assert_eq!(
        inside(&grant.files),
        ["/usr/bin/nvidia-smi", "/usr/lib64/libcuda.so.550"]
    );
    let links: Vec<(&str, &str)> = grant
        .links
        .iter()
        .map(|link| (link.path.as_str(), link.to.as_str()))
        .collect();
    assert_eq!(
        links,
        [
            ("/usr/lib/x86_64-linux-gnu/libcuda.so", "libcuda.so.1"),
            (
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "/usr/lib64/libcuda.so.550"
            ),
            ("/usr/lib64/libcuda.so", "libcuda.so.1"),
        ]
    );
    let all = Wish::All.choose(gpus.devices(), |_| true).unwrap();
    let (_, env) = gpus.grant(&all).unwrap();
    let names: Vec<&str> = env.keys().map(String::as_str).collect();
    assert_eq!(names, ["NVIDIA_CTK_LIBCUDA_DIR", "NVIDIA_VISIBLE_DEVICES"]);
    assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "0,1,MIG-5f2c");
    let notes = gpus.notes().join("\n");
    for left_out in [
        "/dev/dri/renderD129",
        "/dev/nvidia-modeset",
        "/driver/socket",
        "/driver is",
    ] {
        assert!(notes.contains(left_out), "{notes}");
    }
}

#[test]
fn a_specification_in_json_is_followed() {
    check_described(&described("/etc/cdi/nvidia.json", JSON));
}

#[test]
fn a_specification_in_yaml_is_followed() {
    check_described(&described("/var/run/cdi/nvidia.yaml", &yaml(JSON)));
}

#[test]
fn a_later_directory_goes_before_an_earlier_one() {
    let host = described("/etc/cdi/nvidia.json", JSON);
    let later = JSON.replace("/dev/nvidia1", "/dev/nvidia2");
    host.text("/var/run/cdi/nvidia.json", &later);
    let grant = grant_of(&find(&host), "1");
    assert!(
        inside(&grant.nodes).contains(&"/dev/nvidia2"),
        "{:?}",
        grant.nodes
    );
}

#[test]
fn names_of_one_gpu_are_one_device_in_order_of_index() {
    let device = |name: &str, node: &str| {
        format!(
            r#"{{"name": "{name}", "containerEdits": {{"deviceNodes": [{{"path": "{node}"}}]}}}}"#
        )
    };
    let devices = [
        device("gpu10", "/dev/nvidia1"),
        device(&uuid(2), "/dev/nvidia2"),
        device("gpu2", "/dev/nvidia2"),
    ];
    let text = format!(
        r#"{{"cdiVersion": "1.0.0", "kind": "nvidia.com/gpu", "devices": [{}]}}"#,
        devices.join(",")
    );
    let gpus = find(&described("/etc/cdi/nvidia.json", &text));
    assert_eq!(
        names(&gpus),
        [vec!["gpu2".to_owned(), uuid(2)], vec!["gpu10".into()]]
    );
    let chosen = Wish::Named(vec!["10".into(), uuid(2).to_lowercase()]);
    let chosen = chosen.choose(gpus.devices(), |_| true).unwrap();
    assert_eq!(chosen.len(), 2);
}

#[test]
fn specifications_that_cannot_be_followed_are_named_and_the_driver_is_asked() {
    let bomb = {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let alias = format!("*a{}", n - 1);
            text.push_str(&format!(
                "a{n}: &a{n} [{}]\n",
                [alias.as_str(); 10].join(", ")
            ));
        }
        text + "kind: nvidia.com/gpu\ncdiVersion: 0.5.0\ndevices: []\n"
    };
    for (file, text, said) in [
        (
            "/etc/cdi/broken.json",
            "{",
            "broken.json is no specification",
        ),
        (
            "/etc/cdi/broken.yml",
            "kind: [",
            "broken.yml is no specification",
        ),
        ("/etc/cdi/bomb.yaml", &bomb, ""),
        (
            "/etc/cdi/old.json",
            &JSON.replace("0.5.0", "0.2.0"),
            "\"0.2.0\"",
        ),
        (
            "/etc/cdi/new.json",
            &JSON.replace("0.5.0", "2.0.0"),
            "\"2.0.0\"",
        ),
        (
            "/etc/cdi/other.json",
            &JSON.replace("nvidia.com/gpu", "amd.com/gpu"),
            "no specification of",
        ),
        (
            "/etc/cdi/large.json",
            &" ".repeat(1024 * 1024 + 1),
            "more than",
        ),
    ] {
        let host = MadeUp::new();
        host.text(file, text);
        let missing = missing(&host);
        assert!(missing.contains(said), "{file}: {missing}");
        let host = MadeUp::with_driver(&[NULL]);
        host.text(file, text);
        assert!(find(&host).how().contains("/proc/driver/nvidia"), "{file}");
    }
    let host = MadeUp::with_driver(&[NULL]);
    let pipe = host.at("/etc/cdi/pipe.json");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(find(&host).how().contains("/proc/driver/nvidia"));
}

#[test]
fn links_do_not_lead_out_of_the_tree() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let (secret, up) = (secret.to_str().unwrap(), "../".repeat(40));
    for to in [secret.to_owned(), format!("{up}{secret}")] {
        let tree = MadeUp::new();
        tree.link("/link", &to);
        tree.link("/dir", &format!("{up}{}", outside.path().display()));
        let tree = tree::Tree::open(tree.path()).unwrap();
        for path in ["/link", "/dir/secret", &format!("/{up}{secret}")] {
            assert_eq!(tree.text(path, 100), None, "{path}");
        }
    }
    // The host has a null device there, and the tree has not.
    let host = MadeUp::with_driver(&[NULL, ZERO]);
    fs::remove_file(host.at("/dev/nvidia0")).unwrap();
    host.link("/dev/nvidia0", &format!("{up}/dev/null"));
    assert_eq!(names(&find(&host)), [["1".into(), uuid(1)]]);
    // Negative control: a link that stays inside is followed.
    host.node("/dev/null", 1, 3, 0o666);
    assert_eq!(find(&host).devices().len(), 2);
}

#[test]
fn wishes_are_read_and_written() {
    let read = |text: &str| serde_json::from_str::<Wish>(text).map_err(|e| e.to_string());
    assert_eq!(read("\"all\""), Ok(Wish::All));
    assert_eq!(read("2"), Ok(Wish::Count(2)));
    let named = Wish::Named(vec!["0".into(), uuid(1)]);
    assert_eq!(read(&format!("[0, \"{}\"]", uuid(1))), Ok(named.clone()));
    for wrong in [
        "\"some\"",
        "-1",
        "1.5",
        "true",
        "[\"\"]",
        "[\"a b\"]",
        "{}",
        "null",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let many = format!("[{}]", ["0"; 65].join(","));
    assert!(read(&many).is_err());
    let of_line = |text: &str| text.parse::<Wish>();
    assert_eq!(of_line("all"), Ok(Wish::All));
    assert_eq!(of_line("3"), Ok(Wish::Count(3)));
    assert_eq!(of_line(&format!("0,{}", uuid(1))), Ok(named.clone()));
    assert_eq!(of_line("device=1"), Ok(Wish::Named(vec!["1".into()])));
    assert!(of_line("").is_err());
    for wish in [Wish::All, Wish::Count(2), named] {
        let text = serde_json::to_string(&wish).unwrap();
        assert_eq!(read(&text), Ok(wish));
    }
}

#[test]
fn wishes_are_granted_from_what_is_free() {
    let gpus = find(&MadeUp::with_driver(&[NULL, ZERO, NULL]));
    let choose = |wish: Wish, taken: &[&str]| {
        let free = |device: &Device| !taken.contains(&device.names()[0].as_str());
        let chosen = wish.choose(gpus.devices(), free)?;
        Ok(chosen
            .iter()
            .map(|d| d.names()[0].clone())
            .collect::<Vec<_>>())
    };
    let named = |name: &str| Wish::Named(vec![name.into(), name.into()]);
    assert_eq!(
        choose(Wish::All, &[]),
        Ok(vec!["0".into(), "1".into(), "2".into()])
    );
    assert_eq!(
        choose(Wish::Count(2), &["0"]),
        Ok(vec!["1".into(), "2".into()])
    );
    assert_eq!(choose(named("1"), &["0"]), Ok(vec!["1".into()]));
    assert_eq!(choose(Wish::Count(4), &[]), Err(Fault::TooFew(3)));
    assert_eq!(choose(Wish::Count(2), &["0", "1"]), Err(Fault::Taken(1)));
    assert_eq!(choose(Wish::All, &["1"]), Err(Fault::InUse(uuid(1))));
    assert_eq!(choose(named("1"), &["1"]), Err(Fault::InUse(uuid(1))));
    let unknown = choose(named("7"), &[]).unwrap_err();
    let Fault::Unknown { known, .. } = unknown else {
        panic!("{unknown:?}");
    };
    assert_eq!(known[0], format!("0 ({})", uuid(0)));
}
