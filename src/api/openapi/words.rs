//! Words and shapes that answers hold as text or as types of other parts, for the description alone.

use utoipa::ToSchema;

/// Declares strings that are one of some words.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident: $($word:ident)+;)+) => {
        $(
            $(#[$doc])*
            #[derive(ToSchema)]
            #[schema(rename_all = "snake_case")]
            #[allow(dead_code, reason = "described, never made")]
            pub(crate) enum $name { $($word),+ }
        )+
    };
}

words! {
    /// It was done.
    Success: Success;
    /// It runs.
    Healthy: Healthy;
    /// What a sandbox or a context does.
    Activity: Idle Busy Closing;
    /// Whether a background process runs.
    ProcessState: Running Exited;
    /// Where output was written to.
    OutputStream: Stdout Stderr Pty;
    /// How an execution ended: `error` when the code raised.
    Ending: Ok Error Timeout Interrupted OutOfMemory KernelDied;
    /// What became of the variables: left as they are, taken back to before this execution, or gone.
    Variables: Kept Restored Lost;
    /// What an entry of a folder is.
    FileKind: File Directory Symlink Other;
    /// What entries of a folder are wanted.
    FileKindWish: File Directory Symlink Other Any;
    /// What happened to a file.
    FileEvent: Created Changed Deleted;
    /// How something came to be shown.
    ResultKind: Display ExecuteResult Update;
    /// A limit that was hit.
    LimitName: Memory Processes Disk Output Time;
    /// How a package stands.
    PackageState: Installed Installing Failed NotFound NotInstalled;
    /// How a mirror stands.
    MirrorState: Building Ready Failed;
    /// Whether variables outlive a Python process that dies: where a copy of it costs little time and
    /// memory, at any cost, or not at all.
    RestoreWhen: Auto Always Never;
    /// What becomes of code whose client goes away.
    WhenClientGoes: Interrupt Continue;
    /// A network policy without details.
    PolicyWord: None Packages Open;
}

/// What a sandbox may reach: `none`, the package index (`packages`), every public address (`open`), or
/// what a list allows.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum NetworkPolicy {
    /// By a word.
    Word(PolicyWord),
    /// By a list.
    List(NetworkRules),
}

/// A network policy of rules.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct NetworkRules {
    /// What may be reached.
    #[schema(max_items = 256, examples(json!(["api.example.com", "*.example.org:443", "192.0.2.0/24"])))]
    allow: Vec<String>,
    /// And the package index.
    #[serde(default)]
    packages: bool,
}

/// A policy, or whether there is any: `true` is `open`, `false` is `none`.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum NetworkWish {
    /// All or nothing.
    Any(bool),
    /// By a word.
    Word(PolicyWord),
    /// By a list.
    List(NetworkRules),
}

/// GPUs of a sandbox.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum GpuWish {
    /// `all` of them.
    Word(GpuWord),
    /// So many, whichever are free.
    Count(u32),
    /// These, by index or UUID.
    List(Vec<GpuName>),
}

/// Every GPU that there is.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum GpuWord {
    /// All.
    All,
}

/// One GPU.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum GpuName {
    /// As the driver counts them.
    Index(u32),
    /// A UUID (`GPU-…`), or that of a part (`MIG-…`).
    Uuid(String),
}

/// A policy by a list, as a body.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum NetworkBody {
    /// By itself.
    List(NetworkRules),
    /// As at creation.
    Named(NetworkNamed),
}

/// A policy as the field of a body.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct NetworkNamed {
    /// What the sandbox may reach from now on.
    network: NetworkWish,
}

/// What a sandbox did on the network so far.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct NetworkUse {
    /// Connections to the proxy that are open now.
    open: u64,
    /// Connections and requests that reached a host, or the package index.
    allowed: u64,
    /// Those that did not.
    refused: u64,
    /// Bytes sent to hosts.
    bytes_sent: u64,
    /// Bytes received from hosts, and from the package index.
    bytes_received: u64,
    /// The last of those that were refused or failed, the oldest first.
    #[schema(max_items = 32)]
    refusals: Vec<NetworkRefusal>,
}

/// A connection or request that reached nothing.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct NetworkRefusal {
    /// What it was for, as far as it could be read.
    host: String,
    /// Likewise; 0 where there was none.
    port: u16,
    /// `policy`, `address`, `host`, `request`, `limit`, `lookup`, `unreachable` or `timeout`.
    reason: String,
    /// The line that was answered.
    message: String,
}

/// The service runs.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct Health {
    /// Always `healthy`.
    status: Healthy,
}

/// Bytes, whatever they mean.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct RawBytes(Vec<u8>);

/// A file under the type that its name tells. A client that decodes by type may get any value of it:
/// a file of JSON may hold a number.
#[derive(ToSchema)]
#[schema(value_type = Value)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct FileOfAnyType(Vec<u8>);

/// A form with files.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct UploadForm {
    /// Path of the file; it comes before a file of more than 1 MiB. One that ends in a slash is a
    /// folder for all that have no path of their own. Of several files each may have one, before it.
    file_path: Option<String>,
    /// The file; there may be several such parts.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
}

/// Form of an archive.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) enum ArchiveFormat {
    /// ZIP.
    #[serde(rename = "zip")]
    Zip,
    /// POSIX tar.
    #[serde(rename = "tar")]
    Tar,
    /// The same through gzip.
    #[serde(rename = "tar.gz")]
    TarGz,
}

/// What an interrupt reached.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct Interrupted {
    /// Always `success`.
    status: Success,
    /// Ids of the contexts in which something ran.
    interrupted: Vec<String>,
}

/// Bytes that a process was given.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct Written {
    /// Always `success`.
    status: Success,
    /// How many.
    written_bytes: u64,
}

/// Something was done.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(crate) struct Done {
    /// Always `success`.
    status: Success,
    /// What was done.
    message: String,
}
