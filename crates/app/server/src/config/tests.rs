//! Tests of precedence and validation, through [`load`].

mod rules;
mod sources;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::Parser;

use super::*;
use crate::cli::Cli;

/// SHA-256 of `abc`.
const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A start of the server: arguments, environment, and files in a directory.
struct Start {
    home: tempfile::TempDir,
    variables: BTreeMap<String, OsString>,
}

impl Start {
    /// No configuration file, and no variable but a home for the test.
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let variable = ("EXEC_SERVER_HOME".to_owned(), home.path().into());
        Self {
            home,
            variables: BTreeMap::from([variable]),
        }
    }

    /// A start with this default configuration file.
    fn with_file(text: &str) -> Self {
        let start = Self::new();
        start.write("config.toml", text);
        start
    }

    fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Result<ServerConfig, ConfigError> {
        let cli = Cli::try_parse_from(["exec-server"].iter().chain(arguments)).unwrap();
        load(cli, &|name| self.variables.get(name).cloned())
    }

    /// Returns the error with its sources, without the test's directory.
    fn refusal(&self, arguments: &[&str]) -> String {
        let error = self.run(arguments).unwrap_err();
        let mut line = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            line = format!("{line}: {error}");
            source = error.source();
        }
        without(self.home.path(), &line)
    }

    fn warnings(&self, arguments: &[&str]) -> Vec<String> {
        let config = self.run(arguments).unwrap();
        config
            .warnings
            .iter()
            .map(|warning| without(self.home.path(), warning))
            .collect()
    }
}

fn without(home: &Path, text: &str) -> String {
    text.replace(&format!("{}/", home.display()), "")
}
