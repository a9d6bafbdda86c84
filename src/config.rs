//! Every knob and limit: built-in defaults, then `--config FILE` (TOML), then `SANDCELL_*`, then
//! flags. Parsed once, passed down. Unknown keys are refused by name. `sandcell.toml` at the
//! repository's top says what each is for; a test keeps it equal to the defaults here.

pub mod key;
mod load;
mod logging;
mod reload;
mod spelling;

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use key::ApiKey;
pub use load::{PREFIX, tree};
pub use logging::{Level, LogFormat, Logging};
pub use reload::Reload;

use crate::gpu::Wish;
use crate::network::{Egress, Policy};

/// A sandbox with less memory could not start a kernel.
pub const MIN_MEMORY_BYTES: u64 = 64 * MIB;
/// Less would not hold a screenful of a terminal.
const MIN_BACKGROUND_OUTPUT_BYTES: usize = 4096;
const MIB: u64 = 1024 * 1024;

/// The whole configuration.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Uppers, state, lock and (unless `mirrors_dir` is set) mirrors live below this.
    pub data_dir: PathBuf,
    /// Where mirrors are kept; default `<data_dir>/mirrors`.
    pub mirrors_dir: Option<PathBuf>,
    /// The port and who may use it.
    pub server: Server,
    /// What the service says, and where.
    pub logging: Logging,
    /// Limits of one sandbox.
    pub limits: Limits,
    /// Limits of the service.
    pub service: Service,
    /// What sandboxes may reach.
    pub network: Network,
    /// The package index that sandboxes see.
    pub packages: Packages,
    /// Mirrors that are the base and a layer of packages.
    pub mirrors: Mirrors,
    /// What the tools of MCP have beside the verbs of REST.
    pub mcp: Mcp,
    /// GPUs that sandboxes may be given.
    pub gpus: Gpus,
}

/// The port and who may use it.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Address to listen on; port 0 picks one.
    pub listen: SocketAddr,
    /// Keys that clients send; required for any address that is not loopback. Each sees only what it
    /// has made itself.
    #[serde(deserialize_with = "key::list")]
    pub api_keys: Vec<ApiKey>,
    /// Host names, besides loopback names and the listen address, that requests may be for.
    pub allowed_hosts: Vec<String>,
    /// Origins, besides loopback ones, that browsers may call from.
    pub allowed_origins: Vec<String>,
    /// Servers inside sandboxes are at `<port>-<sandbox id>.<this>`. Names below `localhost` lead to
    /// this machine in every browser (RFC 6761); another domain needs a wildcard entry in the DNS, and
    /// nothing else below it or with cookies for it, as hostile pages live there.
    pub ports_domain: String,
    /// Largest body of an upload, bytes.
    pub max_upload_bytes: u64,
    /// Largest body of any other request, bytes.
    pub max_body_bytes: u64,
    /// Largest frame and message that a WebSocket takes, bytes.
    pub max_frame_bytes: usize,
    /// Connections at once, those that became WebSockets included.
    pub max_connections: usize,
    /// Seconds in which a request's head must have arrived.
    pub header_timeout_seconds: u64,
    /// Seconds without a byte of an expected body after which a request is given up.
    pub body_timeout_seconds: u64,
    /// What becomes of the code of an execution when its client goes away, where the request does not
    /// say: `interrupt` or `continue`. Over MCP it is interrupted.
    pub on_disconnect: OnDisconnect,
}

/// What becomes of code whose client goes away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It is interrupted.
    #[default]
    Interrupt,
    /// It runs to its end or its time, unseen.
    Continue,
}

