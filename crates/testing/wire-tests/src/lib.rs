//! Black-box tests: raw JSON text against a real `exec-server` process, over every transport.
//!
//! Invariant: nothing of the workspace is linked in. The client is tungstenite, or lines on pipes;
//! what is expected comes from the protocol's documents, not from the server's own types.
//! Not here: fuzzing (`fuzz/`), unit tests of the crates.

#![cfg(test)]

mod acknowledge;
mod auth;
mod binary;
mod cli;
mod client;
mod command;
mod descendants;
mod detached;
mod discovery;
mod ending;
mod envelope;
mod environment_config;
mod error_texts;
mod extensions;
mod frames;
mod fs_bad_input;
mod fs_binary;
mod fs_blocks;
mod fs_directories;
mod fs_files;
mod fs_handles;
mod fs_large;
mod fs_missing;
mod fs_order;
mod fs_paths;
mod fs_pressure;
mod fs_rename;
mod fs_sandbox;
mod fs_search;
mod fs_trees;
mod fs_walk;
mod fs_watch;
mod fs_writing;
mod http;
mod http_request;
mod input;
mod lifecycle;
mod limits;
mod lines;
mod network;
mod order;
mod params;
mod policy;
mod pressure;
mod process;
mod reading;
mod sandbox;
mod scene;
mod server;
mod sessions;
mod shell_snapshot;
mod shutdown;
mod spawn;
mod start_params;
mod supervisor_attacks;
mod tls;
mod unix_socket;
mod upstream;
mod websocket;

/// Makes each case a named test of every transport, such as `envelope::stdio::ids_are_echoed`.
macro_rules! over_every_transport {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
        $crate::over!(stdio, Stdio; $($case),+);
    };
}

/// The same for cases that need more than one connection, which stdio cannot have.
macro_rules! over_every_socket {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
    };
}

/// The same for cases that are about files and not about how messages travel.
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
