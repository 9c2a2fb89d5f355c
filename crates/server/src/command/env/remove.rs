//! `exec-server env remove`.

use std::process::ExitCode;

use clap::Args;

use super::{entry::without, file::EnvironmentsFile};
use crate::{
    command::failure::{Failure, FailureKind},
    environments::Selection,
};

/// Takes an environment out of environments.toml.
#[derive(Args, Clone, Debug)]
pub(crate) struct Remove {
    /// Name of the environment.
    pub(crate) name: String,
}

impl Remove {
    /// Takes it out.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let name = self.name.as_str();
        let file = EnvironmentsFile::open(lookup)?;
        let (shown, known) = (file.path().display(), file.selection());
        let index = known
            .remotes
            .iter()
            .position(|remote| remote.id.as_str() == name);
        let Some(index) = index else {
            let what = format!("`{shown}` has no environment `{name}`");
            return Err(Failure::new(FailureKind::UnknownEnvironment, what)
                .next("`exec-server env list` shows which there are"));
        };
        if known.default.as_ref().is_some_and(|id| id.as_str() == name) {
            let what = format!("`{name}` is the default");
            return Err(Failure::new(FailureKind::Failed, what)
                .next("choose another first: exec-server env default local"));
        }
        let mut remotes = known.remotes.clone();
        remotes.remove(index);
        let expected = Selection {
            remotes,
            ..known.clone()
        };
        let text = without(file.text(), index);
        let text = text.filter(|text| file.understand(text, lookup).is_ok_and(|is| is == expected));
        let Some(text) = text else {
            let what = format!("cannot tell which lines of `{shown}` are about `{name}`");
            return Err(Failure::new(FailureKind::Failed, what).next("take them out by hand"));
        };
        file.replace(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