/// Limits of one sandbox; those that `POST /sandbox/create` takes are defaults, with a `max_` each.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of memory (RAM; swap is off).
    pub memory_bytes: u64,
    /// Most that a client may ask for.
    pub max_memory_bytes: u64,
    /// Processors.
    pub cpus: f64,
    /// Most that a client may ask for.
    pub max_cpus: f64,
    /// Processes and threads.
    pub processes: u64,
    /// Most that a client may ask for.
    pub max_processes: u64,
    /// Bytes of files (upper directory, /tmp and /dev/shm together). On a tmpfs upper they count
    /// against memory too.
    pub disk_bytes: u64,
    /// Most that a client may ask for.
    pub max_disk_bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// Open files of one process.
    pub open_files: u64,
    /// Seconds of wall time of an execution or a command.
    pub timeout_seconds: u64,
    /// Most that a client may ask for.
    pub max_timeout_seconds: u64,
    /// Seconds between SIGINT and SIGKILL when an execution is interrupted.
    pub interrupt_grace_seconds: u64,
    /// Seconds of life of a sandbox.
    pub lease_seconds: u64,
    /// Most that a client may ask for.
    pub max_lease_seconds: u64,
    /// Bytes of stdout, and likewise of stderr, that are kept of an execution or a command: of a longer
    /// stream the first three quarters of this and the last quarter.
    pub output_bytes: usize,
    /// Likewise over MCP: what a model can take in, and small enough for clients that
    /// refuse answers over 1 MiB, in which the text is twice. At most `output_bytes`.
    pub mcp_output_bytes: usize,
    /// Bytes of over-long stdout, and likewise of stderr, of an execution that are saved to a file in
    /// the sandbox; at most a sixteenth of its memory and of its disk. 0 saves none.
    pub saved_output_bytes: u64,
    /// Bytes of MIME data of an execution.
    pub result_bytes: usize,
    /// Bytes of a traceback.
    pub traceback_bytes: usize,
    /// Bytes of code of one execution.
    pub code_bytes: usize,
    /// File changes reported for an execution, and entries of a listing.
    pub files: usize,
    /// Executions that wait for the one that runs, in each context.
    pub queue: usize,
    /// Contexts of a sandbox, `default` included.
    pub contexts: usize,
    /// Checkpoints of a sandbox that clients asked for.
    pub checkpoints: usize,
    /// Background processes of a sandbox that run at once; as many that have ended are kept.
    pub background_processes: usize,
    /// Bytes of output, both streams together, that are kept of a background process: the last.
    pub background_output_bytes: usize,
    /// Seconds that an installation may take.
    pub install_seconds: u64,
    /// Seconds that a request may take to write to a process that does not read.
    pub stdin_seconds: u64,
    /// Connections at once to servers inside a sandbox.
    pub port_connections: usize,
    /// Seconds in which a server inside must begin to answer and have sent the head of its answer,
    /// counted from the last byte of the request that it took.
    pub port_head_seconds: u64,
    /// Seconds without a byte in either direction after which a connection to a server inside is closed.
    pub port_idle_seconds: u64,
}

/// Limits of the service.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
    /// Live sandboxes.
    pub max_sandboxes: usize,
    /// Prepared sandboxes kept ready; 0 prepares each on demand.
    pub pool: usize,
    /// Modules that the zygote imports before it forks kernels.
    pub preload: Vec<String>,
}

/// What sandboxes may reach, through the proxy only.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Policy of sandboxes whose create names none: `none`, `packages`, `open` or a table with `allow`.
    pub default: Policy,
    /// Networks (CIDR) that are not public, or this host's own, and that policies may reach all the same.
    /// Addresses of a cloud's metadata are reached only where they are listed by themselves (`/32`).
    pub private_cidrs: Vec<String>,
    /// Connections of one sandbox at once.
    pub connections: usize,
    /// New connections of one sandbox in a second; as many may come at once.
    pub connections_per_second: u32,
    /// Seconds to find and reach a host.
    pub connect_timeout_seconds: u64,
    /// Seconds without a byte in either direction after which a connection is closed.
    pub idle_timeout_seconds: u64,
}

/// The package index that sandboxes see, and its cache.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Packages {
    /// The index to fetch from; default: what pip on this host is configured to use.
    pub index_url: Option<String>,
    /// Bytes of downloads that are kept in `<data_dir>/packages`; the least recently used go first.
    pub cache_bytes: u64,
    /// Bytes of one file.
    pub max_file_bytes: u64,
    /// Bytes of one page of the index.
    pub max_page_bytes: u64,
    /// Seconds for which a page of the index is used again before the index is asked whether it changed.
    pub page_seconds: u64,
    /// Seconds in which the index must answer, and between two pieces of a download.
    pub timeout_seconds: u64,
}

