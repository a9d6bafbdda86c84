//! An execution's events encoded one by one, for streams.

use serde_json::{Map, Value, json};

use super::outcome::{Verdict, kind_name, touched};
use super::truncated::Truncated;
use super::wire::Cost;
use crate::supervisor::{Ended, Event, PythonError, RichResult};

/// Encodes events for a stream of JSON objects, counting the bundles.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    bundles: usize,
    error: Option<PythonError>,
}

impl Encoder {
    /// An event as objects with a `type`: the end as three of them.
    pub(crate) fn encode(&mut self, sandbox_id: &str, event: Event) -> Vec<Value> {
        vec![match event {
            Event::Started { execution_count } => {
                json!({ "type": "started", "execution_count": execution_count })
            }
            Event::Stdout(text) => json!({ "type": "stdout", "text": text }),
            Event::Stderr(text) => json!({ "type": "stderr", "text": text }),
            Event::ClearOutput { wait } => json!({ "type": "clear_output", "wait": wait }),
            Event::Result(result) => self.result(result),
            Event::Error(error) => {
                let value = json!({
                    "type": "error",
                    "name": error.name,
                    "value": error.value,
                    "traceback": error.traceback,
                });
                self.error = Some(error);
                value
            }
            Event::Ended(ended) => return self.ended(sandbox_id, *ended),
        }]
    }

    fn result(&mut self, result: RichResult) -> Value {
        let bundle = self.bundles;
        self.bundles += 1;
        json!({
            "type": "result",
            "kind": kind_name(result.kind),
            "bundle": bundle,
            "data": result.data,
            "metadata": result.metadata,
            "display_id": result.display_id,
        })
    }

    /// Everything of an outcome that did not travel before. `ended` repeats the files and the usage,
    /// for clients that wait for nothing else.
    fn ended(&mut self, sandbox_id: &str, ended: Ended) -> Vec<Value> {
        let verdict = Verdict::new(&ended, self.error.take());
        let mut object = match serde_json::to_value(verdict) {
            Ok(Value::Object(object)) => object,
            _ => Map::new(),
        };
        object.insert("type".into(), "ended".into());
        object.insert("execution_count".into(), ended.execution_count.into());
        object.insert("truncated".into(), json!(Truncated::of(sandbox_id, &ended)));
        object.insert(
            "stdout_dropped_bytes".into(),
            ended.stdout.left_out_bytes.into(),
        );
        object.insert(
            "stderr_dropped_bytes".into(),
            ended.stderr.left_out_bytes.into(),
        );
        let files = json!(touched(sandbox_id, ended.files));
        let usage = json!(Cost::from(ended.usage));
        object.insert("files".into(), files.clone());
        object.insert("usage".into(), usage.clone());
        vec![
            json!({ "type": "files", "files": files }),
            json!({ "type": "usage", "usage": usage }),
            Value::Object(object),
        ]
    }
}
