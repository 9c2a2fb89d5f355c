//! The suite over a link in memory, to a service in this process.

use std::{
    collections::BTreeMap, ffi::OsString, num::NonZeroUsize, path::Path, sync::Arc, time::Duration,
};

use exec_conformance::{
    conformance_suite, server,
    subject::{HOST_ENVIRONMENT, Subject},
};
use exec_core::log::Retention;
use exec_env::environment::Environment;
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    catalog::{CatalogConfig, LocalCatalog},
    filesystem::LocalFileSystem,
    host::{Host, HostFacts},
    http_client::LocalHttpClient,
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::memory;
use exec_wire::{initialize::ServerName, limits};

conformance_suite!(remote_memory, subject());

async fn subject() -> Subject {
    let backend = local();
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        attention: Duration::ZERO,
        server: ServerName {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let files = LocalFileSystem::default().with_policies_of(&backend);
    let home = server::home();
    let catalog = LocalCatalog::new(CatalogConfig {
        files: Arc::new(files.clone()),
        codex_home: home.path().join(".codex"),
        user_home: Some(home.path().to_owned()),
        system: home.path().join("system"),
        hostname: None,
    });
    let http = LocalHttpClient::new(environment());
    let open = move || Environment {
        backend: Arc::new(backend.clone()),
        files: Arc::new(files.clone()),
        http: Arc::new(http.clone()),
        catalog: Arc::new(catalog.clone()),
    };
    let service = Service::new(config, open);
    let (here, there) = memory::pair();
    let served = service.clone();
    tokio::spawn(async move { served.serve(there).await });
    Subject::remote(here, env!("CARGO_BIN_EXE_exec-probe"), (service, home)).await
}

fn environment() -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> =
        BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    env.extend(HOST_ENVIRONMENT.map(|(name, value)| (name.into(), value.into())));
    env
}

fn local() -> LocalBackend {
    let env = environment();
    let host = Host::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let (version, retention) = ("0.0.0".to_owned(), Retention::default());
    LocalBackend::new(LocalConfig {
        env,
        host,
        version,
        retention,
        sandbox: exec_sandbox::Settings::default(),
    })
}
