//! Where commands run.

use std::{
    collections::BTreeMap, ffi::OsString, num::NonZeroUsize, path::Path, sync::Arc, time::Duration,
};

use exec_client::client::ExecServerClient;
use exec_core::log::Retention;
use exec_env::{catalog::NoCatalog, environment::Environment, http::NoHttpClient};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{Host, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::memory;
use exec_wire::{initialize::ServerName, limits};

/// This machine.
pub(crate) fn local() -> Environment {
    let env: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("HOST_PLAIN".into(), "plain".into()),
        ("HOST_TOKEN".into(), "secret".into()),
        ("PAGER".into(), "less".into()),
    ]);
    let host = Host::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let backend = LocalBackend::new(LocalConfig {
        env,
        host,
        version: "0.0.0".to_owned(),
        retention: Retention::default(),
        sandbox: exec_sandbox::Settings::default(),
    });
    Environment {
        files: Arc::new(LocalFileSystem::default().with_policies_of(&backend)),
        backend: Arc::new(backend),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
    }
}

/// This machine, behind a server that takes only commands that were approved.
pub(crate) async fn remote() -> Environment {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: false,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        attention: Duration::ZERO,
        server: ServerName {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let here = local();
    let service = Service::new(config, move || here.clone());
    let (near, far) = memory::pair();
    tokio::spawn(async move { service.serve(far).await });
    let client = ExecServerClient::connect(near, Default::default()).await;
    client.expect("the server takes a client").environment()
}
