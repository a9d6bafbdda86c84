//! A gateway behind a listener on loopback, as the proxy inside a sandbox's network will be.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sandcell::config::Packages;
use sandcell::mirror::host::PythonIndex;
use sandcell::network::Gateway;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::fixture::temp_dir;

/// A gateway that answers, and its runtime.
pub struct Serving {
    pub gateway: Gateway,
    pub address: SocketAddr,
    pub cache: PathBuf,
    pub runtime: Runtime,
    pub dir: TempDir,
}

impl Serving {
    /// In front of the index of this host.
    pub fn host(default_index: &str) -> Self {
        Self::make(|cache| {
            Gateway::new(&Packages::default(), cache, default_index).expect("a gateway starts")
        })
    }

    /// In front of another index, on a host that trusts these certificates and no others.
    pub fn of(config: &Packages, index: &PythonIndex, certificates: &str) -> Self {
        Self::make(|cache| {
            Gateway::with_host(
                config,
                cache,
                "http://127.0.0.1:9/none",
                index,
                certificates,
            )
            .expect("a gateway starts")
        })
    }

    fn make(gateway: impl FnOnce(PathBuf) -> Gateway) -> Self {
        let dir = temp_dir();
        let cache = dir.path().join("packages");
        let gateway = gateway(cache.clone());
        let runtime = Runtime::new().expect("a runtime starts");
        let address = runtime.block_on(serve(gateway.clone()));
        Self {
            gateway,
            address,
            cache,
            runtime,
            dir,
        }
    }
}

pub async fn serve(gateway: Gateway) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let gateway = gateway.clone();
                    async move { Ok::<_, Infallible>(gateway.answer(request).await) }
                });
                let connection = http1::Builder::new();
                let _ = connection
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}