/// Mirrors that are the base and a layer of packages.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mirrors {
    /// Debian packages of the base besides those of the recipe. Each set makes a base of its own.
    pub debian_packages: Vec<String>,
    /// Layered mirrors that there are, those under way included; 0 refuses to make any.
    pub max: usize,
    /// Bytes of the files of a layer.
    pub max_layer_bytes: u64,
    /// Files, directories and links of a layer.
    pub max_layer_entries: usize,
    /// Seconds of an installation, and as many again for what was installed to be taken out and hashed.
    pub build_seconds: u64,
    /// Seconds in which a mirror's zygote must have imported everything.
    pub preload_seconds: u64,
    /// Bytes of memory of a layered mirror's nursery and zygote.
    pub memory_bytes: u64,
    /// Prepared sandboxes kept ready of each layered mirror in use; 0 prepares each on demand.
    pub pool: usize,
    /// Seconds without a create after which a layered mirror without sandboxes ends its processes. They
    /// are started again by the next create.
    pub idle_seconds: u64,
}

/// What the tools of MCP have beside the verbs of REST.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mcp {
    /// Directories of this host, absolute, that tools with a "local" path may read and write; of a
    /// relative path the first is meant. Anyone who may call the tools has all of them.
    pub local_dirs: Vec<PathBuf>,
    /// Bytes of one local file that is copied, either way.
    pub local_file_bytes: u64,
    /// Files and directories that `copy_project` copies.
    pub project_files: usize,
    /// Bytes of all of them.
    pub project_bytes: u64,
    /// Seconds without a request after which a sandbox of `create_python_env` is closed.
    pub env_idle_seconds: u64,
    /// Commands of one `sandbox_exec`.
    pub commands: usize,
    /// Whether `sandbox_exec` installs what a script imports or its requirements.txt names before it
    /// runs the script, where the call does not say.
    pub install_dependencies: bool,
    /// Bytes of the record of what `sandbox_exec` ran in a sandbox that `get_container_logs` tells: the
    /// last.
    pub log_bytes: usize,
}

/// GPUs that sandboxes may be given. Code in a sandbox with one talks to the vendor's kernel driver, which is
/// as large as the rest of the kernel that it can reach.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpus {
    /// Whether any may be.
    pub enabled: bool,
    /// What a sandbox gets whose create names none: `0`, `"all"`, a number of them or a list of indices and
    /// UUIDs. MCP clients get this and cannot ask for anything else.
    pub default: Wish,
    /// GPUs of one sandbox at most; parts of a split one (MIG) count as one each.
    pub max_devices: usize,
    /// Sandboxes that have the same GPU at once at most. Above 1 they share its memory and time, and one can
    /// use up both.
    pub sandboxes_per_device: usize,
    /// Where the driver is: its nodes, libraries, `/proc`, `/sys` and `/etc/cdi` are looked for below this.
    pub driver_root: PathBuf,
}

