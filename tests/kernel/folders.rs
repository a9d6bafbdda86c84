//! The working directory by the names that generated code knows it by.

use serde_json::json;

use crate::fixture::Service;

const NAMES: [&str; 5] = [
    "/home/user",
    "/app/results",
    "/mnt/data",
    "/workspace",
    "/content",
];

#[test]
fn the_working_directory_has_the_names_that_other_services_give_it() {
    let service = Service::start();
    let sandbox = service.create();
    for (number, name) in NAMES.iter().enumerate() {
        // As code does it: a file, a folder, a look at what is there, a change of directory.
        let outcome = sandbox.execute(&format!(
            "import os\n\
             os.makedirs('{name}/d{number}', exist_ok=True)\n\
             _ = open('{name}/d{number}/f.txt', 'w').write('{name}')\n\
             assert 'd{number}' in os.listdir('{name}') and os.path.samefile('{name}', '.')\n\
             os.chdir('{name}')\n\
             print(open('d{number}/f.txt').read(), os.getcwd())"
        ));
        assert_eq!(
            outcome["stdout"],
            format!("{name} /home/user\n"),
            "{outcome}"
        );
        let file = &outcome["files"][0];
        assert_eq!(
            (&file["path"], &file["change"]),
            (&json!(format!("d{number}/f.txt")), &json!("created")),
            "{outcome}"
        );
        // From outside.
        let download = sandbox.download(&format!("{name}/d{number}/f.txt"));
        assert_eq!(download.ok().body, name.as_bytes());
        let placed = sandbox.upload(&format!("{name}/up{number}.txt"), name.as_bytes());
        let placed = placed.ok().json();
        assert_eq!(placed["file_path"], format!("up{number}.txt"));
        assert_eq!(
            sandbox
                .stdout(&format!("print(open('up{number}.txt').read())"))
                .trim(),
            *name
        );
        let listed = service.get(&format!("{}?path={name}/d{number}", sandbox.path("files")));
        assert_eq!(listed.ok().json()[0]["path"], format!("d{number}/f.txt"));
        let shown = format!(
            "/sandbox/file?sandbox_id={}&file_path={name}/up{number}.txt",
            sandbox.id
        );
        assert_eq!(service.get(&shown).ok().body, name.as_bytes());
        // By a model.
        let path = format!("{name}/m{number}.txt");
        let tool = |tool: &str, more: serde_json::Value| {
            let mut arguments = json!({ "sandbox_id": sandbox.id, "path": path });
            arguments
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("an object").clone());
            service
                .post_json(&format!("/mcp/tools/{tool}"), &arguments)
                .ok()
                .json()
        };
        let written = tool("write_file", json!({ "content": "é" }));
        assert_eq!(written["path"], format!("m{number}.txt"), "{written}");
        let read = tool("read_file", json!({}));
        assert_eq!(read["content"], "é", "{read}");
        // By a command.
        let command = sandbox.command_json(&json!({ "command": "cat m*.txt; pwd", "cwd": name }));
        assert!(
            command["stdout"]
                .as_str()
                .is_some_and(|s| s.ends_with("/home/user\n") || s.ends_with(&format!("{name}\n"))),
            "{command}"
        );
    }
    // Names that only begin like one are not it.
    for wrong in [
        "/mnt/data2/x",
        "/contents/x",
        "/workspace/../x",
        "/mnt/x",
        "/mnt/data/../../etc/passwd",
    ] {
        let refused = sandbox.download(wrong);
        assert!(
            [400, 404].contains(&refused.status),
            "{wrong}: {}",
            refused.text()
        );
    }
}
