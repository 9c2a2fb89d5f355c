//! `exec-server env remove`.

use std::process::ExitCode;

use clap::Args;

use super::{
    entry::{ids, without},
    file::EnvironmentsFile,
};
use crate::{
    command::failure::{Failure, FailureKind},
    environments::Fault,
};

/// Removes an environment from our environments.toml.
#[derive(Args, Clone, Debug)]
pub(crate) struct Remove {
    /// Name of the environment.
    pub(crate) name: String,
}

impl Remove {
    /// Removes it.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let name = self.name.as_str();
        let file = EnvironmentsFile::open(lookup)?;
        let shown = file.path().display();
        let Some(index) = ids(file.text()).iter().position(|id| id == name) else {
            let mut others = file.base().remotes.iter();
            return Err(match others.any(|other| other.id.as_str() == name) {
                true => {
                    let what = format!("`{name}` comes from the settings of Codex");
                    Failure::new(FailureKind::Failed, what)
                        .next("exec-server does not change those: remove it there by hand")
                }
                false => {
                    let what = format!("`{shown}` has no environment `{name}`");
                    Failure::new(FailureKind::UnknownEnvironment, what)
                        .next("`exec-server env list` shows which there are")
                }
            });
        };
        let Some(text) = without(file.text(), index) else {
            let what = format!("cannot tell which lines of `{shown}` are about `{name}`");
            return Err(Failure::new(FailureKind::Failed, what).next("remove them by hand"));
        };
        if let Err(error) = file.understand(&text, lookup) {
            let is_default = matches!(error.fault, Fault::UnknownDefault(_));
            return Err(match is_default {
                true => Failure::new(FailureKind::Failed, format!("`{name}` is the default"))
                    .next("choose another first: exec-server env default local"),
                false => Failure::new(FailureKind::Failed, error),
            });
        }
        file.replace(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
