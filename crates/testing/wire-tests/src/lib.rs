//! Black-box tests: raw JSON text against a real `exec-server` process, over every transport.
//!
//! Invariant: no workspace crate is linked. The client is tungstenite, or lines on pipes;
//! expectations come from the protocol documents, not from the server's types. Fuzzing is in
//! `fuzz/`, unit tests are in the crates.

#![cfg(test)]

mod acknowledge;
mod auth;
mod backpressure;
mod binary;
mod cli;
mod client;
mod command_exec;
mod conformance_kit;
mod detached_processes;
mod discovery;
mod durable;
mod durable_faults;
mod durable_output;
mod durable_server;
mod envelope;
mod environment_config;
mod error_texts;
mod extensions;
mod fs_backpressure;
mod fs_bad_input;
mod fs_binary;
mod fs_blocks;
mod fs_copy_remove;
mod fs_directories;
mod fs_files;
mod fs_fixture;
mod fs_handles;
mod fs_large;
mod fs_metadata;
mod fs_pages;
mod fs_paths;
mod fs_rename;
mod fs_request_order;
mod fs_sandbox;
mod fs_search;
mod fs_walk;
mod fs_watch;
mod fs_watch_missing;
mod fs_write_options;
mod http_listener;
mod http_request;
mod lifecycle;
mod limits;
mod network;
mod params;
mod process;
mod process_read;
mod request_order;
mod sandbox;
mod server;
mod server_policy;
mod sessions;
mod shell_snapshot;
mod shutdown;
mod spawn;
mod start_params;
mod stdin;
mod stdio_lines;
mod supervisor_attacks;
mod termination;
mod tls;
mod tunnels;
mod unix_socket;
mod upstream_server;
mod websocket;
mod websocket_frames;

/// Makes each case a named test of every transport, such as `envelope::stdio::ids_are_echoed`.
macro_rules! over_every_transport {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
        $crate::over!(stdio, Stdio; $($case),+);
    };
}

/// Does the same for cases that need several connections, which stdio does not allow.
macro_rules! over_every_socket {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
    };
}

/// Does the same over one transport, for cases that do not depend on the transport.
macro_rules! over_one_transport {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(once, WebSocket; $($case),+);
    };
}

macro_rules! over {
    ($module:ident, $transport:ident; $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case($crate::server::Transport::$transport).await;
                }
            )+
        }
    };
}

pub(crate) use {over, over_every_socket, over_every_transport, over_one_transport};
