//! Files as resources, and the prompts.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::rpc::{call, post, post_as};

/// All pages of a list.
#[track_caller]
fn all(service: &Service, path: &str) -> (Vec<Value>, usize) {
    let (mut resources, mut pages) = (Vec::new(), 0);
    let mut params = json!({});
    loop {
        let page = call(service, path, "resources/list", params);
        pages += 1;
        resources.extend(
            page["resources"]
                .as_array()
                .expect("a list")
                .iter()
                .cloned(),
        );
        match page["nextCursor"].as_str() {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => return (resources, pages),
        }
    }
}

#[test]
fn files_of_all_sandboxes_are_resources() {
    let service = Service::start();
    assert_eq!(all(&service, "/mcp").0, Vec::<Value>::new());
    let first = service.create();
    let second = service.create();
    first.stdout("import os; os.makedirs('a b'); open('a b/ä#1.txt', 'w').write('grün')");
    first.stdout("open('raw.bin', 'wb').write(bytes(range(256)))");
    second.stdout("for n in range(450): open(f'{n:04}.csv', 'w').write(str(n))");
    for path in ["/mcp", "/mcp/env", "/mcp/workspace"] {
        let (resources, pages) = all(&service, path);
        assert_eq!(resources.len(), 452, "{path}");
        assert_eq!(pages, 3, "{path}");
        let mut uris: Vec<_> = resources.iter().map(|r| r["uri"].to_string()).collect();
        uris.sort();
        uris.dedup();
        assert_eq!(uris.len(), 452, "{path}: told twice");
    }
    let uri = format!("sandcell://{}/a%20b/%C3%A4%231.txt", first.id);
    let (resources, _) = all(&service, "/mcp");
    let found = resources
        .iter()
        .find(|r| r["uri"] == uri)
        .expect("it is listed");
    assert_eq!(
        (&found["size"], &found["name"]),
        (&json!(5), &json!("ä#1.txt"))
    );
    let read = |uri: &str| call(&service, "/mcp", "resources/read", json!({ "uri": uri }));
    let content = read(&uri)["contents"][0].clone();
    assert_eq!(
        (&content["text"], &content["uri"]),
        (&json!("grün"), &json!(uri))
    );
    let content = read(&format!("sandcell://{}/raw.bin", first.id))["contents"][0].clone();
    assert!(content["text"].is_null(), "{content}");
    assert!(
        content["blob"]
            .as_str()
            .expect("base64")
            .starts_with("AAECAwQF")
    );
    let templates = call(&service, "/mcp", "resources/templates/list", json!({}));
    let template = &templates["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(template, "sandcell://{sandbox_id}/{+path}");
}

#[test]
fn what_is_no_resource_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let id = &sandbox.id;
    sandbox.stdout("import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo')");
    sandbox.stdout("f = open('large', 'w'); f.truncate(6 << 20)");
    for uri in [
        format!("sandcell://{id}/missing"),
        format!("sandcell://{id}/link"),
        format!("sandcell://{id}/fifo"),
        format!("sandcell://{id}/large"),
        format!("sandcell://{id}/../../etc/passwd"),
        format!("sandcell://{id}//etc/passwd"),
        format!("sandcell://{id}/%2e%2e/%2e%2e/etc/passwd"),
        format!("sandcell://{}/x", "a".repeat(26)),
        "file:///etc/passwd".to_owned(),
        "sandcell://".to_owned(),
    ] {
        let answer = post(&service, "/mcp", "resources/read", json!({ "uri": uri })).json();
        assert_eq!(answer["error"]["code"], -32602, "{uri}: {answer}");
        assert_eq!(answer["error"]["data"]["uri"], uri);
    }
    let answer = post(&service, "/mcp", "resources/list", json!({ "cursor": "?" })).json();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[test]
fn resources_are_those_of_the_callers_key() {
    let service = Service::with_config("server.api_keys = ['a-key', 'another']");
    let tool = |key: &str, name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        let answer = post_as(&service, Some(key), "/mcp", "tools/call", params)
            .ok()
            .json();
        answer["result"]["structuredContent"].clone()
    };
    let made = tool("a-key", "create_sandbox", json!({}));
    let id = made["sandbox_id"].as_str().expect("an id").to_owned();
    let file = json!({ "sandbox_id": id, "path": "mine.txt", "content": "secret" });
    tool("a-key", "write_file", file);
    let list = |key: &str| {
        let answer = post_as(&service, Some(key), "/mcp", "resources/list", json!({}));
        let answer = answer.ok().json();
        answer["result"]["resources"]
            .as_array()
            .expect("a list")
            .len()
    };
    assert_eq!((list("a-key"), list("another")), (1, 0));
    let uri = format!("sandcell://{id}/mine.txt");
    let read = |key: &str| {
        let params = json!({ "uri": uri });
        post_as(&service, Some(key), "/mcp", "resources/read", params).text()
    };
    assert!(read("a-key").contains("secret"));
    assert!(!read("another").contains("secret") && read("another").contains("-32602"));
}

#[test]
fn each_set_says_how_it_is_used() {
    let service = Service::start();
    for (path, name, tool) in [
        ("/mcp", "use_sandbox", "create_sandbox"),
        ("/mcp/env", "use_python_env", "create_python_env"),
        ("/mcp/workspace", "use_workspace", "sandbox_initialize"),
    ] {
        let listed = call(&service, path, "prompts/list", json!({}));
        assert_eq!(listed["prompts"][0]["name"], name);
        let arguments = json!({ "name": name, "arguments": { "task": "Draw a circle." } });
        let got = call(&service, path, "prompts/get", arguments);
        let text = got["messages"][0]["content"]["text"]
            .as_str()
            .expect("a text");
        assert!(
            text.contains(tool) && text.ends_with("Draw a circle."),
            "{text}"
        );
        for params in [
            json!({ "name": "another" }),
            json!({ "name": name, "arguments": { "nonsense": "x" } }),
        ] {
            let answer = post(&service, path, "prompts/get", params).json();
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    }
}
