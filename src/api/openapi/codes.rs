//! Every code that an answer of this service can have: one list, which the description shows and
//! tests hold equal to the code.

/// A code, its status, and what it says.
pub(super) struct Code {
    pub(super) name: &'static str,
    pub(super) status: u16,
    pub(super) meaning: &'static str,
}

macro_rules! codes {
    ($($name:ident $status:literal $meaning:literal;)+) => {
        /// All of them, by status.
        pub(super) const CODES: &[Code] = &[
            $(Code { name: stringify!($name), status: $status, meaning: $meaning }),+
        ];
    };
}

codes! {
    bad_archive 400 "the archive cannot be read";
    bad_host 400 "not exactly one Host header";
    bad_multipart 400 "the form is malformed";
    bad_path 400 "not a path below the working directory";
    bad_query 400 "the query cannot be understood";
    bad_target 400 "a path or query that is not passed on";
    bad_transfer_encoding 400 "a transfer coding that is not passed on";
    bad_uri 400 "not the address of a resource";
    body_timeout 400 "the body stopped arriving";
    broken_body 400 "the body ended before its end";
    invalid_utf8 400 "text that is not UTF-8";
    local_file_failed 400 "a file of the server could not be read or written";
    local_path_not_allowed 400 "the server does not lend that directory";
    malformed_frame 400 "a text frame of a WebSocket that cannot be understood";
    malformed_json 400 "the body is not JSON";
    malformed_message 400 "not a message of the protocol";
    not_a_directory 400 "the path leads to something else than a directory";
    not_a_regular_file 400 "the path leads to a directory or something else";
    not_permitted 400 "the sandbox's user may not do this to the file";
    symbolic_link 400 "the path leads over a symbolic link";
    unsafe_archive 400 "the archive has entries that are not to be unpacked";
    unsupported_content_type 400 "a body of another type is needed";
    websocket_required 400 "the route speaks WebSocket only";
    unauthorized 401 "a key is needed, and this is none";
    host_not_allowed 403 "the service does not answer to that Host";
    no_service_worker 403 "a service worker needs an origin of its own";
    origin_not_allowed 403 "pages of that Origin may not call";
    checkpoint_not_found 404 "the sandbox has no such checkpoint";
    container_not_found 404 "there is no such container";
    context_not_found 404 "the sandbox has no such context";
    file_not_found 404 "there is no such file";
    local_file_not_found 404 "the server has no such file";
    mirror_not_found 404 "there is no such mirror";
    not_found 404 "there is no such route";
    process_not_found 404 "the sandbox has no such background process";
    sandbox_not_found 404 "there is no such sandbox";
    session_not_found 404 "there is no such session";
    tool_not_found 404 "there is no such tool";
    workspace_not_found 404 "there is no such workspace";
    method_not_allowed 405 "the route does not take that method";
    ambiguous_name 409 "several live sandboxes have the name";
    checkpoint_lost 409 "the checkpoint has died";
    default_context 409 "the default context cannot be deleted";
    directory_not_empty 409 "there is something in the directory";
    file_changed 409 "the file was changed meanwhile, or something is in its way";
    file_exists 409 "something has that path";
    file_work_failed 409 "the file could not be worked on inside";
    local_file_changed 409 "a file of the server changed while it was read";
    local_file_failed 409 "a file of the server could not be read or written";
    mirror_building 409 "the mirror is still being made";
    mirror_exists 409 "there is a mirror of the same packages";
    mirror_failed 409 "the mirror could not be made";
    mirror_in_use 409 "live sandboxes use the mirror";
    mirror_is_base 409 "the base cannot be deleted";
    mirror_is_shared 409 "the mirror is everyone's, and the operator's to delete";
    mirror_name_taken 409 "another mirror has that name";
    no_terminal 409 "the process has no terminal";
    not_copyable 409 "a copy of the Python process would not be sound; the detail names the thread, library or file";
    not_forked 409 "the Python process could not be copied";
    output_not_saved 409 "the sandbox did not take over-long output in time";
    packages_unreadable 409 "the sandbox's packages could not be listed";
    process_ended 409 "the process has ended";
    project_not_copied 409 "the project could not be copied";
    proxy_port_in_use 409 "something inside listens on the port of the network proxy";
    sandbox_closing 409 "the sandbox is being closed";
    several_workspaces 409 "the container has several workspaces: name one";
    stdin_closed 409 "standard input of the process is closed";
    unpack_failed 409 "the unpacking was ended inside the sandbox";
    upload_failed 409 "the upload was ended inside the sandbox";
    watch_ended 409 "the watch was ended inside the sandbox";
    sandbox_gone 410 "the sandbox has ended, and its files with it";
    file_changed_since 412 "the file is another version than was asked for";
    archive_too_large 413 "the archive takes too long to unpack";
    body_too_large 413 "larger than server.max_body_bytes";
    code_too_large 413 "larger than limits.code_bytes";
    command_too_large 413 "larger than a command may be";
    file_too_large 413 "larger, or more files, than a limit";
    local_file_too_large 413 "a file of the server is larger than a limit";
    project_too_large 413 "the project is larger than a limit";
    too_many_files 413 "the archive has more entries than a sandbox may have files";
    upload_too_large 413 "larger than server.max_upload_bytes";
    range_not_satisfiable 416 "the file does not have that range";
    bad_cwd 422 "a directory that cannot be entered";
    bad_requirements_file 422 "a file that lists no requirements";
    gpu_unavailable 422 "the host has no such GPU, not as many, or none at all";
    gpus_disabled 422 "the service gives no GPUs";
    invalid_body 422 "the body is JSON, but not an object";
    invalid_field 422 "a field is missing, unknown, of the wrong type or out of range; `field` names it";
    gpus_in_use 429 "other sandboxes have the GPU, or too many of them";
    out_of_memory 429 "the sandbox has no memory for another Python process";
    queue_full 429 "too many executions wait in the context";
    stdin_full 429 "the process did not read everything in time";
    too_many_background_processes 429 "the sandbox runs as many as it may";
    too_many_checkpoints 429 "the sandbox has as many as it may";
    too_many_contexts 429 "the sandbox has as many as it may";
    too_many_executions 429 "the key has started as much within a minute as it may";
    too_many_installs 429 "too many installations wait in the sandbox";
    too_many_mirrors 429 "there are as many as may be";
    too_many_port_connections 429 "too many connections to servers inside";
    too_many_processes 429 "the sandbox has as many processes as it may";
    too_many_requests 429 "too many requests for packages wait in the sandbox";
    too_many_sandboxes 429 "there are as many as may be";
    too_many_sandboxes_of_key 429 "the key has as many live sandboxes as it may";
    too_many_terminals 429 "the sandbox has as many terminals as it may";
    too_many_watches 429 "as many watches of files run as may";
    internal 500 "the service failed; its log says why";
    bad_answer 502 "the server inside gave no proper answer";
    port_closed 502 "nothing inside listens on the port";
    port_unreachable 502 "the port could not be reached";
    execution_lost 503 "the sandbox was closed while the code ran";
    host_exhausted 503 "the host has no open files or memory left for another sandbox";
    stopping 503 "the service is stopping";
    port_timeout 504 "the server inside did not answer in time";
    disk_full 507 "the sandbox's disk or its inodes are used up";
}

