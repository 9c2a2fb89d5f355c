//! Runs the suite over memory and websocket, and its transport-dependent families over every other
//! transport: stdio, unix socket, and relay through a hub.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{
    collections::BTreeMap, ffi::OsString, num::NonZeroUsize, path::Path, sync::Arc, time::Duration,
};

use exec_client::client::ExecServerClient;
use exec_conformance::{
    conformance_suite,
    difference::RELAYED,
    hub::{Executor, Hub},
    server::{self, Server},
    subject::{HOST_ENVIRONMENT, Subject},
    transport_suite,
};
use exec_core::output_log::RetentionLimits;
use exec_env::environment::Environment;
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    catalog::{CatalogConfig, LocalCatalog},
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
    http_client::LocalHttpClient,
    local_network::LocalNetwork,
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::{
    connect::{ServerAddress, ServerProgram, WebSocketConnector},
    memory,
};
use exec_wire::{initialize::ServerInfo, limits};
use tempfile::TempDir;

const PROBE: &str = env!("CARGO_BIN_EXE_exec-probe");

conformance_suite!(remote_memory, over_memory());

async fn over_memory() -> Subject {
    let backend = local_backend();
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        busy_poll: Duration::ZERO,
        durability: None,
        server_name: ServerInfo {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let files = LocalFileSystem::default().with_policies(&backend);
    let home = server::home();
    let catalog = LocalCatalog::new(CatalogConfig {
        files: Arc::new(files.clone()),
        codex_home: home.path().join(".codex"),
        user_home: Some(home.path().to_owned()),
        system: home.path().join("system"),
        hostname: None,
    });
    let http = LocalHttpClient::new(environment());
    let open = move || {
        let backend = backend.clone();
        Environment {
            network: Arc::new(LocalNetwork::new(&backend)),
            backend: Arc::new(backend),
            files: Arc::new(files.clone()),
            http: Arc::new(http.clone()),
            catalog: Arc::new(catalog.clone()),
        }
    };
    let service = Service::new(config, open);
    let (here, there) = memory::pair();
    let served = service.clone();
    tokio::spawn(async move { served.serve(there).await });
    Subject::remote(here, PROBE, (service, home)).await
}

fn environment() -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> =
        BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    env.extend(HOST_ENVIRONMENT.map(|(name, value)| (name.into(), value.into())));
    env
}

fn local_backend() -> LocalBackend {
    let env = environment();
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let (version, retention) = ("0.0.0".to_owned(), RetentionLimits::default());
    LocalBackend::new(LocalConfig {
        env,
        host,
        version,
        retention,
        sandbox: exec_sandbox::SandboxSettings::default(),
    })
}

// Each connection starts its own server.
transport_suite!(remote_stdio, async {}, over_stdio);

async fn over_stdio((): &()) -> Subject {
    let home = server::home();
    let link = stdio_program(home.path()).start().unwrap();
    Subject::remote(link, PROBE, home).await
}

/// Returns a server program with the environment that subjects need, and no variables of the test.
fn stdio_program(home: &Path) -> ServerProgram {
    let mut server = server::program("stdio");
    let server = server.env("HOME", home).as_std();
    let variables = server.get_envs().map(|(name, value)| {
        let mut variable = name.to_owned();
        variable.push("=");
        variable.push(value.unwrap_or_default());
        variable
    });
    let mut args = vec![OsString::from("-i")];
    args.extend(variables);
    args.push(server.get_program().to_owned());
    args.extend(server.get_args().map(ToOwned::to_owned));
    ServerProgram {
        args,
        ..ServerProgram::new("env")
    }
}

transport_suite!(remote_unix, unix_server(), over_unix);

async fn unix_server() -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let server = Server::listen(&format!("unix://{}", socket.display())).await;
    (server, directory)
}

async fn over_unix((_, directory): &(Server, TempDir)) -> Subject {
    let socket = directory.path().join("socket");
    let link = WebSocketConnector::new(ServerAddress::Unix(socket))
        .open()
        .await
        .unwrap();
    Subject::remote(link, PROBE, ()).await
}

conformance_suite!(remote_websocket, over_websocket());

async fn over_websocket() -> Subject {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let link = WebSocketConnector::new(server.url.parse().unwrap())
        .open()
        .await
        .unwrap();
    Subject::remote(link, PROBE, server).await
}

transport_suite!(remote_relay, hub_with_executor(), over_relay);

async fn hub_with_executor() -> (Hub, Executor) {
    let hub = Hub::start().await;
    let executor = hub.executor().await;
    (hub, executor)
}

async fn over_relay((hub, _): &(Hub, Executor)) -> Subject {
    let client = ExecServerClient::connect_relay(hub.args()).await.unwrap();
    Subject::of_client(&client, RELAYED, PROBE, ())
}
