//! Packages from the real index, in sandboxes that have no network of their own.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::Sandbox;

#[track_caller]
fn install(sandbox: &Sandbox<'_>, request: &Value) -> Value {
    let answer = sandbox.service.post_json(&sandbox.path("install"), request);
    answer.ok().json()
}

#[track_caller]
fn status(sandbox: &Sandbox<'_>, names: &str) -> Value {
    let path = format!("{}?names={names}", sandbox.path("packages"));
    sandbox.service.get(&path).ok().json()
}

/// Tries the index and its proxy as user code, for so many seconds; prints what was reached.
fn knocking(seconds: u32) -> String {
    format!(
        "import socket, time\n\
         reached = set()\n\
         end = time.monotonic() + {seconds}\n\
         while time.monotonic() < end:\n    \
             for address in [('127.0.0.1', 3128), ('::1', 3128)]:\n        \
                 try: socket.create_connection(address, 0.2); reached.add(address[0])\n        \
                 except OSError: pass\n    \
             time.sleep(0.002)\n\
         try: socket.getaddrinfo('example.com', 443); reached.add('dns')\n\
         except OSError: pass\n\
         print(sorted(reached))"
    )
}

#[test]
fn pure_and_compiled_packages_can_be_imported_at_once() {
    let service = Service::start();
    let sandbox = service.create();
    // A kernel that has failed to find them before must not remember that.
    let before = sandbox.execute("import humanize");
    assert_eq!(before["error"], "ModuleNotFoundError", "{before}");
    let installed = install(&sandbox, &json!({"packages": ["humanize", "ujson>=5,<6"]}));
    assert_eq!(installed["success"], true, "{installed}");
    assert_eq!(installed["status"], "installed");
    assert_eq!(installed["complete"], true);
    let names = [&installed["packages"][0], &installed["packages"][1]];
    assert_eq!(
        names.map(|p| p["name"].as_str().unwrap()),
        ["humanize", "ujson"]
    );
    assert!(names[1]["version"].as_str().unwrap().starts_with("5."));
    let said = sandbox.stdout(
        "import humanize, ujson\nprint(humanize.intcomma(10**6), ujson.dumps([1]), ujson.__file__)",
    );
    assert!(said.starts_with("1,000,000 [1] /opt/venv/"), "{said}");
    assert!(said.contains(".so"), "{said}");
    // Every kernel of the sandbox has them, commands too, and no other sandbox.
    let command = sandbox.command("python -c 'import humanize; print(humanize.__version__)'");
    assert_eq!(command["exit_code"], 0, "{command}");
    let told = status(&sandbox, "humanize,Numpy,not-asked-for");
    assert_eq!(told[0]["status"], "installed", "{told}");
    assert_eq!(told[1]["status"], "installed", "{told}");
    assert_eq!(told[2]["status"], "not_installed", "{told}");
    let other = service.create();
    assert_eq!(
        other.execute("import humanize")["error"],
        "ModuleNotFoundError"
    );
    // Nothing of it is among the user's files.
    assert_eq!(sandbox.files(), []);
}