/// An entry of a code, which may have several statuses.
pub(super) fn find(name: &str) -> Option<&'static Code> {
    CODES.iter().find(|code| code.name == name)
}

/// Whether an answer of this status and code is described.
pub(crate) fn is_known(status: u16, name: &str) -> bool {
    let mut codes = CODES.iter();
    codes.any(|code| code.status == status && code.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What stands before a code where an answer is made, and the status that it stands for.
    const MAKERS: &[(&str, u16)] = &[
        ("bad_request(", 400),
        ("forbidden(", 403),
        ("ErrorKind::NotFound,", 404),
        ("ErrorKind::Invalid,", 422),
        ("ErrorKind::BadPath,", 400),
        ("ErrorKind::Conflict,", 409),
        ("ErrorKind::Gone,", 410),
        ("ErrorKind::Busy,", 429),
        ("ErrorKind::TooLarge,", 413),
        ("ErrorKind::NoSpace,", 507),
        ("ErrorKind::Unavailable,", 503),
        ("ErrorKind::BadGateway,", 502),
        ("ErrorKind::GatewayTimeout,", 504),
        ("StatusCode::BAD_REQUEST,", 400),
        ("StatusCode::UNAUTHORIZED,", 401),
        ("StatusCode::FORBIDDEN,", 403),
        ("StatusCode::NOT_FOUND,", 404),
        ("StatusCode::METHOD_NOT_ALLOWED,", 405),
        ("StatusCode::CONFLICT,", 409),
        ("StatusCode::GONE,", 410),
        ("StatusCode::PRECONDITION_FAILED,", 412),
        ("StatusCode::PAYLOAD_TOO_LARGE,", 413),
        ("StatusCode::RANGE_NOT_SATISFIABLE,", 416),
        ("StatusCode::UNPROCESSABLE_ENTITY,", 422),
        ("StatusCode::TOO_MANY_REQUESTS,", 429),
        ("StatusCode::INTERNAL_SERVER_ERROR,", 500),
        ("StatusCode::BAD_GATEWAY,", 502),
        ("StatusCode::SERVICE_UNAVAILABLE,", 503),
        ("StatusCode::GATEWAY_TIMEOUT,", 504),
        ("code:", 0),
    ];

    fn sources(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("src can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("codes.rs") {
                let text = fs::read_to_string(path).expect("a source is text");
                found.push(text.split("#[cfg(test)]").next().unwrap_or_default().into());
            }
        }
    }

    /// A string of snake case at the start of some code.
    fn word(code: &str) -> Option<&str> {
        let rest = code.trim_start().strip_prefix('"')?;
        let (word, _) = rest.split_once('"')?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        (!word.is_empty() && word.chars().all(plain)).then_some(word)
    }

    /// Codes that the sources make, with their status (0 where it is not beside them).
    fn made() -> BTreeSet<(String, u16)> {
        let mut texts = Vec::new();
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        sources(&src.join("api"), &mut texts);
        sources(&src.join("supervisor"), &mut texts);
        let mut made = BTreeSet::new();
        for text in &texts {
            for (maker, status) in MAKERS {
                let after = text
                    .match_indices(maker)
                    .map(|(at, _)| &text[at + maker.len()..]);
                made.extend(
                    after
                        .filter_map(word)
                        .map(|word| (word.to_owned(), *status)),
                );
            }
        }
        made
    }

    #[test]
    fn the_list_holds_what_the_sources_make_and_nothing_else() {
        let made = made();
        assert!(made.len() > 50, "the sources are read wrongly: {made:?}");
        let unknown = |(name, status): &&(String, u16)| match status {
            0 => find(name).is_none(),
            status => !is_known(*status, name),
        };
        let undescribed: Vec<_> = made.iter().filter(unknown).collect();
        let names: BTreeSet<&str> = made.iter().map(|(name, _)| &**name).collect();
        let unused = CODES.iter().filter(|code| !names.contains(code.name));
        let unused: Vec<_> = unused.map(|code| code.name).collect();
        assert!(
            undescribed.is_empty() && unused.is_empty(),
            "not described: {undescribed:?}; never answered: {unused:?}"
        );
    }

    #[test]
    fn codes_are_sorted_and_unique() {
        let keys: Vec<_> = CODES.iter().map(|code| (code.status, code.name)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
    }
}
