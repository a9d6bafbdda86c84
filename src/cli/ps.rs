//! `sandcell ps` and `sandcell kill`: the sandboxes of a running service.

use std::collections::BTreeMap;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};

use super::Common;
use super::client::Client;
use crate::supervisor::host::running_service;

/// Which service is meant.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// Address of the service, http://host:port [default: the one that runs on the data directory]
    #[arg(long, env = "SANDCELL_URL", value_name = "URL")]
    url: Option<String>,
    /// Key to send; only its own sandboxes are seen
    #[arg(
        long,
        env = "SANDCELL_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    key: Option<String>,
}

/// Options of `ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// As JSON, one list
    #[arg(long)]
    json: bool,
}

/// Options of `kill`.
#[derive(Debug, Args)]
pub struct KillArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Ids or names of sandboxes to close
    #[arg(required = true, value_name = "ID")]
    sandboxes: Vec<String>,
}

type Sandboxes = BTreeMap<String, Value>;

impl ServiceArgs {
    async fn connect(&self, common: &Common) -> Result<Client, String> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => {
                let data_dir = common.load()?.data_dir;
                running_service(&data_dir).ok_or_else(|| {
                    format!(
                        "no service runs on {}; name another with --data-dir or --url",
                        data_dir.display()
                    )
                })?
            }
        };
        let client = Client::connect(&url).await?;
        Ok(client.with_key(self.key.clone()))
    }
}

async fn list(client: &mut Client) -> Result<Sandboxes, String> {
    let listed = client.json("GET", "/sandboxes", &Value::Null).await?;
    serde_json::from_value(listed).map_err(|e| format!("the answer is no list of sandboxes: {e}"))
}

/// Shows the live sandboxes, oldest first.
pub fn ps(common: &Common, args: &PsArgs) -> Result<ExitCode, String> {
    let sandboxes = super::runtime()?.block_on(async {
        let mut client = args.service.connect(common).await?;
        list(&mut client).await
    })?;
    let mut sandboxes: Vec<_> = sandboxes.into_iter().collect();
    sandboxes.sort_by(|(_, a), (_, b)| a["created_at"].as_str().cmp(&b["created_at"].as_str()));
    if args.json {
        let list = sandboxes.into_iter().map(|(id, mut sandbox)| {
            sandbox["id"] = id.into();
            sandbox
        });
        println!("{}", json!(list.collect::<Vec<_>>()));
        return Ok(ExitCode::SUCCESS);
    }
    let rows = sandboxes.iter().map(|(id, s)| {
        [
            id.clone(),
            plain(&s["name"]),
            plain(&s["state"]),
            span(&s["created_at"], Utc::now()),
            span(&s["expires_at"], Utc::now()),
            plain(&s["owner"]),
        ]
    });
    print!("{}", table(rows.collect()));
    Ok(ExitCode::SUCCESS)
}

/// Closes sandboxes; fails when one of them could not be closed, and closes the others all the same.
pub fn kill(common: &Common, args: &KillArgs) -> Result<ExitCode, String> {
    super::runtime()?.block_on(async {
        let mut client = args.service.connect(common).await?;
        let live = list(&mut client).await?;
        let mut code = ExitCode::SUCCESS;
        for wanted in &args.sandboxes {
            let closed = match find(&live, wanted) {
                Ok(id) => {
                    let path = format!("/sandbox/{id}/close");
                    client.json("POST", &path, &Value::Null).await.map(|_| id)
                }
                Err(e) => Err(e),
            };
            match closed {
                Ok(id) => println!("{id}"),
                Err(e) => {
                    eprintln!("sandcell: {e}");
                    code = ExitCode::FAILURE;
                }
            }
        }
        Ok(code)
    })
}

/// The one sandbox of that id or name.
fn find<'a>(live: &'a Sandboxes, wanted: &str) -> Result<&'a str, String> {
    if let Some((id, _)) = live.get_key_value(wanted) {
        return Ok(id);
    }
    let mut named = live.iter().filter(|(_, sandbox)| sandbox["name"] == wanted);
    match (named.next(), named.next()) {
        (Some((id, _)), None) => Ok(id),
        (Some(_), Some(_)) => Err(format!(
            "several sandboxes are called {wanted:?}; give the id"
        )),
        (None, _) => Err(format!("no sandbox has the id or name {wanted:?}")),
    }
}

/// Text of a client's choice, for a terminal.
fn plain(value: &Value) -> String {
    let text = value.as_str().unwrap_or("-");
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// How long ago or ahead that is.
fn span(time: &Value, now: DateTime<Utc>) -> String {
    let parsed = time.as_str().map(DateTime::parse_from_rfc3339);
    let Some(Ok(time)) = parsed else {
        return "-".into();
    };
    let seconds = (now - time.to_utc()).num_seconds().unsigned_abs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn table(rows: Vec<[String; 6]>) -> String {
    let head = ["ID", "NAME", "STATE", "AGE", "EXPIRES IN", "OWNER"].map(String::from);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = (row.iter().zip(&widths))
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_and_names_harmless() {
        let now = DateTime::parse_from_rfc3339("2026-01-02T00:00:00Z");
        let now = now.expect("a time").to_utc();
        for (time, told) in [
            ("2026-01-01T23:59:01.5Z", "58s"),
            ("2026-01-02T01:59:00Z", "119m"),
            ("2026-01-01T00:00:00Z", "24h"),
            ("2026-02-01T00:00:00Z", "30d"),
            ("soon", "-"),
        ] {
            assert_eq!(span(&json!(time), now), told);
        }
        assert_eq!(plain(&json!("a\u{1b}[31mb")), "a\u{fffd}[31mb");
        assert_eq!(plain(&Value::Null), "-");
    }

    #[test]
    fn a_sandbox_is_found_by_id_or_by_a_name_of_its_own() {
        let live: Sandboxes = serde_json::from_value(json!({
            "id1": { "name": "a" }, "id2": { "name": "b" }, "id3": { "name": "b" },
        }))
        .expect("sandboxes");
        assert_eq!(find(&live, "id2"), Ok("id2"));
        assert_eq!(find(&live, "a"), Ok("id1"));
        assert!(find(&live, "b").is_err_and(|e| e.contains("several")));
        assert!(find(&live, "c").is_err_and(|e| e.contains("no sandbox")));
    }
}