#[test]
fn the_second_sandbox_downloads_nothing_and_is_quick() {
    let service = Service::start();
    let request = json!({"package_name": "rich<15"});
    let first = install(&service.create(), &request);
    assert_eq!(first["success"], true, "{first}");
    let cached = || service.log().matches("from=\"index\"").count();
    let downloads = cached();
    assert!(downloads > 0, "{}", service.log());
    let sandbox = service.create();
    let begun = Instant::now();
    let second = install(&sandbox, &request);
    let took = begun.elapsed();
    assert_eq!(second["success"], true, "{second}");
    assert_eq!(cached(), downloads, "{}", service.log());
    println!("second install of rich: {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let message = second["message"].as_str().unwrap();
    assert!(
        message.contains("other versions before: rich=="),
        "{message}"
    );
    assert!(message.contains("restart the context"), "{message}");
}

#[test]
fn what_cannot_be_installed_says_why() {
    let service = Service::start();
    let sandbox = service.create();
    let missing = install(
        &sandbox,
        &json!({"packages": ["no-such-package-of-sandcell"]}),
    );
    assert_eq!(missing["success"], false);
    assert_eq!(missing["status"], "not_found", "{missing}");
    let told = status(&sandbox, "no_such.package-of-sandcell");
    assert_eq!(told[0]["status"], "not_found", "{told}");
    let conflict = json!({"packages": ["requests==2.31.0", "urllib3==1.20"]});
    let conflict = install(&sandbox, &conflict);
    assert_eq!(conflict["status"], "failed", "{conflict}");
    let message = conflict["message"].as_str().unwrap();
    assert!(
        message.contains("requests==2.31.0 depends on urllib3"),
        "{message}"
    );
    let source = install(&sandbox, &json!({"packages": ["docopt==0.6.2"]}));
    assert_eq!(source["status"], "failed", "{source}");
    let message = source["message"].as_str().unwrap();
    assert!(
        message.contains("no wheel") || message.contains("no usable wheels"),
        "{message}"
    );
    // What was there before still is.
    sandbox.stdout("import requests, numpy");
    // A sandbox that is too small for a package says that, and stays usable.
    let small = service.create_with(&json!({"memory_bytes": 256 << 20}));
    let big = install(&small, &json!({"packages": ["polars"]}));
    assert_eq!(big["success"], false, "{big}");
    let message = big["message"].as_str().unwrap();
    assert!(
        message.contains("memory") || message.contains("space"),
        "{message}"
    );
    small.assert_usable();
}

#[test]
fn files_of_the_working_directory_are_installed() {
    let service = Service::start();
    let sandbox = service.create();
    let text = b"# what we need\nhumanize>=4 # numbers\ntabulate\n";
    sandbox.upload("requirements.txt", text).ok();
    let installed = install(&sandbox, &json!({"requirements_file": "requirements.txt"}));
    assert_eq!(installed["success"], true, "{installed}");
    sandbox.stdout("import humanize, tabulate");
    // A wheel made inside: a module and its metadata.
    sandbox.stdout(
        "import zipfile, os\nos.makedirs('dist')\n\
         with zipfile.ZipFile('dist/my_tool-1.0-py3-none-any.whl', 'w') as z:\n    \
             z.writestr('my_tool.py', 'answer = 42')\n    \
             d = 'my_tool-1.0.dist-info/'\n    \
             z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: my-tool\\nVersion: 1.0\\n')\n    \
             z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
             z.writestr(d + 'RECORD', '')",
    );
    let wheel = install(
        &sandbox,
        &json!({"packages": ["dist/my_tool-1.0-py3-none-any.whl"]}),
    );
    assert_eq!(wheel["success"], true, "{wheel}");
    assert_eq!(wheel["packages"][0]["name"], "my-tool");
    assert_eq!(
        sandbox.stdout("import my_tool; print(my_tool.answer)"),
        "42\n"
    );
}

#[test]
fn options_and_addresses_are_refused_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    for bad in [
        json!({"packages": ["--index-url=http://127.0.0.1/"]}),
        json!({"packages": ["rich", "-r", "x"]}),
        json!({"packages": ["x @ http://127.0.0.1/x.whl"]}),
        json!({"packages": ["git+https://127.0.0.1/x"]}),
        json!({"packages": ["../x-1-py3-none-any.whl"]}),
        json!({"packages": []}),
        json!({}),
        json!({"packages": ["rich\n--pre"]}),
    ] {
        let answer = service.post_json(&sandbox.path("install"), &bad);
        answer.refused_field("packages");
    }
    sandbox
        .upload("r.txt", b"rich\n--extra-index-url http://127.0.0.1/\n")
        .ok();
    let bad = json!({"requirements_file": "r.txt"});
    let answer = service.post_json(&sandbox.path("install"), &bad);
    answer.refused_field("requirements_file");
    let wait = json!({"packages": ["rich"], "wait_seconds": -1});
    service
        .post_json(&sandbox.path("install"), &wait)
        .refused_field("wait_seconds");
    service
        .post_json("/sandbox/nope/install", &json!({"packages": ["rich"]}))
        .refused(404, "sandbox_not_found");
}

