//! What a sandbox may reach: its policy, the listener inside, and the variables that lead programs there.
//!
//! A sandbox with the policy `none` has no listener at all. The first other policy makes one, which
//! stays until the sandbox ends; going back to `none` cuts what is open and refuses the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::error::{Error, ErrorKind};
use super::sandbox::Sandbox;
use super::types::NetworkInfo;
use crate::isolation::{self, Context};
use crate::network::{INDEX_PATH, Link, PROXY_PORT, Policy};

/// A sandbox's way out.
#[derive(Debug)]
pub(super) struct Network {
    link: Arc<Link>,
    /// Held while a listener is made, so that there is one.
    serving: tokio::sync::Mutex<()>,
    server: Mutex<Option<AbortHandle>>,
}

impl Network {
    pub(super) fn new(sandbox_id: &str) -> Self {
        Self {
            link: Arc::new(Link::new(sandbox_id, Policy::None)),
            serving: tokio::sync::Mutex::default(),
            server: Mutex::default(),
        }
    }

    /// What may be reached now.
    pub(super) fn policy(&self) -> Policy {
        self.link.policy()
    }

    /// For connections that this sandbox's policy rules.
    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// Cuts every connection.
    pub(super) fn stop(&self) {
        self.link.set_policy(Policy::None);
        if let Some(server) = self.server.lock().expect("not poisoned").take() {
            server.abort();
        }
    }
}

/// For clients.
pub(super) fn info(sandbox: &Sandbox) -> NetworkInfo {
    NetworkInfo {
        policy: sandbox.network.policy(),
        stats: sandbox.network.link.stats(),
    }
}

/// Changes what a sandbox may reach, for its open connections too.
///
/// # Errors
/// `Conflict` when user code has the proxy's port or the sandbox is being closed.
pub(super) async fn set_policy(sandbox: &Sandbox, policy: Policy) -> Result<(), Error> {
    sandbox.refuse_closing()?;
    sandbox.touch();
    open(sandbox, policy).await.map_err(|e| match e {
        None => Error::new(
            ErrorKind::Conflict,
            "proxy_port_in_use",
            format!(
                "code in the sandbox listens on port {PROXY_PORT}, where its proxy would; end that first"
            ),
        ),
        Some(e) => {
            tracing::error!(sandbox = sandbox.id(), "no listener: {e}");
            Error::new(
                ErrorKind::Internal,
                "network_failed",
                "the network policy could not be applied; it is as it was",
            )
        }
    })
}

/// The same, for a sandbox that nobody has yet.
pub(super) async fn open(
    sandbox: &Sandbox,
    policy: Policy,
) -> Result<(), Option<isolation::Error>> {
    let network = &sandbox.network;
    if policy != Policy::None {
        let _one = network.serving.lock().await;
        if network.server.lock().expect("not poisoned").is_none() {
            let listening = sandbox.init.listen().await.map_err(Some)?.ok_or(None)?;
            let listener = TcpListener::from_std(listening.into())
                .context("watch the proxy's socket")
                .map_err(Some)?;
            let egress = Arc::clone(&sandbox.host.egress);
            let server = tokio::spawn(egress.serve(listener, Arc::clone(&network.link)));
            *network.server.lock().expect("not poisoned") = Some(server.abort_handle());
            if sandbox.is_closing() {
                network.stop();
            }
        }
    }
    network.link.set_policy(policy);
    Ok(())
}

/// Variables for what a sandbox runs, so that the usual clients go through the proxy. A client's own
/// variables come after these.
pub(super) fn environment(policy: &Policy) -> BTreeMap<String, String> {
    if *policy == Policy::None {
        return BTreeMap::new();
    }
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let mut variables = vec![
        ("http_proxy", proxy.clone()),
        ("https_proxy", proxy.clone()),
        ("all_proxy", proxy.clone()),
        ("HTTP_PROXY", proxy.clone()),
        ("HTTPS_PROXY", proxy.clone()),
        ("ALL_PROXY", proxy.clone()),
        ("no_proxy", "localhost,127.0.0.1,::1".to_owned()),
        ("NO_PROXY", "localhost,127.0.0.1,::1".to_owned()),
        // Caches would fill the sandbox's disk and the list of its files; the host has one.
        ("PIP_NO_CACHE_DIR", "1".to_owned()),
        ("UV_NO_CACHE", "1".to_owned()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned()),
        ("UV_LINK_MODE", "copy".to_owned()),
        ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
    ];
    if policy.packages() {
        let index = format!("{proxy}{INDEX_PATH}");
        variables.push(("PIP_INDEX_URL", index.clone()));
        variables.push(("UV_DEFAULT_INDEX", index.clone()));
        variables.push(("UV_INDEX_URL", index));
    }
    variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
