//! Tool sets: what an endpoint offers. One handler serves them all ([`Tools`]); a set is a choice of
//! its tools with the text that tells a model how they go together.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::model::JsonObject;
use serde_json::{Value, json};

use super::prompts::HowTo;
use super::tools::Tools;
use super::{env, workspace};

const INSTRUCTIONS: &str = "Runs Python in isolated sandboxes. Create a sandbox once and keep \
using its sandbox_id: variables, imports and files last between executions until it is closed or \
expires. numpy, pandas, matplotlib, scipy, scikit-learn and other data packages are installed. \
Figures come back as images by themselves. Other packages come with install_packages_in_sandbox; \
code inside has no network unless the service's operator gave it one.";

/// Names of the sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetName {
    /// All verbs, with the second seed's names: `/mcp`.
    Default,
    /// The third seed's: `/mcp/env`.
    Env,
    /// The fourth seed's: `/mcp/workspace`.
    Workspace,
}

impl SetName {
    /// Path of the endpoint that has it.
    pub fn path(self) -> &'static str {
        match self {
            Self::Default => "/mcp",
            Self::Env => "/mcp/env",
            Self::Workspace => "/mcp/workspace",
        }
    }
}

/// A choice of tools.
pub(super) struct ToolSet {
    /// What a model is told before it sees the tools.
    pub(super) instructions: &'static str,
    /// How they go together, as a prompt.
    pub(super) how_to: HowTo,
    pub(super) router: ToolRouter<Tools>,
}

const HOW_TO: HowTo = HowTo {
    name: "use_sandbox",
    title: "Work in a Python sandbox",
    text: "You can run Python and shell commands in an isolated sandbox. Work like this:\n\
        1. Call create_sandbox once and keep its sandbox_id; every other tool asks for it.\n\
        2. Run code with execute_python_code, in steps, like the cells of a notebook: variables, \
        imports and files of earlier steps are there. Figures of matplotlib come back as images by \
        themselves; save one to a file only when the file is wanted.\n\
        3. numpy, pandas, matplotlib, scipy, scikit-learn and more are there. Install what is \
        missing with install_packages_in_sandbox; when it answers \"installing\", ask \
        check_packages_installation_status until it is done. It can be imported at once.\n\
        4. Give code its data with write_file or upload_file_to_sandbox; look at what it made with \
        list_files and read_file. Each answer lists the files that the code made, with links.\n\
        5. An exception comes with its traceback and keeps the variables: mend the code and go on.\n\
        6. Call close_sandbox at the end, when nothing of it is needed any more.",
};

impl ToolSet {
    pub(super) fn of(name: SetName) -> Self {
        let mut set = match name {
            SetName::Default => Self {
                instructions: INSTRUCTIONS,
                how_to: HOW_TO,
                router: Tools::tool_router()
                    + Tools::context_router()
                    + Tools::checkpoint_router()
                    + Tools::mirror_router()
                    + Tools::package_router()
                    + Tools::port_router()
                    + Tools::process_router()
                    + Tools::upload_router(),
            },
            SetName::Env => Self {
                instructions: env::INSTRUCTIONS,
                how_to: env::HOW_TO,
                router: Tools::env_router() + Tools::env_package_router(),
            },
            SetName::Workspace => Self {
                instructions: workspace::INSTRUCTIONS,
                how_to: workspace::HOW_TO,
                router: Tools::workspace_router()
                    + Tools::workspace_exec_router()
                    + Tools::workspace_file_router(),
            },
        };
        for route in set.router.map.values_mut() {
            let tool = &mut route.attr;
            tool.input_schema = standard(&tool.input_schema);
            tool.output_schema = tool.output_schema.as_ref().map(standard);
        }
        set
    }
}

/// Formats of numbers that `schemars` writes and JSON Schema does not know: validators of clients warn
/// of each.
const OWN_FORMATS: [&str; 11] = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int", "uint",
    "double",
];

/// A schema that every client can use: without these formats, whose meaning is in the limits beside
/// them, and with a type and null as two branches, since not all know lists of types.
fn standard(schema: &Arc<JsonObject>) -> Arc<JsonObject> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(object) => {
                let own =
                    |format: &Value| format.as_str().is_some_and(|f| OWN_FORMATS.contains(&f));
                if object.get("format").is_some_and(own) {
                    object.remove("format");
                }
                object.values_mut().for_each(strip);
                split_null(object);
            }
            Value::Array(array) => array.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = JsonObject::clone(schema);
    schema.values_mut().for_each(strip);
    Arc::new(schema)
}

/// Makes `"type": [t, "null"]` two branches of `anyOf`.
fn split_null(object: &mut JsonObject) {
    let Some(Value::Array(types)) = object.get("type") else {
        return;
    };
    let others = types.iter().filter(|kind| **kind != "null");
    let [kind] = &others.cloned().collect::<Vec<_>>()[..] else {
        return;
    };
    let kind = kind.clone();
    let about = |key: &str| matches!(key, "description" | "title" | "default");
    let (about, mut branch): (JsonObject, JsonObject) = std::mem::take(object)
        .into_iter()
        .partition(|(key, _)| about(key));
    branch.insert("type".to_owned(), kind);
    *object = about;
    object.insert("anyOf".to_owned(), json!([branch, { "type": "null" }]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_have_only_what_json_schema_knows() {
        for name in [SetName::Default, SetName::Env, SetName::Workspace] {
            for tool in ToolSet::of(name).router.list_all() {
                let all = serde_json::to_string(&tool).expect("it is JSON");
                assert!(!all.contains("\"format\""), "{}: {all}", tool.name);
                assert!(!all.contains("\"type\":["), "{}: {all}", tool.name);
                assert!(tool.output_schema.is_some(), "{}", tool.name);
            }
        }
    }
}
