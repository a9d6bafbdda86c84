//! A small HTTP/1.1 client over one connection, for verbs that talk to a running service.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A connection to a service.
pub struct Client {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    api_key: Option<String>,
}

impl Client {
    /// Connects to `http://host:port`.
    pub async fn connect(address: &str) -> Result<Self, String> {
        let authority = address
            .trim_end_matches('/')
            .trim_start_matches("http://")
            .to_owned();
        let failed = |e: &dyn std::fmt::Display| format!("failed to reach {address}: {e}");
        let stream = TcpStream::connect(&authority)
            .await
            .map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
        tokio::spawn(connection);
        Ok(Self {
            authority,
            sender,
            api_key: std::env::var("SANDCELL_API_KEY").ok(),
        })
    }

    /// Sends this key instead of the environment's, where it is one.
    pub fn with_key(mut self, key: Option<String>) -> Self {
        self.api_key = key.or(self.api_key);
        self
    }

    /// Sends a request and gives the response as it begins.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.authority)
            .header("content-type", content_type);
        if let Some(key) = &self.api_key {
            request = request.header("x-api-key", key);
        }
        let request = request
            .body(Full::new(body.into()))
            .map_err(|e| e.to_string())?;
        let failed = |e| format!("the request failed: {e}");
        // Without this the next request after an answer would be refused.
        self.sender.ready().await.map_err(failed)?;
        self.sender.send_request(request).await.map_err(failed)
    }

    /// Sends a request and gives the whole answer, which must be a success.
    pub async fn bytes(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Bytes, String> {
        let response = self.send(method, path, content_type, body).await?;
        let status = response.status();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|e| format!("the answer broke off: {e}"))?
            .to_bytes();
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let detail = serde_json::from_slice::<Value>(&bytes)
            .ok()
            .and_then(|v| v["detail"].as_str().map(str::to_owned))
            .unwrap_or_default();
        Err(format!("{method} {path}: {status} {detail}"))
    }

    /// As [`Client::bytes`], decoded as JSON; `body` is JSON too.
    pub async fn json(&mut self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let bytes = self
            .bytes(method, path, "application/json", body.to_string())
            .await?;
        serde_json::from_slice(&bytes).map_err(|e| format!("the answer is not JSON: {e}"))
    }
}
