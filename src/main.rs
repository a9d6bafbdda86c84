//! Hidden re-exec verbs before any thread exists, then the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The nursery is started with an empty environment and descriptor 3 as its socket.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|verb| verb == "nursery")
    {
        return ExitCode::from(sandcell::isolation::nursery::main() as u8);
    }
    sandcell::cli::main()
}
