//! `sandcell doctor`: what this host offers, item by item, tried rather than looked up.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Common;
use crate::gpu::Gpus;
use crate::isolation::cgroup::Layout;
use crate::isolation::host::probe_pidfd;
use crate::isolation::seccomp::Filters;
use crate::isolation::spawner::refuse_suid_dumpable;
use crate::isolation::sys;
use crate::supervisor::{CreateSpec, Event, ExecuteSpec, Prepared, Supervisor};

/// Descriptors that a sandbox with one context takes in the supervisor once it has executed something.
const FDS_PER_SANDBOX: u64 = 14;

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Item {
    name: &'static str,
    /// Without it no sandbox is safe.
    required: bool,
    present: bool,
    /// What was found, or what enforces it.
    detail: String,
    /// What to do where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Item {
    fn new(name: &'static str, result: Result<String, String>, mend: &str) -> Self {
        let present = result.is_ok();
        Self {
            name,
            required: true,
            present,
            detail: result.unwrap_or_else(|e| e),
            mend: (!present).then(|| mend.to_owned()),
        }
    }

    fn optional(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }
}

/// Prints the report; exit status 1 when sandboxes could not be safe.
pub fn main(common: &Common, args: &DoctorArgs) -> Result<ExitCode, String> {
    let mut items = vec![
        root(),
        kernel(),
        namespaces(),
        Item::new(
            "pidfd",
            probe_pidfd()
                .map(|()| "processes are named by descriptors".into())
                .map_err(|e| e.to_string()),
            "run Linux 5.14 or later",
        ),
        Item::new(
            "seccomp",
            Filters::default_profile()
                .map(|f| format!("{} filters compile", f.as_bytes().len()))
                .map_err(|e| e.to_string()),
            "run a kernel with CONFIG_SECCOMP_FILTER on x86-64",
        ),
        overlay(),
        Item::new(
            "suid_dumpable",
            refuse_suid_dumpable()
                .map(|()| "processes that drop their identity cannot be traced".into())
                .map_err(|e| e.to_string()),
            "sysctl -w fs.suid_dumpable=0",
        ),
    ];
    items.extend(cgroups());
    items.push(descriptors());
    items.push(gpus(&common.load()?.gpus));
    if items.iter().all(|i| i.present || !i.required) {
        items.push(sandbox(common)?);
    }
    let healthy = items.iter().all(|i| i.present || !i.required);
    if args.json {
        let report = serde_json::json!({ "healthy": healthy, "items": items });
        println!("{report:#}");
    } else {
        for item in &items {
            let mark = match (item.present, item.required) {
                (true, _) => "ok     ",
                (false, true) => "MISSING",
                (false, false) => "absent ",
            };
            println!("{mark}  {:<12} {}", item.name, item.detail);
            if let Some(mend) = &item.mend {
                println!("         {:<12} → {mend}", "");
            }
        }
        println!(
            "{}",
            if healthy {
                "sandboxes can run here"
            } else {
                "sandboxes cannot run safely here"
            }
        );
    }
    Ok(if healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn root() -> Item {
    let euid = rustix::process::geteuid();
    let result = if euid.is_root() {
        Ok("effective uid 0".into())
    } else {
        Err(format!("effective uid {}", euid.as_raw()))
    };
    Item::new("root", result, "run sandcell as root; user code never is")
}

fn kernel() -> Item {
    let uname = rustix::system::uname();
    Item::new(
        "kernel",
        Ok(format!(
            "{} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy()
        )),
        "",
    )
}

/// Clones a child into all of them, as the nursery does.
fn namespaces() -> Item {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWCGROUP;
    let result = match sys::fork_into(flags as u64, None) {
        Ok(sys::Fork::Child) => sys::exit_now(0),
        Ok(sys::Fork::Parent { pidfd, .. }) => {
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
                rustix::process::WaitIdOptions::EXITED,
            );
            Ok("user pid mnt net uts ipc cgroup can be created".into())
        }
        Err(e) => Err(format!("clone3: {e}")),
    };
    Item::new(
        "namespaces",
        result,
        "sysctl -w user.max_user_namespaces=10000, and lift a container's seccomp profile",
    )
}

fn overlay() -> Item {
    let listed = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let result = if listed.lines().any(|l| l.ends_with("overlay")) {
        Ok("in /proc/filesystems".into())
    } else {
        Err("not in /proc/filesystems".into())
    };
    Item::new("overlayfs", result, "modprobe overlay")
}

fn cgroups() -> Vec<Item> {
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(e) => return vec![Item::new("cgroups", Err(e.to_string()), "see the message")],
    };
    let (kind, by) = match &layout {
        Layout::Unified { .. } => ("cgroup v2", "v2"),
        Layout::Hybrid { .. } => ("hybrid", "v1"),
    };
    let roots: Vec<String> = layout
        .v1_roots()
        .iter()
        .map(|p| p.display().to_string())
        .collect();
    let mut items = vec![
        Item::new(
            "cgroups",
            Ok(format!(
                "{kind}, v2 tree at {}",
                layout.unified_root().display()
            )),
            "",
        ),
        Item::new(
            "limits",
            Ok(format!(
                "memory, cpu and processes are enforced by {by} {}",
                roots.join(" ")
            )),
            "",
        ),
    ];
    let kill = layout.unified_root().join("cgroup.kill").exists() || kernel_at_least(5, 14);
    let result = if kill {
        Ok("whole process trees are killed at once".into())
    } else {
        Err("no cgroup.kill".into())
    };
    items.push(Item::new("cgroup.kill", result, "run Linux 5.14 or later"));
    let options = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let favoured = options
        .lines()
        .any(|l| l.contains(" cgroup2 ") && l.contains("favordynmods"));
    let result = if favoured {
        Ok("on".into())
    } else {
        Err("off: the first migration after a pause takes about 11 ms, off the request path".into())
    };
    items.push(
        Item::new(
            "favordynmods",
            result,
            "optional, for the whole host: mount -o remount,favordynmods on the v2 tree",
        )
        .optional(),
    );
    items
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut parts = release
        .split(['.', '-'])
        .map_while(|p| p.parse::<u32>().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}

fn descriptors() -> Item {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX);
    Item::new(
        "descriptors",
        Ok(format!(
            "{most} at most, room for about {} sandboxes",
            most / FDS_PER_SANDBOX
        )),
        "",
    )
}

