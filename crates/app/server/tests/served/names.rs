//! Tests of the re-exported names.

use std::any::type_name;

use exec_server::{
    DEFAULT_LISTEN_URL, Environment, EnvironmentManager, ExecBackend, ExecProcess,
    ExecProcessEvent, ExecServerClient, ExecServerClientConnectOptions, ExecServerError,
    ExecServerListenUrlParseError, ExecServerRuntimePaths, ExecutorFileSystem, HttpClient,
    InitializeParams, InitializeResponse, LocalFileSystem, LocalProcess,
    RelayExecServerConnectArgs, RemoteEnvironmentConfig, RemoteExecServerConnectArgs,
    RemoteFileSystem, RemoteProcess, SelectedCapabilityRoot, WriteStatus, config::ServerConfig,
    protocol,
};

/// Returns the last segment of a type's path.
fn last<T: ?Sized>() -> &'static str {
    type_name::<T>().rsplit("::").next().unwrap()
}

#[test]
fn reexported_names_match_their_types() {
    let names = [
        (last::<ExecServerClient>(), "ExecServerClient"),
        (last::<ExecServerError>(), "ExecServerError"),
        (last::<dyn ExecBackend>(), "ExecBackend"),
        (last::<dyn ExecProcess>(), "ExecProcess"),
        (last::<ExecProcessEvent>(), "ExecProcessEvent"),
        (last::<dyn ExecutorFileSystem>(), "ExecutorFileSystem"),
        (last::<dyn HttpClient>(), "HttpClient"),
        (last::<Environment>(), "Environment"),
        (last::<EnvironmentManager>(), "EnvironmentManager"),
        (last::<LocalProcess>(), "LocalProcess"),
        (last::<RemoteProcess>(), "RemoteProcess"),
        (last::<LocalFileSystem>(), "LocalFileSystem"),
        (last::<RemoteFileSystem>(), "RemoteFileSystem"),
        (last::<SelectedCapabilityRoot>(), "SelectedCapabilityRoot"),
        (last::<WriteStatus>(), "WriteStatus"),
        (last::<InitializeParams>(), "InitializeParams"),
        (last::<InitializeResponse>(), "InitializeResponse"),
        (last::<ExecServerRuntimePaths>(), "ExecServerRuntimePaths"),
        (
            last::<ExecServerClientConnectOptions>(),
            "ExecServerClientConnectOptions",
        ),
        (
            last::<RemoteExecServerConnectArgs>(),
            "RemoteExecServerConnectArgs",
        ),
        (last::<RemoteEnvironmentConfig>(), "RemoteEnvironmentConfig"),
        (
            last::<RelayExecServerConnectArgs>(),
            "RelayExecServerConnectArgs",
        ),
        (
            last::<ExecServerListenUrlParseError>(),
            "ListenUrlParseError",
        ),
        (last::<protocol::process::StartProcess>(), "StartProcess"),
        (last::<protocol::fs::ReadFile>(), "ReadFile"),
    ];
    for (found, expected) in names {
        assert_eq!(found, expected);
    }
}

#[test]
fn default_listen_url_is_a_free_loopback_port() {
    assert_eq!(DEFAULT_LISTEN_URL, "ws://127.0.0.1:0");
    let config = ServerConfig::from_flags(["--listen", DEFAULT_LISTEN_URL]).unwrap();
    assert!(config.listen.is_loopback());
    let error = ServerConfig::from_flags(["--listen", "ws://nowhere"]).unwrap_err();
    assert!(error.to_string().contains("ws://nowhere"), "{error}");
}
