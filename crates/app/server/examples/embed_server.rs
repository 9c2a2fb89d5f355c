//! Embeds a server into another program.
//!
//! ```text
//! cargo run --example embed_server -- ws://127.0.0.1:8765
//! ```
//!
//! The server runs commands through a helper, which is this program again: a program that links the
//! crate becomes the helper before `main` when it is started as one. Nothing else is installed.

use std::time::Duration;

use exec_server::{ExecServerRuntimePaths, config::ServerConfig, run_main};

// A single-threaded runtime suffices.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // With glibc this has already run; with other C libraries it must come first.
    exec_server::run_if_helper();

    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| exec_server::DEFAULT_LISTEN_URL.to_owned());
    // No flag, variable or file is read. The feature `executor` has `ServerConfig::from_flags`.
    let config = ServerConfig {
        listen: url.parse()?,
        session_ttl: Duration::from_secs(60),
        ..ServerConfig::default()
    };

    // Prints the URL with the actual port, and serves until SIGTERM or SIGINT.
    run_main(config, ExecServerRuntimePaths::default()).await
}
