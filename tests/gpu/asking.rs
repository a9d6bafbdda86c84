//! How GPUs are asked for, and why they are refused.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::host::wait_until;
use crate::fixture::http::Answer;
use crate::fixture::{Launch, SANDCELL, Service, mirrors_dir, temp_dir};
use crate::made_up::{MadeUp, uuid};
use crate::{TWO, config, service};

const LISTED: &str = "import glob, json\nprint(json.dumps(sorted(glob.glob('/dev/nvidia[0-9]*'))))";

fn create(service: &Service, gpus: Value) -> Answer {
    service.post_json("/sandbox/create", &json!({ "gpus": gpus }))
}

#[test]
fn a_service_gives_none_unless_its_operator_says_so() {
    let service = Service::start();
    let refused = create(&service, json!("all"));
    let body = refused.refused(422, "gpus_disabled");
    assert_eq!(body["field"], "gpus");
    assert!(
        refused.text().contains("enabled = true"),
        "{}",
        refused.text()
    );
    // None is what it has.
    create(&service, json!(0)).ok();
    create(&service, json!([])).ok();
}

#[test]
fn what_cannot_be_given_is_refused_with_the_reason() {
    let host = MadeUp::with_driver(&TWO);
    let limited = service(&host, "gpus.max_devices = 1");
    for (wish, status, code, said) in [
        (
            json!(["GPU-7"]),
            422,
            "gpu_unavailable",
            format!("0 ({})", uuid(0)),
        ),
        (
            json!([2]),
            422,
            "gpu_unavailable",
            "no GPU \\\"2\\\"".into(),
        ),
        (json!(3), 422, "gpu_unavailable", "there are 2".into()),
        (
            json!("all"),
            422,
            "invalid_field",
            "gpus.max_devices".into(),
        ),
        (json!("some"), 422, "invalid_field", "a number".into()),
        (json!(-1), 422, "invalid_field", "a number".into()),
        (json!([["0"]]), 422, "invalid_field", "a number".into()),
    ] {
        let answer = create(&limited, wish.clone());
        let body = answer.refused(status, code);
        assert_eq!(body["field"], "gpus", "{wish}");
        assert!(answer.text().contains(&said), "{wish}: {}", answer.text());
    }
    // None of them took anything.
    create(&limited, json!(1)).ok();
}

#[test]
fn where_there_are_none_the_answer_says_what_was_looked_for() {
    let host = MadeUp::new();
    let service = service(&host, "");
    let answer = create(&service, json!(1));
    answer.refused(422, "gpu_unavailable");
    for part in ["/etc/cdi", "/proc/driver/nvidia/gpus", "nvidia-modprobe"] {
        assert!(answer.text().contains(part), "{}", answer.text());
    }
    let root = host.path().display().to_string();
    assert!(!answer.text().contains(&root), "{}", answer.text());
    service.create();
    // The driver may come while the service runs.
    let whole = MadeUp::with_driver(&TWO);
    for dir in ["dev", "proc", "usr"] {
        fs::rename(whole.path().join(dir), host.path().join(dir)).unwrap();
    }
    create(&service, json!(1)).ok();
}

#[test]
fn a_gpu_is_one_sandboxes_until_it_is_closed() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let first = service.create_with(&json!({ "gpus": 1 }));
    let second = service.create_with(&json!({ "gpus": 1 }));
    assert_eq!(first.printed(LISTED), json!(["/dev/nvidia0"]));
    assert_eq!(second.printed(LISTED), json!(["/dev/nvidia1"]));
    for wish in [json!(1), json!([0]), json!("all")] {
        let answer = create(&service, wish);
        answer.refused(429, "gpus_in_use");
        assert!(answer.header("retry-after").is_some());
    }
    // A sandbox without is made as ever.
    service.create();
    first.close().ok();
    wait_until("the GPU is free", Duration::from_secs(5), || {
        create(&service, json!([uuid(0)])).status == 200
    });
}

#[test]
fn the_pool_has_no_gpus_and_those_with_gpus_do_not_come_from_it() {
    let host = MadeUp::with_driver(&TWO);
    let service = Service::launch(&Launch {
        config: &config(&host, ""),
        args: &["--pool", "1"],
        ..Launch::default()
    });
    for _ in 0..2 {
        let with = service.create_with(&json!({ "gpus": [1] }));
        assert_eq!(with.printed(LISTED), json!(["/dev/nvidia1"]));
        assert_eq!(service.create().printed(LISTED), json!([]));
        with.close().ok();
        wait_until("the GPU is free", Duration::from_secs(5), || {
            let again = create(&service, json!([1]));
            again.status == 200
                && service
                    .sandbox(again.json()["sandbox_id"].as_str().unwrap())
                    .close()
                    .status
                    == 200
        });
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_default_is_what_sandboxes_get_that_ask_for_nothing() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "gpus.default = [1]\ngpus.sandboxes_per_device = 2");
    assert_eq!(service.create().printed(LISTED), json!(["/dev/nvidia1"]));
    let other = service.create_with(&json!({ "gpus": [0] }));
    assert_eq!(other.printed(LISTED), json!(["/dev/nvidia0"]));
    let none = service.create_with(&json!({ "gpus": 0 }));
    assert_eq!(none.printed(LISTED), json!([]));
}

/// Runs `sandcell` on the made-up host, with nothing preloaded.
fn run(host: &MadeUp, args: &[&str]) -> (String, String) {
    let dir = temp_dir();
    let config = dir.path().join("config.toml");
    let root = host.path().display();
    let text = format!("gpus.enabled = true\ngpus.driver_root = \"{root}\"\n");
    fs::write(&config, text).unwrap();
    let output = Command::new(SANDCELL)
        .arg("--config")
        .arg(config)
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .arg("--mirrors-dir")
        .arg(mirrors_dir())
        .args(args)
        .output()
        .expect("the binary is there");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_asks_too() {
    let host = MadeUp::with_driver(&TWO);
    let (all, _) = run(&host, &["run", "--gpus", "all", "-c", LISTED]);
    assert_eq!(all, "[\"/dev/nvidia0\", \"/dev/nvidia1\"]\n");
    let (one, _) = run(&host, &["run", "--gpus", "device=1", "-c", LISTED]);
    assert_eq!(one, "[\"/dev/nvidia1\"]\n");
    let (none, _) = run(&host, &["run", "-c", LISTED]);
    assert_eq!(none, "[]\n");
    let (_, said) = run(&host, &["run", "--gpus", "5", "-c", LISTED]);
    assert!(said.contains("there are 2 GPUs"), "{said}");
}

#[test]
fn the_doctor_tells_of_gpus_and_how_they_were_found() {
    let item = |host: &MadeUp| {
        let (report, said) = run(host, &["doctor", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{said}"));
        let items = report["items"].as_array().unwrap().clone();
        let found = items.into_iter().find(|item| item["name"] == "gpus");
        found.expect("it has a line on GPUs")
    };
    let found = item(&MadeUp::with_driver(&TWO));
    assert_eq!(
        (&found["present"], &found["required"]),
        (&json!(true), &json!(false))
    );
    let detail = found["detail"].as_str().unwrap();
    for part in [&uuid(0), &uuid(1), "/proc/driver/nvidia", "550.54.14"] {
        assert!(detail.contains(part), "{detail}");
    }
    let none = item(&MadeUp::new());
    assert_eq!(none["present"], false);
    assert!(
        none["mend"]
            .as_str()
            .unwrap()
            .contains("nvidia-ctk cdi generate"),
        "{none}"
    );
}
