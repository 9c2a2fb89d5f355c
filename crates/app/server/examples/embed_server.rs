//! A program of one's own that is an exec-server, too.
//!
//! ```text
//! cargo run --example embed_server -- ws://127.0.0.1:8765
//! ```
//!
//! The server runs commands through a helper, which is this program again: whoever links the crate
//! becomes the helper when it is started as one, before `main`. So nothing else is needed, and the
//! helper need not be installed anywhere.

use exec_server::{ExecServerRuntimePaths, config::ServerConfig, run_main};

// One thread moves all bytes.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // On glibc this has happened already; with other C libraries it must be the first thing.
    exec_server::run_if_helper();

    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| exec_server::DEFAULT_LISTEN_URL.to_owned());
    // Settings are those of the command line; no variable and no file adds to them.
    let config = ServerConfig::from_flags(["--listen", &url, "--session-ttl", "60"])?;

    // Prints the URL with the port that was found, and serves until SIGTERM or SIGINT.
    run_main(config, ExecServerRuntimePaths::default()).await
}
