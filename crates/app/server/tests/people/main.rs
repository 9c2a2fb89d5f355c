//! Tests of the commands for people: the real binary against real servers.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// Tests of `exec-server mcp`.
mod agents {
    mod claude_plugin;
    mod mcp_clients;
    mod mcp_door;
    mod mcp_stateless;
    mod mcp_tasks;
}
/// Tests of reaching environments: the local server, URLs, names, hubs.
mod environments {
    mod completions;
    mod directories;
    mod env_command;
    mod errors;
    mod invites;
    mod local_server;
    mod overview;
}
mod example_scripts;
mod files;
mod lying_server;
mod processes;
/// Tests of places with a shell: ssh hosts, containers, pods.
mod reach {
    mod bad_places;
    mod containers;
    mod ssh;
    mod ssh_host;
    mod stdio;
}
mod sandbox_flags;
/// Tests of metrics, logs, spans and packaging.
mod telemetry {
    mod executor;
    pub(crate) mod http_client;
    mod logs;
    mod metrics;
    mod packaging;
    mod span_collector;
    mod spans;
}
mod test_user;
mod upgrades;
