//! Environments in which the servers run, and the installed server programs.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_client::{backend::RemoteBackend, client::ExecServerClient};
use exec_core::output_log::RetentionLimits;
use exec_env::{
    environment::{Environment, ExecBackend, NoCatalog},
    http::NoHttpClient,
};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::memory;
use exec_wire::{id::ProcessId, initialize::ServerInfo, limits};
use tokio::task::JoinHandle;

/// A local or remote environment.
pub(crate) struct EnvironmentFixture {
    pub(crate) backend: Arc<dyn ExecBackend>,
    /// Task of the remote server.
    served: Option<JoinHandle<()>>,
}

impl EnvironmentFixture {
    pub(crate) fn local() -> Self {
        Self {
            backend: Arc::new(local()),
            served: None,
        }
    }

    pub(crate) async fn remote() -> Self {
        let config = ServiceConfig {
            session_ttl: Duration::ZERO,
            process_retention: limits::CLOSED_RETENTION,
            max_processes: limits::MAX_PROCESSES,
            allow_direct_exec: true,
            allow_prepared_exec: true,
            concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
            busy_poll: Duration::ZERO,
            durability: None,
            server_name: ServerInfo {
                name: "memory".to_owned(),
                version: "0.0.0".to_owned(),
            },
        };
        let backend = local();
        let service = Service::new(config, move || Environment {
            backend: Arc::new(backend.clone()),
            files: Arc::new(LocalFileSystem::default()),
            http: Arc::new(NoHttpClient),
            catalog: Arc::new(NoCatalog),
            network: Arc::new(exec_env::tunnel::NoNetwork),
        });
        let (near, far) = memory::pair();
        let served = tokio::spawn(async move {
            service.serve(far).await;
        });
        let client = ExecServerClient::connect(near, Default::default()).await;
        Self {
            backend: Arc::new(RemoteBackend::new(client.unwrap())),
            served: Some(served),
        }
    }

    /// Cuts the connection.
    pub(crate) fn disconnect(&self) {
        self.served.as_ref().unwrap().abort();
    }

    /// Returns an unused process id.
    pub(crate) fn id(&self) -> ProcessId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        ProcessId::new(&format!("mcp-{number}")).unwrap()
    }
}

fn local() -> LocalBackend {
    let path = std::env::var_os("PATH").unwrap();
    let env: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), path),
        ("EXEC_MCP_PLAIN".into(), "plain".into()),
        ("EXEC_MCP_TOKEN".into(), "secret".into()),
    ]);
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    LocalBackend::new(LocalConfig {
        env,
        host,
        version: "0.0.0".to_owned(),
        retention: RetentionLimits::default(),
        sandbox: exec_sandbox::SandboxSettings::default(),
    })
}

/// Script that installs the servers.
const INSTALL: &str = "scripts/mcp-servers";

/// Returns the program of `mcp-server-time`, from PyPI.
pub(crate) fn time() -> String {
    program("time/bin/mcp-server-time")
}

/// Returns the program of `@modelcontextprotocol/server-everything`, from npm.
pub(crate) fn everything() -> String {
    program("everything/node_modules/.bin/mcp-server-everything")
}

fn program(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = std::env::var_os("EXEC_MCP_SERVERS")
        .map_or_else(|| root.join("target/mcp-servers"), PathBuf::from);
    let program = folder.join(path);
    assert!(
        program.exists(),
        "{} is missing: run `{INSTALL}`, or name the folder in EXEC_MCP_SERVERS",
        program.display()
    );
    program.to_str().unwrap().to_owned()
}
