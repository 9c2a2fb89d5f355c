//! `exec-server completions`.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{failure::Failure, print::print_bytes};
use crate::cli::Cli;

/// Prints a completion script for a shell.
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = INSTALL)]
pub struct Completions {
    /// The shell.
    pub shell: Shell,
}

impl Completions {
    /// Prints it.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        let mut command = Cli::command();
        clap_complete::generate(self.shell, &mut command, NAME, &mut script);
        if self.shell == Shell::Bash {
            // Words of the line are looked up by one spelling of the name, and listed by another, if there is
            // a hyphen in it.
            let text = String::from_utf8_lossy(&script);
            script = text.replace("exec__subcmd__server", "exec__server").into();
        }
        print_bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

const NAME: &str = env!("CARGO_PKG_NAME");

const INSTALL: &str = "\
Examples:
  exec-server completions bash > ~/.local/share/bash-completion/completions/exec-server
  exec-server completions zsh > \"${fpath[1]}/_exec-server\"
  exec-server completions fish > ~/.config/fish/completions/exec-server.fish";
