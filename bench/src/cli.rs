//! The command line.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};

/// Measures exec-server against floors and peers.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchCli {
    /// What to measure.
    #[command(flatten)]
    pub(crate) options: BenchOptions,
    /// Set if this process is a helper of another run.
    #[command(subcommand)]
    pub(crate) helper: Option<HelperCommand>,
}

/// What to measure and where to write it.
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Path of our server, measured as column "ours". Default: target/release/exec-server
    #[arg(long, value_name = "PATH")]
    pub(crate) server: Option<PathBuf>,
    /// Path of the stock Codex CLI; starts its `exec-server` and adds the column "stock"
    #[arg(long, value_name = "PATH")]
    pub(crate) stock: Option<PathBuf>,
    /// Address of a server that already runs; adds a column. May be repeated
    #[arg(long = "peer", value_name = "[NAME=]ws://HOST:PORT", value_parser = parse_peer)]
    pub(crate) peers: Vec<PeerServer>,
    /// Run a smoke test of a few seconds; its numbers are not meaningful
    #[arg(long, conflicts_with = "check")]
    pub(crate) quick: bool,
    /// Exit non-zero if our server misses a goal (column "reach")
    #[arg(long)]
    pub(crate) check: bool,
    /// Measure only groups whose name contains TEXT: spawn, inflight, echo, output, terminal,
    /// memory, stalled, flood, startup, fs-calls, fs-bulk, fs-walk, fs-peak, fs-watch, durable,
    /// sandbox, client, tools, people, ssh, sdk, relay, tunnel, hub-frames, hub-crowd, hub-nodes.
    /// For example, `fs` selects all file measures and `hub` all hub measures. May be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Directory for results, logs and the stock server's CODEX_HOME; must not be below a temporary
    /// directory
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub(crate) out: PathBuf,
    /// Write the numbers as JSON to FILE. Default: OUT/bench.json
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the chart as SVG to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the table as Markdown to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

/// Helper processes that a run starts from this binary.
#[derive(Debug, Subcommand)]
pub(crate) enum HelperCommand {
    /// Writes BYTES to stdout in 64 KiB writes.
    #[command(hide = true)]
    Emit {
        /// Number of bytes to write.
        bytes: u64,
        /// Wait for one byte on stdin afterwards, so that the server reaps only its helpers
        /// meanwhile.
        #[arg(long)]
        hold: bool,
    },
    /// Serves the TCP echo floor.
    #[command(hide = true)]
    EchoFloor,
    /// Serves the TCP exchange floor.
    #[command(hide = true)]
    ExchangeFloor {
        /// Bytes of a request.
        request: usize,
        /// Bytes of a response.
        response: usize,
    },
    /// Listens on a port after MILLIS milliseconds, says so, and waits for the end of stdin.
    #[command(hide = true)]
    Listen {
        /// Milliseconds to wait.
        millis: u64,
    },
    /// Serves the pipe-to-TCP copy floor.
    #[command(hide = true)]
    CopyFloor,
}

/// A server that is already running.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PeerServer {
    /// Title of the column.
    pub(crate) name: String,
    /// The server's websocket address.
    pub(crate) url: String,
}

fn parse_peer(text: &str) -> anyhow::Result<PeerServer> {
    let start = text.find("ws://").context("no ws:// address")?;
    let name = match &text[..start] {
        "" => "peer",
        named => named
            .strip_suffix('=')
            .context("write NAME=ws://HOST:PORT")?,
    };
    if name.is_empty() {
        bail!("the name is empty");
    }
    Ok(PeerServer {
        name: name.to_owned(),
        url: text[start..].to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_argument_may_have_a_name() {
        let peer = parse_peer("old=ws://127.0.0.1:9").unwrap();
        assert_eq!(
            peer,
            PeerServer {
                name: "old".to_owned(),
                url: "ws://127.0.0.1:9".to_owned()
            }
        );
        assert_eq!(parse_peer("ws://127.0.0.1:9").unwrap().name, "peer");
        assert!(parse_peer("http://127.0.0.1:9").is_err());
    }
}
