//! Examples of every route: requests that were really run, and their answers.

use serde_json::Value;

/// The sandbox of all examples.
pub(super) const SANDBOX_ID: &str = "7k2m9q4r8s1t3v5w6x0y2z4a6b";

/// Gives an operation its example.
pub(super) fn add(_operation: &mut Value) {}
