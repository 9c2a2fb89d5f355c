//! Measures exec-server: floors, ours and any peer, in one run, over the websocket wire. One
//! measure goes through our client, to tell what that costs.
//!
//! Standalone on purpose: but for that measure it shares no code with the server, so a mistake
//! there cannot hide here. Floors and targets take turns in blocks, so that the noise of the
//! machine hits all alike. Invariant: every loop is bounded in count and in time; only what was
//! started here is ended. Not here: correctness beyond what the numbers rest on (`exec-conformance`
//! has that).
#![expect(
    clippy::print_stdout,
    reason = "the table on stdout is what this program is for"
)]

mod base64;
mod cli;
mod content;
mod emit;
mod floors;
mod hub;
mod measures;
mod plan;
mod proc_stat;
mod report;
mod rpc;
mod run;
mod scratch;
mod stats;
mod target;
mod ws;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Helper};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.helper {
        None => run::run(&cli.options),
        Some(helper) => serve(&helper).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("exec-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Plays one of the helper processes that the measures start from this same binary.
fn serve(helper: &Helper) -> anyhow::Result<()> {
    match *helper {
        Helper::Emit { bytes, hold: false } => emit::emit(bytes),
        Helper::Emit { bytes, hold: true } => emit::emit_and_hold(bytes),
        Helper::EchoFloor => floors::helper::serve_echo(),
        Helper::ExchangeFloor { request, response } => {
            floors::helper::serve_exchange(request, response)
        }
        Helper::CopyFloor => floors::copy::serve(),
    }
}
