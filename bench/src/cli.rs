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
    /// Set when this process is a helper of another run.
    #[command(subcommand)]
    pub(crate) helper: Option<HelperCommand>,
}

/// What to measure and where to write it.
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Our server; measured as column "ours". Default: target/release/exec-server
    #[arg(long, value_name = "PATH")]
    pub(crate) server: Option<PathBuf>,
    /// The stock Codex CLI: starts its `exec-server` and adds a column "stock"
    #[arg(long, value_name = "PATH")]
    pub(crate) stock: Option<PathBuf>,
    /// A server that runs already: adds a column; repeatable
    #[arg(long = "peer", value_name = "[NAME=]ws://HOST:PORT", value_parser = parse_peer)]
    pub(crate) peers: Vec<PeerServer>,
    /// A smoke run of a few seconds; its numbers mean little
    #[arg(long, conflicts_with = "check")]
    pub(crate) quick: bool,
    /// Exit non-zero if ours misses a reach
    #[arg(long)]
    pub(crate) check: bool,
    /// Measure only rows whose group contains TEXT: spawn, inflight, echo, output, terminal,
    /// memory, stalled, flood, startup, fs-calls, fs-bulk, fs-walk, fs-peak, fs-watch, sandbox,
    /// client, tools, people, relay, hub-frames, hub-crowd, hub-nodes; so `fs` is all about files
    /// and `hub` all about hubs; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Directory for results, logs and the stock server's CODEX_HOME (not below a temp directory)
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub(crate) out: PathBuf,
    /// Where the numbers go as JSON. Default: OUT/bench.json
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Where the chart goes
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Where the table goes as markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

/// Processes that a run starts from its own binary.
#[derive(Debug, Subcommand)]
pub(crate) enum HelperCommand {
    /// Writes BYTES to stdout in 64 KiB writes.
    #[command(hide = true)]
    Emit {
        /// How much to write.
        bytes: u64,
        /// Then waits for one byte on stdin, so that it can be told apart from reaped processes.
        #[arg(long)]
        hold: bool,
    },
    /// The bare TCP echo.
    #[command(hide = true)]
    EchoFloor,
    /// The bare TCP exchange.
    #[command(hide = true)]
    ExchangeFloor {
        /// Bytes to read before each answer.
        request: usize,
        /// Bytes of an answer.
        response: usize,
    },
    /// The pipe to TCP copy.
    #[command(hide = true)]
    CopyFloor,
}

/// Server that is already running.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PeerServer {
    /// The column's title.
    pub(crate) name: String,
    /// Its websocket address.
    pub(crate) url: String,
}

fn parse_peer(text: &str) -> anyhow::Result<PeerServer> {
    let at = text.find("ws://").context("no ws:// address")?;
    let name = match &text[..at] {
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
        url: text[at..].to_owned(),
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
