//! What survives a restore, a fork and an asked-for restore, and what is refused with a reason.