/// GPUs and how they were found, whether or not sandboxes may have them.
fn gpus(config: &crate::config::Gpus) -> Item {
    let found = Gpus::find(&config.driver_root);
    let mend = match &found {
        Ok(_) => String::new(),
        Err(missing) => missing.mend.clone(),
    };
    let described = found.map(|gpus| {
        let names = gpus
            .devices()
            .iter()
            .map(|device| device.names().join(" = "));
        let given = if config.enabled {
            ""
        } else {
            "; sandboxes get none: [gpus] enabled is false"
        };
        let notes = gpus.notes().iter().map(|note| format!("; {note}"));
        format!(
            "{} {}{given}{}",
            names.collect::<Vec<_>>().join(", "),
            gpus.how(),
            notes.collect::<String>()
        )
    });
    let described = described.map_err(|missing| missing.looked_for.join("; "));
    Item::new("gpus", described, &mend).optional()
}

/// The proof: a sandbox that runs code. Only with a base mirror, which `doctor` does not build.
fn sandbox(common: &Common) -> Result<Item, String> {
    const NAME: &str = "sandbox";
    let mut config = common.load()?;
    let store =
        crate::mirror::Store::open(&config.mirrors_dir()).map_err(|e| format!("failed to {e}"))?;
    let store = store.with_packages(&config.mirrors.debian_packages);
    let Some(mirror) = store.find_base().map_err(|e| format!("failed to {e}"))? else {
        return Ok(Item::new(
            NAME,
            Err("not tried: there is no base mirror".into()),
            "sandcell mirror build",
        )
        .optional());
    };
    config.service.pool = 0;
    config.service.preload.clear();
    let tried = Prepared::ephemeral(config, &super::program(), &mirror.root)
        .map_err(|e| e.to_string())
        .and_then(|prepared| super::runtime()?.block_on(try_sandbox(prepared)));
    Ok(Item::new(
        NAME,
        tried,
        "the message names the step; please report it with this report",
    ))
}

async fn try_sandbox(prepared: Prepared) -> Result<String, String> {
    let supervisor = Supervisor::start(prepared)
        .await
        .map_err(|e| e.to_string())?;
    let result = async {
        let sandbox = supervisor
            .create(CreateSpec::default())
            .await
            .map_err(|e| e.to_string())?;
        let spec = ExecuteSpec {
            code: "print(6 * 7)".into(),
            ..ExecuteSpec::default()
        };
        let mut execution = supervisor
            .execute(&sandbox.id, spec)
            .await
            .map_err(|e| e.to_string())?;
        let mut out = String::new();
        while let Some(event) = execution.next().await {
            if let Event::Stdout(text) = event {
                out.push_str(&text);
            }
        }
        if out == "42\n" {
            Ok("was created, locked down, checked from outside, and ran code".into())
        } else {
            Err(format!("printed {out:?}"))
        }
    };
    let result = result.await;
    supervisor.drain().await;
    result
}
