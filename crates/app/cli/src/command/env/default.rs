//! `exec-server env default`.

use std::process::ExitCode;

use clap::Args;

use super::{entry::with_default, file::EnvironmentsFile};
use crate::command::failure::{Failure, FailureKind};

/// Makes an environment the one that is used when none is named.
#[derive(Args, Clone, Debug)]
pub(crate) struct Default {
    /// Name of the environment: one that `env list` shows, `local`, or `none`.
    pub(crate) name: String,
}

impl Default {
    /// Writes it down.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let file = EnvironmentsFile::open(lookup)?;
        let text = with_default(file.text(), &self.name);
        file.understand(&text, lookup)
            .map_err(|error| Failure::new(FailureKind::UnknownEnvironment, error))?;
        file.replace(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
