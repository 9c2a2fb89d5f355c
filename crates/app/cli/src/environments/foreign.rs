//! Finds keys in Codex's `environments.toml` that Codex does not know. Earlier versions of `env
//! add` wrote them, and Codex refuses to start on an unknown key.

use std::{fmt, path::PathBuf};

use toml::de::DeTable;

use super::{CodexHome, EnvironmentSelection, SelectionInputs, reader::TomlDocument};

/// Keys of an `[[environments]]` table that every supported stock release (0.166 to 0.169) knows.
pub(super) const STOCK_KEYS: [&str; 10] = [
    "id",
    "skills",
    "url",
    "auth_bearer_token",
    "program",
    "args",
    "env",
    "cwd",
    "connect_timeout_sec",
    "initialize_timeout_sec",
];

/// Key that prevents Codex from starting. Its `Display` tells the user how to repair the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignKey {
    /// The file of Codex.
    pub path: PathBuf,
    /// Line of the key, from 1.
    pub line: usize,
    /// The key.
    pub key: String,
    /// Id of the environment, if it has one.
    pub environment: Option<String>,
    /// Whether that environment is the file's default.
    pub is_default: bool,
    /// Our own file, to which the environment can be moved.
    pub own: Option<PathBuf>,
}

impl fmt::Display for ForeignKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, line) = (self.path.display(), self.line);
        write!(
            f,
            "Codex refuses to start: it does not know `{}` in {path}:{line}; move ",
            self.key
        )?;
        if self.is_default {
            f.write_str("the line `default` and ")?;
        }
        match &self.environment {
            Some(id) => write!(f, "the [[environments]] table of `{id}`")?,
            None => f.write_str("that [[environments]] table")?,
        }
        match &self.own {
            Some(own) => write!(f, " to {}", own.display()),
            None => f.write_str(" to a file of your own"),
        }
    }
}

/// Finds the first unknown key of each environment in the file of Codex. Returns nothing if the
/// file does not exist or cannot be parsed: the selection reports that.
pub fn foreign_keys(inputs: SelectionInputs<'_>) -> Vec<ForeignKey> {
    let Some(home) = CodexHome::find(inputs.lookup) else {
        return Vec::new();
    };
    let path = home.path().join("environments.toml");
    let Ok(text) = (inputs.read)(&path) else {
        return Vec::new();
    };
    let document = TomlDocument {
        path: &path,
        text: &text,
    };
    let Ok(table) = document.parse() else {
        return Vec::new();
    };
    let default = table
        .get("default")
        .and_then(|item| item.get_ref().as_str());
    let environments = table.get("environments");
    let environments = environments.and_then(|item| item.get_ref().as_array());
    let tables = environments.into_iter().flat_map(|array| array.iter());
    let tables = tables.filter_map(|item| item.get_ref().as_table());
    let found = tables.filter_map(|environment| {
        let (key, offset) = first_unknown(environment)?;
        let id = environment.get("id").and_then(|id| id.get_ref().as_str());
        Some(ForeignKey {
            path: path.clone(),
            line: document.line_at(offset),
            key,
            is_default: id.is_some() && id == default,
            environment: id.map(str::to_owned),
            own: EnvironmentSelection::own_file(inputs.lookup),
        })
    });
    found.collect()
}

fn first_unknown(environment: &DeTable<'_>) -> Option<(String, usize)> {
    let keys = environment.iter().map(|(key, _)| key);
    let unknown = keys.filter(|key| !STOCK_KEYS.contains(&key.get_ref().as_ref()));
    let first = unknown.min_by_key(|key| key.span().start)?;
    Some((first.get_ref().to_string(), first.span().start))
}