impl Config {
    /// Refuses values that nothing could run with.
    ///
    /// # Errors
    /// Names the key, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        let at_most = [
            ("memory_bytes", limits.memory_bytes, limits.max_memory_bytes),
            ("processes", limits.processes, limits.max_processes),
            ("disk_bytes", limits.disk_bytes, limits.max_disk_bytes),
            (
                "timeout_seconds",
                limits.timeout_seconds,
                limits.max_timeout_seconds,
            ),
            (
                "lease_seconds",
                limits.lease_seconds,
                limits.max_lease_seconds,
            ),
        ];
        for (key, value, most) in at_most {
            if value == 0 || value > most {
                return Err(format!(
                    "limits.{key} must be 1 to limits.max_{key} ({most})"
                ));
            }
        }
        if limits.memory_bytes < MIN_MEMORY_BYTES {
            return Err(format!(
                "limits.memory_bytes must be {MIN_MEMORY_BYTES} or more"
            ));
        }
        if !(limits.cpus > 0.0 && limits.cpus <= limits.max_cpus) {
            return Err(format!(
                "limits.cpus must be above 0 and at most limits.max_cpus ({})",
                limits.max_cpus
            ));
        }
        if limits.contexts == 0 {
            return Err("limits.contexts must be 1 or more: every sandbox has one".into());
        }
        if limits.background_output_bytes < MIN_BACKGROUND_OUTPUT_BYTES {
            return Err(format!(
                "limits.background_output_bytes must be {MIN_BACKGROUND_OUTPUT_BYTES} or more"
            ));
        }
        if limits.stdin_seconds == 0 {
            return Err("limits.stdin_seconds must be 1 or more".into());
        }
        let mirrors = &self.mirrors;
        let is_name = |name: &String| {
            let mut bytes = name.bytes();
            bytes
                .next()
                .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                && bytes
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b))
        };
        if let Some(wrong) = mirrors.debian_packages.iter().find(|name| !is_name(name)) {
            return Err(format!(
                "mirrors.debian_packages: {wrong:?} is no name of a Debian package"
            ));
        }
        if mirrors.build_seconds == 0 || mirrors.preload_seconds == 0 || mirrors.idle_seconds == 0 {
            return Err(
                "mirrors.build_seconds, .preload_seconds and .idle_seconds must be 1 or more"
                    .into(),
            );
        }
        let gpus = &self.gpus;
        if gpus.max_devices == 0 || gpus.sandboxes_per_device == 0 {
            return Err("gpus.max_devices and .sandboxes_per_device must be 1 or more".into());
        }
        if !gpus.enabled && !gpus.default.is_none() {
            return Err("gpus.default is given, and gpus.enabled is false: set it to true".into());
        }
        if !gpus.driver_root.is_absolute() {
            return Err("gpus.driver_root must be an absolute path".into());
        }
        let packages = &self.packages;
        if packages.timeout_seconds == 0 {
            return Err("packages.timeout_seconds must be 1 or more".into());
        }
        if packages.max_file_bytes > packages.cache_bytes {
            return Err(format!(
                "packages.max_file_bytes must be at most packages.cache_bytes ({})",
                packages.cache_bytes
            ));
        }
        for (key, seconds) in [
            ("port_head_seconds", limits.port_head_seconds),
            ("port_idle_seconds", limits.port_idle_seconds),
        ] {
            if seconds == 0 {
                return Err(format!("limits.{key} must be 1 or more"));
            }
        }
        self.mcp.check()?;
        if self.service.pool > self.service.max_sandboxes {
            return Err("service.pool must be at most service.max_sandboxes".into());
        }
        Egress::new(&self.network, None).map(drop)
    }

    /// Where mirrors are kept.
    pub fn mirrors_dir(&self) -> PathBuf {
        self.mirrors_dir
            .clone()
            .unwrap_or_else(|| self.data_dir.join("mirrors"))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/sandcell"),
            mirrors_dir: None,
            server: Server::default(),
            logging: Logging::default(),
            limits: Limits::default(),
            service: Service::default(),
            network: Network::default(),
            packages: Packages::default(),
            mirrors: Mirrors::default(),
            mcp: Mcp::default(),
            gpus: Gpus::default(),
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            ports_domain: "localhost".into(),
            max_upload_bytes: 1024 * MIB,
            max_body_bytes: 32 * MIB,
            max_frame_bytes: MIB as usize,
            max_connections: 4096,
            header_timeout_seconds: 15,
            body_timeout_seconds: 60,
            on_disconnect: OnDisconnect::default(),
        }
    }
}

impl Limits {
    /// Bytes of a stream that are kept for a client that wants no more than `wanted`.
    pub fn output_bytes_of(&self, wanted: Option<usize>) -> usize {
        wanted.map_or(self.output_bytes, |bytes| bytes.min(self.output_bytes))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 1024 * MIB,
            max_memory_bytes: 64 * 1024 * MIB,
            cpus: 1.0,
            max_cpus: 64.0,
            processes: 256,
            max_processes: 32_768,
            disk_bytes: 1024 * MIB,
            max_disk_bytes: 64 * 1024 * MIB,
            inodes: 200_000,
            open_files: 1024,
            timeout_seconds: 300,
            max_timeout_seconds: 24 * 3600,
            interrupt_grace_seconds: 2,
            lease_seconds: 24 * 3600,
            max_lease_seconds: 30 * 24 * 3600,
            output_bytes: 1024 * 1024,
            mcp_output_bytes: 64 * 1024,
            saved_output_bytes: 64 * MIB,
            result_bytes: 16 * 1024 * 1024,
            traceback_bytes: 64 * 1024,
            code_bytes: 16 * 1024 * 1024,
            files: 10_000,
            queue: 16,
            contexts: 16,
            checkpoints: 16,
            background_processes: 16,
            background_output_bytes: MIB as usize,
            install_seconds: 600,
            stdin_seconds: 10,
            port_connections: 64,
            port_head_seconds: 60,
            port_idle_seconds: 300,
        }
    }
}

