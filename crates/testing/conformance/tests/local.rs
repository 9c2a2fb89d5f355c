//! Runs the suite on the local environment.

use std::{collections::BTreeMap, ffi::OsString, path::Path, sync::Arc};

use exec_conformance::{
    conformance_suite, server,
    subject::{HOST_ENVIRONMENT, ProcessIdScope, StartErrorForm, Subject, SubjectCapabilities},
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

conformance_suite!(local, std::future::ready(subject()));

fn subject() -> Subject {
    let mut env: BTreeMap<OsString, OsString> =
        BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    env.extend(HOST_ENVIRONMENT.map(|(name, value)| (name.into(), value.into())));
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let http = LocalHttpClient::new(env.clone());
    let (version, retention) = ("0.0.0".to_owned(), RetentionLimits::default());
    let backend = LocalBackend::new(LocalConfig {
        env,
        host,
        version,
        retention,
        sandbox: exec_sandbox::SandboxSettings::default(),
    });
    let files = LocalFileSystem::default().with_policies(&backend);
    let home = server::home();
    let catalog = LocalCatalog::new(CatalogConfig {
        files: Arc::new(files.clone()),
        codex_home: home.path().join(".codex"),
        user_home: Some(home.path().to_owned()),
        system: home.path().join("system"),
        hostname: None,
    });
    let network = LocalNetwork::new(&backend);
    let environment = Environment {
        backend: Arc::new(backend),
        files: Arc::new(files),
        http: Arc::new(http),
        catalog: Arc::new(catalog),
        network: Arc::new(network),
    };
    let capabilities = SubjectCapabilities {
        refusals: StartErrorForm::Errno,
        ids: ProcessIdScope::Free,
        differences: &[],
        on_the_way: &[],
    };
    Subject::new(
        environment,
        capabilities,
        env!("CARGO_BIN_EXE_exec-probe"),
        home,
    )
}
