//! `exec-server schema`: prints the schema of the protocol.
//!
//! It is generated from `exec-wire`; `cargo xtask tidy` checks that the embedded files are current.

use std::process::ExitCode;

use clap::Args;

use crate::command::{failure::CommandFailure, print::print_bytes};

const JSON_SCHEMA: &str = include_str!("../../../../../docs/schema/exec-server.schema.json");
const OPENRPC: &str = include_str!("../../../../../docs/schema/openrpc.json");

/// Prints the JSON Schema of the protocol's messages.
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SchemaCommand {
    /// Prints the OpenRPC document instead.
    #[arg(long)]
    pub openrpc: bool,
}

impl SchemaCommand {
    /// Prints the document.
    pub(crate) fn run(self) -> Result<ExitCode, CommandFailure> {
        let document = if self.openrpc { OPENRPC } else { JSON_SCHEMA };
        print_bytes(document.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

const EXAMPLES: &str = "\
Examples:
  exec-server schema > exec-server.schema.json
  exec-server schema --openrpc > openrpc.json";
