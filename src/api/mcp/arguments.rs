//! A tool's arguments, decoded so that a refusal names the one that is wrong.

use std::borrow::Cow;

use rmcp::ErrorData;
use rmcp::handler::server::common::FromContextPart;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::body::wrong_field;
use crate::api::error::Refusal;

/// A tool's arguments. `rmcp` has a type of this name too, and knows from it which schema a tool has.
pub(super) struct Parameters<P>(pub(super) P);

impl<P: JsonSchema> JsonSchema for Parameters<P> {
    fn schema_name() -> Cow<'static, str> {
        P::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        P::json_schema(generator)
    }
}

impl<S, P: DeserializeOwned> FromContextPart<ToolCallContext<'_, S>> for Parameters<P> {
    fn from_context_part(context: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        let arguments = Value::Object(context.arguments.take().unwrap_or_default());
        let decoded = serde_path_to_error::deserialize(arguments);
        decoded.map(Self).map_err(|error| {
            let path = error.path().to_string();
            let refusal = wrong_field(&path, error.inner());
            ErrorData::invalid_params(refusal.detail().to_owned(), Some(refusal.facts()))
        })
    }
}

/// The refusal behind an error of [`Parameters`]: an answer for the model to act on, not a failure
/// of the protocol.
pub(super) fn refused(error: &ErrorData) -> Option<Refusal> {
    Refusal::of_facts(error.data.as_ref()?, &error.message)
}