#[test]
fn nobody_has_to_wait() {
    let service = Service::start();
    let sandbox = service.create();
    let request = json!({"packages": ["ujson"], "wait_seconds": 0});
    let begun = install(&sandbox, &request);
    assert_eq!(begun["status"], "installing", "{begun}");
    assert_eq!(
        (&begun["complete"], &begun["success"]),
        (&json!(false), &json!(false))
    );
    // Code runs meanwhile.
    assert_eq!(sandbox.stdout("print(1)"), "1\n");
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let told = status(&sandbox, "ujson");
        match told[0]["status"].as_str() {
            Some("installing") if Instant::now() < deadline => {}
            Some("installed") => break,
            _ => panic!("{told}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
    sandbox.stdout("import ujson");
}

#[test]
fn a_sandbox_without_a_network_gains_none_while_it_installs() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(sandbox.stdout(&knocking(1)), "[]\n", "before");
    thread::scope(|scope| {
        let knocks = scope.spawn(|| sandbox.stdout(&knocking(6)));
        thread::sleep(Duration::from_millis(300));
        let installed = install(&sandbox, &json!({"packages": ["humanize", "ujson"]}));
        assert_eq!(installed["success"], true, "{installed}");
        assert_eq!(knocks.join().unwrap(), "[]\n", "during");
    });
    assert_eq!(sandbox.stdout(&knocking(1)), "[]\n", "after");
    // The same code where the index may be reached: it would have noticed.
    let open = service.create_with(&json!({"network": "packages"}));
    assert_eq!(open.stdout(&knocking(1)), "['127.0.0.1']\n");
}

#[test]
fn where_packages_are_allowed_their_own_tools_work() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({"network": "packages"}));
    let said = sandbox.stdout("%pip install humanize");
    assert!(said.contains("Successfully installed humanize"), "{said}");
    let said = sandbox.stdout("!pip install colorama 2>&1");
    assert!(said.contains("Successfully installed colorama"), "{said}");
    // From source: what runs is user code, where user code may reach the index anyway.
    let said = sandbox.stdout("!uv pip install docopt==0.6.2 2>&1");
    assert!(said.contains("+ docopt==0.6.2"), "{said}");
    sandbox.stdout("import humanize, colorama, docopt");
    let said = sandbox.stdout("!pip uninstall -y colorama numpy 2>&1 | grep Success");
    assert_eq!(
        said.matches("Successfully uninstalled").count(),
        2,
        "{said}"
    );
    // Another sandbox has what the mirror has.
    service.create().stdout("import numpy");
    // A kernel of another context and a command get there as well.
    let command = sandbox.command("pip download --no-deps toolz -d /tmp/x && ls /tmp/x");
    assert_eq!(command["exit_code"], 0, "{command}");
}

/// Libraries that draw on a terminal, patch the event loop or speak to a notebook's front end.
#[test]
fn what_others_trip_over_works_once_it_is_installed() {
    let service = Service::start();
    let sandbox = service.create();
    let names = ["rich", "tqdm", "nest_asyncio", "ipywidgets"];
    let installed = install(&sandbox, &json!({ "packages": names }));
    assert_eq!(installed["success"], true, "{installed}");
    let table = sandbox.stdout(
        "from rich.console import Console\nfrom rich.table import Table\n\
         t = Table('a')\nt.add_row('✓')\nConsole().print(t)",
    );
    assert_eq!(table, "┏━━━┓\n┃ a ┃\n┡━━━┩\n│ ✓ │\n└───┘\n");
    let bar = sandbox.execute("from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass");
    let drawn = bar["stderr"].as_str().expect("a text");
    assert!(drawn.starts_with('\r') && drawn.contains("3/3"), "{bar}");
    let nested = "import asyncio, nest_asyncio\nnest_asyncio.apply()\n\
                  async def f(): return asyncio.run(asyncio.sleep(0, 5))\n\
                  print(await f(), asyncio.run(f()))";
    assert_eq!(sandbox.stdout(nested), "5 5\n");
    let widget = sandbox.execute("import ipywidgets\nipywidgets.IntSlider(value=3)");
    let shown = widget["results"].as_array().expect("results").iter();
    let texts: Vec<_> = shown.filter(|r| r["type"] == "text/plain").collect();
    assert_eq!(texts[0]["data"], "IntSlider(value=3)", "{widget}");
    assert_eq!(sandbox.stdout("print(1 + 1)"), "2\n");
}
