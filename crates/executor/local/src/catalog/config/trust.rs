//! Which directories of a project the account trusts.

use std::collections::BTreeMap;

use exec_wire::path_uri::PathUri;
use toml::{Table, Value};

use super::{git, layers::LoadError};
use crate::catalog::reader::Reader;

/// What the account has said of directories, and what holds where it has said nothing.
#[derive(Debug)]
pub(super) struct Trusted {
    said: BTreeMap<String, Option<Level>>,
    /// For directories of which nothing is said: what is said of the project.
    otherwise: Option<Level>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Level {
    Trusted,
    Untrusted,
}

impl Trusted {
    /// Reads what is said, and what holds for the project: the word on its root, or else on its
    /// repository.
    pub(super) async fn new(
        reader: &Reader,
        config: &Table,
        root: &PathUri,
        cwd: &PathUri,
    ) -> Result<Self, LoadError> {
        let mut trusted = Self {
            said: said(config)?,
            otherwise: None,
        };
        if trusted.said.is_empty() {
            return Ok(trusted);
        }
        trusted.otherwise = trusted.level(reader, root).await;
        if trusted.otherwise.is_none()
            && let Some(repository) = git::main_repository(reader, cwd).await
        {
            trusted.otherwise = trusted.level(reader, &repository).await;
        }
        Ok(trusted)
    }

    /// Tells whether a directory of the project is trusted.
    pub(super) async fn trusts(&self, reader: &Reader, directory: &PathUri) -> bool {
        let level = self.level(reader, directory).await.or(self.otherwise);
        level == Some(Level::Trusted)
    }

    /// What is said of a directory, by its name or by the one without links.
    async fn level(&self, reader: &Reader, directory: &PathUri) -> Option<Level> {
        if self.said.is_empty() {
            return None;
        }
        if let Some(level) = self.word_on(directory) {
            return Some(level);
        }
        self.word_on(&reader.canonicalize(directory).await?)
    }

    fn word_on(&self, directory: &PathUri) -> Option<Level> {
        let path = directory.to_native().ok()?;
        self.said.get(path.to_str()?).copied().flatten()
    }
}

fn said(config: &Table) -> Result<BTreeMap<String, Option<Level>>, LoadError> {
    let wrong = |key: String, expected| LoadError::Key { key, expected };
    let projects = match config.get("projects") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(projects)) => projects,
        Some(_) => return Err(wrong("projects".to_owned(), "a table")),
    };
    let mut said = BTreeMap::new();
    for (path, project) in projects {
        let Value::Table(project) = project else {
            return Err(wrong(format!("projects.{path}"), "a table"));
        };
        let level = match project.get("trust_level") {
            None => None,
            Some(level) => match level.as_str() {
                Some("trusted") => Some(Level::Trusted),
                Some("untrusted") => Some(Level::Untrusted),
                Some(_) | None => {
                    let key = format!("projects.{path}.trust_level");
                    return Err(wrong(key, "`trusted` or `untrusted`"));
                }
            },
        };
        said.insert(path.clone(), level);
    }
    Ok(said)
}
