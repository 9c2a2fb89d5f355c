//! Black-box tests: raw JSON text against a real `exec-server` process, over every transport.
//!
//! Invariant: nothing of the workspace is linked in. The client is tungstenite, or lines on pipes;
//! what is expected comes from the protocol's documents, not from the server's own types.
//! Not here: fuzzing (`fuzz/`), unit tests of the crates.

#[cfg(test)]
mod auth;
#[cfg(test)]
mod binary;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod client;
#[cfg(test)]
mod command;
#[cfg(test)]
mod descendants;
#[cfg(test)]
mod detached;
#[cfg(test)]
mod ending;
#[cfg(test)]
mod envelope;
#[cfg(test)]
mod extensions;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod fs_bad_input;
#[cfg(test)]
mod fs_binary;
#[cfg(test)]
mod fs_blocks;
#[cfg(test)]
mod fs_directories;
#[cfg(test)]
mod fs_files;
#[cfg(test)]
mod fs_handles;
#[cfg(test)]
mod fs_large;
#[cfg(test)]
mod fs_missing;
#[cfg(test)]
mod fs_order;
#[cfg(test)]
mod fs_paths;
#[cfg(test)]
mod fs_rename;
#[cfg(test)]
mod fs_sandbox;
#[cfg(test)]
mod fs_search;
#[cfg(test)]
mod fs_trees;
#[cfg(test)]
mod fs_walk;
#[cfg(test)]
mod fs_watch;
#[cfg(test)]
mod fs_writing;
#[cfg(test)]
mod http;
#[cfg(test)]
mod input;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod order;
#[cfg(test)]
mod params;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod pressure;
#[cfg(test)]
mod process;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod server;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod shell_snapshot;
#[cfg(test)]
mod shutdown;
#[cfg(test)]
mod spawn;
#[cfg(test)]
mod start_params;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod unix_socket;

/// Makes each case a named test of every transport, such as `envelope::stdio::ids_are_echoed`.
#[cfg(test)]
macro_rules! over_every_transport {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
        $crate::over!(stdio, Stdio; $($case),+);
    };
}

/// The same for cases that need more than one connection, which stdio cannot have.
#[cfg(test)]
macro_rules! over_every_socket {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(websocket, WebSocket; $($case),+);
        $crate::over!(unix, Unix; $($case),+);
    };
}

/// The same for cases that are about files and not about how messages travel.
#[cfg(test)]
macro_rules! over_one_transport {
    ($($case:ident),+ $(,)?) => {
        $crate::over!(once, WebSocket; $($case),+);
    };
}

#[cfg(test)]
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

#[cfg(test)]
pub(crate) use {over, over_every_socket, over_every_transport, over_one_transport};
