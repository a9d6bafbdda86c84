//! The supervisor's one error type. The API maps [`ErrorKind`] to a status; the text is for people
//! and holds nothing of the host.

use std::fmt;

use super::gone::End;
use crate::isolation;

/// What went wrong, as a client can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No such sandbox, file or context (404).
    NotFound,
    /// There was such a sandbox, and it has ended (410).
    Gone,
    /// The request asks for something out of range; `field` names it (422).
    Invalid,
    /// Not a path within the sandbox that this verb serves (400).
    BadPath,
    /// The sandbox is closing, or something else is in the way (409).
    Conflict,
    /// A limit of live sandboxes or of the queue is reached; try again later (429).
    Busy,
    /// The request or its result is larger than a limit (413).
    TooLarge,
    /// The sandbox's disk or inodes are used up (507).
    NoSpace,
    /// The service is stopping or a part of it is restarting; try again later (503).
    Unavailable,
    /// A server inside the sandbox cannot be reached or does not speak as it should (502).
    BadGateway,
    /// A server inside the sandbox does not answer in time (504).
    GatewayTimeout,
    /// Our own fault: logged in full, told in brief (500).
    Internal,
}

/// A failed verb.
#[derive(Debug)]
pub struct Error {
    /// What a client can act on.
    pub kind: ErrorKind,
    /// Stable snake_case code, for example `sandbox_not_found`.
    pub code: &'static str,
    /// One sentence for people.
    pub detail: String,
    /// Name of the offending field of the request, where one is.
    pub field: Option<&'static str>,
    /// Seconds after which trying again makes sense, for `Busy` and `Unavailable`.
    pub retry_after_seconds: Option<u32>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {}

impl Error {
    /// An error without a field and without advice on retrying.
    pub fn new(kind: ErrorKind, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            code,
            detail: detail.into(),
            field: None,
            retry_after_seconds: None,
        }
    }

    /// A field of the request that is out of range.
    pub fn invalid(field: &'static str, detail: impl Into<String>) -> Self {
        Self {
            field: Some(field),
            ..Self::new(ErrorKind::Invalid, "invalid_field", detail)
        }
    }

