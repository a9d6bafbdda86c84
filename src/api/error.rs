//! The one mapping from what can fail to what a client is told.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::supervisor::{self, ErrorKind};

/// Why the service could not listen or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configured address may be reached by others and nothing asks them for a key.
    #[error(
        "refusing to listen on {0} without keys: anyone who reaches it could run code. \
         Set [server] api_keys, or listen on 127.0.0.1"
    )]
    Exposed(std::net::SocketAddr),
    /// A setting that would protect nothing, or that cannot be told from another.
    #[error("{0}")]
    Useless(String),
    /// An entry of a list of hosts or origins that nothing could ever match.
    #[error("[server] {list}: {entry:?} is not {expected}")]
    BadEntry {
        /// The list's name.
        list: &'static str,
        /// The entry as configured.
        entry: String,
        /// What an entry looks like.
        expected: &'static str,
    },
    /// The listening socket failed.
    #[error("failed to use the listening socket: {0}")]
    Listener(#[from] std::io::Error),
}

/// A request that is refused: the body of the answer is `{"detail", "code"}` and, where one field
/// of the request is to blame, `"field"`.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: Cow<'static, str>,
    detail: String,
    field: Option<String>,
    retry_after_seconds: Option<u32>,
    headers: Vec<(header::HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            detail: detail.into(),
            field: None,
            retry_after_seconds: None,
            headers: Vec::new(),
        }
    }

    /// 400: the request cannot be understood.
    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// 422: understood, but one field is wrong.
    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", detail)
        }
    }

    /// 413: larger than a limit, which the text names.
    pub(crate) fn too_large(limit: Limit) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            limit.code,
            format!(
                "{} is larger than {} bytes ({})",
                limit.what, limit.bytes, limit.name
            ),
        )
    }

    /// 403: not from here, or not for here.
    pub(crate) fn forbidden(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, detail)
    }

    /// 500 without any of the reason, which is logged where it is known.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the service failed to answer; its log says why",
        )
    }

    /// The same with one more header.
    pub(crate) fn with_header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Stable code, for example `sandbox_not_found`.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// One sentence for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// All but the sentence, for what carries a refusal in its own form.
    pub(crate) fn facts(&self) -> Value {
        json!({
            "status": self.status.as_u16(),
            "code": self.code,
            "field": self.field,
            "retry_after_seconds": self.retry_after_seconds,
        })
    }

    /// The refusal that these facts are of.
    pub(crate) fn of_facts(facts: &Value, detail: &str) -> Option<Self> {
        let status = u16::try_from(facts["status"].as_u64()?).ok()?;
        let text = |key: &str| facts[key].as_str().map(str::to_owned);
        let seconds = facts["retry_after_seconds"].as_u64();
        Some(Self {
            status: StatusCode::from_u16(status).ok()?,
            code: text("code")?.into(),
            detail: detail.to_owned(),
            field: text("field"),
            retry_after_seconds: seconds.and_then(|seconds| u32::try_from(seconds).ok()),
            headers: Vec::new(),
        })
    }
}

/// A limit on bytes, as an answer names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// The refusal's code.
    pub(crate) code: &'static str,
    /// What was too large, a noun.
    pub(crate) what: &'static str,
    /// The configuration's name for the limit.
    pub(crate) name: &'static str,
    /// Its value.
    pub(crate) bytes: u64,
}

impl From<supervisor::Error> for Refusal {
    fn from(error: supervisor::Error) -> Self {
        let status = match error.kind {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::BadPath => StatusCode::BAD_REQUEST,
            ErrorKind::Gone => StatusCode::GONE,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::BadGateway => StatusCode::BAD_GATEWAY,
            ErrorKind::GatewayTimeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Internal => {
                tracing::error!(code = error.code, detail = %error.detail, "a verb failed");
                return Self::internal();
            }
        };
        let again = matches!(error.kind, ErrorKind::Busy | ErrorKind::Unavailable);
        Self {
            status,
            code: error.code.into(),
            detail: error.detail,
            field: error.field.map(String::from),
            retry_after_seconds: error.retry_after_seconds.or(again.then_some(1)),
            headers: Vec::new(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        debug_assert!(
            super::openapi::is_known(self.status.as_u16(), &self.code),
            "{} ({}) is not in the list of codes",
            self.code,
            self.status
        );
        let mut body = json!({ "detail": self.detail, "code": self.code });
        if let Some(field) = self.field {
            body["field"] = field.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, seconds.max(1).into());
        }
        headers.extend(self.headers);
        response
    }
}
