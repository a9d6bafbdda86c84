//! sandcell: warm, isolated, stateful Python sandboxes on bare Linux.
//!
//! # Processes
//!
//! ```text
//! supervisor   host root, tokio. HTTP and MCP, leases, pool, cgroups. Runs no sandbox code.
//! └─ nursery   PID 1 of an outer PID namespace in an outer user namespace; single-threaded; clones
//!    │         inits, starts the zygote. When it dies, the kernel kills everything below.
//!    ├─ zygote Python with everything imported, in the mirror, read-only, no network. Forks kernels.
//!    └─ sandbox (user, pid, mnt, net, uts, ipc, cgroup namespaces; a host uid of its own)
//!       ├─ init      PID 1 inside, forked from the nursery. Reaps, starts commands and file work.
//!       ├─ kernels   forked from the zygote into the sandbox, one a context: IPython, the user's code
//!       │            (and, asleep beside each, its checkpoint: the kernel as it was before the next code)
//!       ├─ commands  children of init with the user's identity, and processes in the background; a
//!       │            terminal is opened inside, and its controlling side passed up
//!       ├─ file work children of init with the user's identity; files are passed up as descriptors
//!       └─ installer uv, in user, mount and network namespaces of its own that user code cannot enter
//! ```
//!
//! A mirror with a layer of packages has a nursery and zygote of its own while it is in use, in a user
//! namespace with other ids and in cgroups with limits: what its packages do when they are imported,
//! they do to that mirror's sandboxes alone ([`supervisor`]'s realms).
//!
//! # Who speaks with whom
//!
//! | pair | carried by | trusted |
//! |---|---|---|
//! | supervisor – nursery | `SOCK_SEQPACKET`, JSON, descriptors ([`isolation::spec`]) | yes |
//! | supervisor – zygote | the same ([`kernel::protocol`]) | yes: it never runs user code; a layered mirror's runs its packages, and no: it can harm the sandboxes of that mirror. All run under system call filters |
//! | supervisor – init | the same, a reply socket for each request | yes |
//! | supervisor – kernel | stream socket, framed JSON, and two pipes | no |
//! | supervisor – file work, command | reply socket, pipes or a terminal | no |
//!
//! # Invariants
//!
//! - A sandbox has every protection or does not start; what a process did to lock itself down is
//!   checked from outside ([`isolation::posture`]) before it is given code.
//! - The host never resolves a path inside a sandbox: it gets descriptors, and looks at those only.
//! - A path of the host that a client names is resolved beneath a directory that the operator listed,
//!   without following a link ([`supervisor::LocalDirs`]).
//! - What comes from inside has a length limit that is checked before memory is taken, and a forged
//!   message harms the sandbox that forged it.
//! - User code has a host uid that no other live sandbox has, no capability, no way to get one, and
//!   no network but its own loopback. What a policy lets it reach beyond that it reaches through a
//!   listener there that the supervisor serves ([`network`]); nothing is ever routed.
//! - The mirror is read-only and content-addressed while any sandbox uses it; nobody below the
//!   supervisor can make its mounts writable ([`isolation::spawner`]).
//! - Nothing inside outlives the supervisor. What the kernel keeps after a `kill -9` (cgroups) the
//!   next start removes; mounts live in namespaces that died.
//! - Every limit has a name in [`config`].
//!
//! Deliberately absent: a daemon beside the service, a network bridge, a container image, a mount
//! on the host, a set-uid helper, and configuration that weakens isolation.
//!
//! # Where things are
//!
//! [`api`] decodes, calls one verb of the [`supervisor`], encodes. The supervisor uses
//! [`isolation`], [`kernel`], [`mirror`], [`network`] and [`gpu`]; nothing calls upward. [`cli`] is the command line.

pub mod api;
pub mod cli;
pub mod config;
pub mod gpu;
pub mod isolation;
pub mod kernel;
pub mod mirror;
pub mod network;
pub mod supervisor;
mod surrogate;
