//! Tests of the selection from files and variables, and of its errors.

mod order;
mod refusals;
mod relay;
mod schema;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use exec_environments::manager::EnvironmentId;

use super::*;

/// Variables and files of a process that selects environments.
#[derive(Default)]
struct SelectionFixture {
    variables: BTreeMap<&'static str, OsString>,
    files: BTreeMap<PathBuf, &'static str>,
}

impl SelectionFixture {
    fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name, value.into());
        self
    }

    fn file(mut self, path: &str, text: &'static str) -> Self {
        self.files.insert(path.into(), text);
        self
    }

    fn find(&self) -> Result<EnvironmentSelection, SelectionError> {
        EnvironmentSelection::find(SelectionInputs {
            lookup: &|name| self.variables.get(name).cloned(),
            read: &|path| self.read(path),
        })
    }

    /// Parses a file of the Codex home `/codex`.
    fn parse(&self, text: &str) -> Result<EnvironmentSelection, EnvironmentsError> {
        let inputs = SelectionInputs {
            lookup: &|name| self.variables.get(name).cloned(),
            read: &|path| self.read(path),
        };
        parse(Path::new("/codex/environments.toml"), text, inputs)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        match self.files.get(path) {
            Some(&"unreadable") => Err(io::ErrorKind::PermissionDenied.into()),
            Some(text) => Ok((*text).to_owned()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Only this machine.
fn local() -> EnvironmentSelection {
    EnvironmentSelection {
        default: Some(EnvironmentId::local()),
        local: true,
        remotes: Vec::new(),
    }
}

/// Only one server.
fn remote(url: &str) -> EnvironmentSelection {
    let remote = RemoteEntry {
        id: EnvironmentId::remote(),
        endpoint: EnvEndpoint::Url(UrlEndpoint::new(url)),
        required_skills: Vec::new(),
    };
    EnvironmentSelection {
        default: Some(EnvironmentId::remote()),
        local: false,
        remotes: vec![remote],
    }
}

/// No environment.
fn nowhere() -> EnvironmentSelection {
    EnvironmentSelection {
        default: None,
        local: false,
        remotes: Vec::new(),
    }
}
