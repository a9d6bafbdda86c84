//! Why nothing was reached, in words for whoever asked inside.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use hyper::ext::ReasonPhrase;

use super::target::Target;

/// Header that carries [`Code::word`].
const HEADER: &str = "x-sandcell-refused";
/// Longest part of a line that goes into a status line: clients show it, and cut it off.
const REASON_BYTES: usize = 200;
/// Longest line.
const LINE_BYTES: usize = 1024;

/// What kind of refusal or failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The policy does not allow it.
    Policy,
    /// The address is not public.
    Address,
    /// The host is written in a way that no one form of an address or a name is.
    Host,
    /// The request is not one that this proxy takes.
    Request,
    /// Too many connections at once, or in a second.
    Limit,
    /// The name has no address.
    Lookup,
    /// The host did not take the connection, or broke it off.
    Unreachable,
    /// The time was over.
    Timeout,
}

impl Code {
    /// The word that names it in headers, logs and counts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Address => "address",
            Self::Host => "host",
            Self::Request => "request",
            Self::Limit => "limit",
            Self::Lookup => "lookup",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Policy | Self::Address | Self::Host => StatusCode::FORBIDDEN,
            Self::Request => StatusCode::BAD_REQUEST,
            Self::Limit => StatusCode::TOO_MANY_REQUESTS,
            Self::Lookup | Self::Unreachable => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Reply of RFC 1928, section 6.
    pub(super) fn socks_reply(self) -> u8 {
        match self {
            Self::Policy | Self::Address | Self::Host => 0x02,
            Self::Request | Self::Limit => 0x01,
            Self::Lookup => 0x04,
            Self::Unreachable => 0x05,
            Self::Timeout => 0x06,
        }
    }
}

/// Why nothing was reached: one line of printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    code: Code,
    line: String,
}

impl Refusal {
    /// A refusal of a request for a target.
    pub fn of_target(code: Code, target: &Target, why: &str) -> Self {
        let verb = match code {
            Code::Lookup | Code::Unreachable | Code::Timeout => "failed",
            _ => "refused",
        };
        Self::new(code, &format!("connection to {target} {verb}: {why}"))
    }

    /// A refusal of anything else. What does not print is escaped, what is too long cut off.
    pub fn new(code: Code, text: &str) -> Self {
        let mut line = String::from("sandcell: ");
        line.extend(text.chars().flat_map(char::escape_default).take(LINE_BYTES));
        // `escape_default` escapes quotes too, which print well.
        let line = line.replace("\\\"", "\"").replace("\\'", "'");
        Self { code, line }
    }

    /// What kind it is.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The line, without a newline.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The answer over HTTP. The status line carries the line too: of the answer to a CONNECT most
    /// clients show nothing else. The connection ends with it.
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.line)));
        *response.status_mut() = self.code.status();
        let reason = &self.line.as_bytes()[..self.line.len().min(REASON_BYTES)];
        if let Ok(reason) = ReasonPhrase::try_from(reason) {
            response.extensions_mut().insert(reason);
        }
        let headers = response.headers_mut();
        headers.insert(HEADER, HeaderValue::from_static(self.code.word()));
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_of_printable_ascii() {
        let long = "é\r\nX-Header: 1\0\x1b[31m ".repeat(1000);
        let refusal = Refusal::new(Code::Request, &long);
        assert!(
            refusal
                .line()
                .bytes()
                .all(|byte| (b' '..=b'~').contains(&byte))
        );
        assert!(refusal.line().len() <= LINE_BYTES + "sandcell: ".len());
        let response = refusal.response();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert!(
            response
                .extensions()
                .get::<ReasonPhrase>()
                .unwrap()
                .as_bytes()
                .len()
                <= REASON_BYTES
        );
    }
}