impl Default for Service {
    fn default() -> Self {
        Self {
            max_sandboxes: 1000,
            pool: 4,
            preload: ["numpy", "pandas", "matplotlib.pyplot"]
                .map(String::from)
                .to_vec(),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            default: Policy::None,
            private_cidrs: Vec::new(),
            connections: 64,
            connections_per_second: 50,
            connect_timeout_seconds: 10,
            idle_timeout_seconds: 300,
        }
    }
}

impl Default for Packages {
    fn default() -> Self {
        Self {
            index_url: None,
            cache_bytes: 10 * 1024 * MIB,
            max_file_bytes: 4 * 1024 * MIB,
            max_page_bytes: 64 * MIB,
            page_seconds: 600,
            timeout_seconds: 60,
        }
    }
}

impl Default for Mirrors {
    fn default() -> Self {
        Self {
            debian_packages: Vec::new(),
            max: 16,
            max_layer_bytes: 8 * 1024 * MIB,
            max_layer_entries: 400_000,
            build_seconds: 600,
            preload_seconds: 120,
            memory_bytes: 4 * 1024 * MIB,
            pool: 1,
            idle_seconds: 900,
        }
    }
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            local_dirs: Vec::new(),
            local_file_bytes: 256 * MIB,
            project_files: 10_000,
            project_bytes: 256 * MIB,
            env_idle_seconds: 3600,
            commands: 64,
            install_dependencies: true,
            log_bytes: 256 * 1024,
        }
    }
}

impl Default for Gpus {
    fn default() -> Self {
        Self {
            enabled: false,
            default: Wish::Count(0),
            max_devices: 16,
            sandboxes_per_device: 1,
            driver_root: PathBuf::from("/"),
        }
    }
}

impl Mcp {
    /// Trees that are the kernel's words, not files.
    const NOT_FILES: [&str; 3] = ["/proc", "/sys", "/dev"];

    /// Whether a directory may be listed in `local_dirs`.
    pub fn may_list(dir: &Path) -> bool {
        dir.components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
            && dir.is_absolute()
            && dir != Path::new("/")
            && !Self::NOT_FILES.iter().any(|tree| dir.starts_with(tree))
    }

    fn check(&self) -> Result<(), String> {
        if let Some(wrong) = self.local_dirs.iter().find(|dir| !Self::may_list(dir)) {
            return Err(format!(
                "mcp.local_dirs: {} is not an absolute path to a directory of files, without \"..\", \
                 and not \"/\"",
                wrong.display()
            ));
        }
        if self.env_idle_seconds == 0 || self.commands == 0 {
            return Err("mcp.env_idle_seconds and mcp.commands must be 1 or more".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_right_and_unknown_keys_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let error = toml::from_str::<Config>("[limits]\nmemory = 1")
            .unwrap_err()
            .to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[test]
    fn a_default_above_its_maximum_is_refused_by_name() {
        let mut config = Config::default();
        config.limits.processes = config.limits.max_processes + 1;
        assert!(config.check().unwrap_err().contains("limits.processes"));
    }

    #[test]
    fn local_directories_are_absolute_and_hold_files() {
        let checked = |dir: &str| {
            let mut config = Config::default();
            config.mcp.local_dirs = vec!["/srv/data".into(), dir.into()];
            config.check()
        };
        assert_eq!(checked("/home/user/projects/"), Ok(()));
        for wrong in [
            "",
            ".",
            "data",
            "/",
            "//",
            "/srv/../etc",
            "/proc/self",
            "/dev",
        ] {
            let error = checked(wrong).unwrap_err();
            assert!(error.contains("mcp.local_dirs"), "{wrong:?}: {error}");
        }
    }
}
