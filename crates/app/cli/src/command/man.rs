//! `exec-server man`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command};

use super::{
    failure::{CommandFailure, FailureKind},
    print::print_bytes,
};

/// Prints the manual page, or writes one per command.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManCommand {
    /// Writes exec-server.1 and a page per command into this directory.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl ManCommand {
    /// Prints or writes the pages.
    pub(crate) fn run(self, cli: Command) -> Result<ExitCode, CommandFailure> {
        let Some(directory) = self.dir else {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(cli).render(&mut page);
            rendered.map_err(|error| CommandFailure::new(FailureKind::Failed, error))?;
            print_bytes(&page)?;
            return Ok(ExitCode::SUCCESS);
        };
        write(&directory, cli).map_err(|error| {
            let what = format!("cannot write pages into `{}`: {error}", directory.display());
            CommandFailure::new(FailureKind::Failed, what)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write(directory: &Path, cli: Command) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(cli, directory)
}

const EXAMPLES: &str = "\
Examples:
  exec-server man | man -l -
  exec-server man --dir ~/.local/share/man/man1";
