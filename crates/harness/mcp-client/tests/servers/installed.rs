//! Where the servers were installed.

use std::path::{Path, PathBuf};

/// What installs them.
const INSTALL: &str = "scripts/mcp-servers";

/// The program of `mcp-server-time`, from PyPI.
pub(crate) fn time() -> String {
    program("time/bin/mcp-server-time")
}

/// The program of `@modelcontextprotocol/server-everything`, from npm.
pub(crate) fn everything() -> String {
    program("everything/node_modules/.bin/mcp-server-everything")
}

fn program(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = std::env::var_os("EXEC_MCP_SERVERS")
        .map_or_else(|| root.join("target/mcp-servers"), PathBuf::from);
    let program = folder.join(path);
    assert!(
        program.exists(),
        "{} is missing: run `{INSTALL}`, or name the folder in EXEC_MCP_SERVERS",
        program.display()
    );
    program.to_str().unwrap().to_owned()
}