    /// The sandbox's limit of processes is used up, so nothing can be started in it.
    pub fn too_many_processes() -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_processes",
                "the sandbox has as many processes as it may (processes); end some or close it",
            )
        }
    }

    /// No sandbox could be made: the host has no room for another, or we failed.
    pub fn not_created(error: &isolation::Error) -> Self {
        tracing::error!("failed to create a sandbox: {error}");
        match error.exhausted() {
            Some(what) => Self {
                retry_after_seconds: Some(super::RETRY_AFTER_SECONDS),
                ..Self::new(
                    ErrorKind::Unavailable,
                    "host_exhausted",
                    format!("the host is out of {what}; close a sandbox"),
                )
            },
            None => Self::new(
                ErrorKind::Internal,
                "create_failed",
                "no sandbox could be created; the service's log says why",
            ),
        }
    }

    /// The caller's key has as many sandboxes as it may.
    pub fn too_many_sandboxes_of_key(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(super::RETRY_AFTER_SECONDS),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_sandboxes_of_key",
                format!("this key has {most} live sandboxes (its max_sandboxes); close one"),
            )
        }
    }

    /// The caller's key has started as much within a minute as it may.
    pub fn too_many_executions(most: u32, wait: std::time::Duration) -> Self {
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u32;
        Self {
            retry_after_seconds: Some(seconds),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_executions",
                format!(
                    "this key may start {most} executions, commands and processes in a minute (its \
                     executions_per_minute); try again in {seconds} s"
                ),
            )
        }
    }

    /// It is too late for anything else.
    pub fn sandbox_closing() -> Self {
        Self::new(
            ErrorKind::Conflict,
            "sandbox_closing",
            "the sandbox is being closed",
        )
    }

    /// As many executions wait in a context as may.
    pub fn queue_full(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "queue_full",
                format!("{most} executions already wait in this context (limits.queue)"),
            )
        }
    }

    /// The sandbox has as many contexts as it may.
    pub fn too_many_contexts(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_contexts",
                format!("the sandbox has {most} contexts (limits.contexts); delete one"),
            )
        }
    }

    /// The sandbox has as many checkpoints as it may.
    pub fn too_many_checkpoints(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_checkpoints",
                format!("the sandbox has {most} checkpoints (limits.checkpoints); delete one"),
            )
        }
    }

    /// The sandbox has no checkpoint of that id.
    pub fn checkpoint_not_found(id: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "checkpoint_not_found",
            format!("the sandbox has no checkpoint with id {:?}", shown(id)),
        )
    }

    /// The checkpoint's process was killed: for memory, or by user code.
    pub fn checkpoint_lost() -> Self {
        Self::new(
            ErrorKind::Conflict,
            "checkpoint_lost",
            "the checkpoint has died, of the sandbox's memory limit (memory_bytes) or by a signal; \
             delete it and make another",
        )
    }

    /// The sandbox has as many background processes as it may.
    pub fn too_many_background_processes(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_background_processes",
                format!(
                    "the sandbox has {most} background processes that run \
                     (limits.background_processes); delete one"
                ),
            )
        }
    }

    /// The sandbox's devpts has as many terminals as it may.
    pub fn too_many_terminals() -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_terminals",
                "the sandbox has as many terminals open as it may; end processes that use some",
            )
        }
    }

    /// A process did not read what was written to it in time.
    pub fn stdin_full(taken: usize, all: usize, longest: std::time::Duration) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "stdin_full",
                format!(
                    "the process took {taken} of {all} bytes within {} s (limits.stdin_seconds); \
                     send the rest when it reads again",
                    longest.as_secs()
                ),
            )
        }
    }

    /// As many watches of files run as may, of this sandbox or of all.
    pub fn too_many_watches() -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_watches",
                "as many watches of files run as may, in this sandbox or in all; end some",
            )
        }
    }

    /// There is no mirror of that id or name.
    pub fn mirror_not_found(wanted: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "mirror_not_found",
            format!("no mirror with id or name {:?}", shown(wanted)),
        )
    }

    /// It is being made.
    pub fn mirror_building(name: &str) -> Self {
        Self {
            retry_after_seconds: Some(2),
            ..Self::new(
                ErrorKind::Conflict,
                "mirror_building",
                format!("mirror {name:?} is still being made; ask for its status"),
            )
        }
    }

    /// Its processes could not be started, though they could when it was made.
    pub fn mirror_not_started(name: &str) -> Self {
        Self::new(
            ErrorKind::Internal,
            "mirror_not_started",
            format!("mirror {name:?} could not be started; the service's log says why"),
        )
    }

    /// The same wish has been granted under another name.
    pub fn mirror_exists(name: &str) -> Self {
        Self {
            field: Some("name"),
            ..Self::new(
                ErrorKind::Conflict,
                "mirror_exists",
                format!("name: these packages and modules are the mirror {name:?}; use that one"),
            )
        }
    }

    /// Another mirror has the name.
    pub fn mirror_name_taken(name: &str) -> Self {
        Self {
            field: Some("name"),
            ..Self::new(
                ErrorKind::Conflict,
                "mirror_name_taken",
                format!("name: another mirror is called {name:?}; delete it or take another name"),
            )
        }
    }

    /// There are as many layered mirrors as may be.
    pub fn too_many_mirrors(most: usize) -> Self {
        Self::new(
            ErrorKind::Busy,
            "too_many_mirrors",
            format!("{most} mirrors have been made (mirrors.max); delete one"),
        )
    }

    /// Live sandboxes use it.
    pub fn mirror_in_use(name: &str, users: usize) -> Self {
        Self::new(
            ErrorKind::Conflict,
            "mirror_in_use",
            format!("mirror {name:?} is used by {users} sandboxes; close them first"),
        )
    }

    /// It was made without a key, for everyone.
    pub fn mirror_is_shared(name: &str) -> Self {
        Self::new(
            ErrorKind::Conflict,
            "mirror_is_shared",
            format!(
                "mirror {name:?} is everyone's; the operator deletes it with `sandcell mirror remove`"
            ),
        )
    }

    /// The base is not a client's to remove.
    pub fn mirror_is_base() -> Self {
        Self::new(
            ErrorKind::Conflict,
            "mirror_is_base",
            "the base is what every mirror is made over; it cannot be deleted",
        )
    }

    /// The sandbox has no background process of that id.
    pub fn process_not_found(id: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "process_not_found",
            format!("the sandbox has no process with id {:?}", shown(id)),
        )
    }

    /// The sandbox has no context of that id.
    pub fn context_not_found(id: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "context_not_found",
            format!("the sandbox has no context with id {:?}", shown(id)),
        )
    }

    /// Nothing inside listens on the port.
    pub fn port_closed(port: u16) -> Self {
        Self::new(
            ErrorKind::BadGateway,
            "port_closed",
            format!(
                "nothing listens on port {port} of the sandbox's loopback interface (127.0.0.1, ::1); \
                 start a server there, or look at the sandbox's ports"
            ),
        )
    }

    /// As many connections to servers inside are open as may.
    pub fn too_many_port_connections(most: usize) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(
                ErrorKind::Busy,
                "too_many_port_connections",
                format!(
                    "{most} connections to servers in this sandbox are open \
                     (limits.port_connections); close some"
                ),
            )
        }
    }

    /// It was there.
    pub(super) fn sandbox_gone(id: &str, ended: &End) -> Self {
        Self::new(
            ErrorKind::Gone,
            "sandbox_gone",
            format!(
                "sandbox {:?} {} on {}; its files are gone with it",
                shown(id),
                ended.reason.sentence(),
                httpdate::fmt_http_date(ended.at)
            ),
        )
    }

    /// A kernel refuses to be copied; `objection` is its own word.
    pub(super) fn not_copyable(objection: &str) -> Self {
        Self::new(
            ErrorKind::Conflict,
            "not_copyable",
            format!(
                "the context cannot be copied: {objection}; \"force\": true copies it all the same"
            ),
        )
    }

    /// Several live sandboxes have the name.
    pub fn ambiguous_name(name: &str, count: usize) -> Self {
        Self {
            field: Some("sandbox_name"),
            ..Self::new(
                ErrorKind::Conflict,
                "ambiguous_name",
                format!(
                    "sandbox_name: {count} sandboxes are called {:?}; give sandbox_id",
                    shown(name)
                ),
            )
        }
    }

    /// There is no live sandbox of that id.
    pub fn sandbox_not_found(id: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "sandbox_not_found",
            format!("no sandbox with id {:?}", shown(id)),
        )
    }
}

/// An id that a client made up, for a message.
fn shown(id: &str) -> String {
    id.chars().filter(|c| !c.is_control()).take(64).collect()
}
