//! Strict TOML reader: every value knows its location, and unknown keys are errors. Not here: the
//! meaning of the keys.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use exec_connect::target::TargetParseError;
use exec_environments::manager::{EnvironmentId, EnvironmentIdError};
use exec_registry::{
    api::RegistryEnvironmentIdError as NameError, credentials, http::BaseUrlError,
};
use exec_transport::connect::InvalidBearerToken;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::settings_source::Seconds;

/// File and its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TomlDocument<'a> {
    /// Path, for messages.
    pub(super) path: &'a Path,
    /// Content.
    pub(super) text: &'a str,
}

impl<'a> TomlDocument<'a> {
    /// Parses the text.
    pub(super) fn parse(self) -> Result<DeTable<'a>, EnvironmentsError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let fault = EnvironmentsFault::Syntax(error.message().to_owned());
            self.fault(offset, self.key_at(offset), fault)
        })?;
        Ok(table.into_inner())
    }

    /// Returns an error at `offset`.
    pub(super) fn fault(
        self,
        offset: usize,
        key: String,
        fault: EnvironmentsFault,
    ) -> EnvironmentsError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        EnvironmentsError {
            path: self.path.to_owned(),
            line: self.line_at(offset),
            column: before[start..].chars().count() + 1,
            key,
            fault,
        }
    }

    /// Returns the line of `offset`, from 1.
    pub(super) fn line_at(self, offset: usize) -> usize {
        let before = self.text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    }

    /// Returns the key in the line of `offset`, for text that is not TOML.
    fn key_at(self, offset: usize) -> String {
        let line = self.text.lines().nth(self.line_at(offset) - 1);
        let line = line.unwrap_or("").trim();
        let key = line.split('=').next().unwrap_or("").trim();
        let bare = |c: char| c.is_ascii_alphanumeric() || "_-.[]".contains(c);
        // A line without `=` may be part of a value, which may be secret.
        let has_key = line.contains('=') || line.starts_with('[');
        let key = if has_key && key.chars().all(bare) {
            key
        } else {
            ""
        };
        key.trim_matches(['[', ']']).to_owned()
    }
}

/// Table without unknown keys.
#[derive(Debug)]
pub(super) struct TomlSection<'a> {
    document: TomlDocument<'a>,
    /// Names of the enclosing tables and its own, each followed by a dot.
    prefix: String,
    /// Start offset.
    start: usize,
    items: BTreeMap<&'static str, TomlItem<'a>>,
}

impl<'a> TomlSection<'a> {
    /// Accepts a table with only the keys in `keys`.
    pub(super) fn new(
        document: TomlDocument<'a>,
        name: &str,
        start: usize,
        table: &'a DeTable<'a>,
        keys: &'static [&'static str],
    ) -> Result<Self, EnvironmentsError> {
        let prefix = if name.is_empty() {
            String::new()
        } else {
            format!("{name}.")
        };
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut items = BTreeMap::new();
        for (key, value) in entries {
            let name = key.get_ref().as_ref();
            let item = TomlItem {
                document,
                key: format!("{prefix}{name}"),
                at: key.span(),
                value,
            };
            let Some(key) = keys.iter().find(|key| **key == name) else {
                return Err(item.misplaced(EnvironmentsFault::UnknownKey(keys)));
            };
            items.insert(*key, item);
        }
        Ok(Self {
            document,
            prefix,
            start,
            items,
        })
    }

    /// Returns the value of a key.
    pub(super) fn item(&self, key: &'static str) -> Option<&TomlItem<'a>> {
        self.items.get(key)
    }

    /// Returns the value of a required key.
    pub(super) fn required(&self, key: &'static str) -> Result<&TomlItem<'a>, EnvironmentsError> {
        self.item(key)
            .ok_or_else(|| self.fault(key, EnvironmentsFault::Missing))
    }

    /// Returns an error of the table about `key`.
    pub(super) fn fault(&self, key: &'static str, fault: EnvironmentsFault) -> EnvironmentsError {
        let key = format!("{}{key}", self.prefix);
        self.document.fault(self.start, key, fault)
    }
}

/// Key and value.
#[derive(Clone, Debug)]
pub(super) struct TomlItem<'a> {
    document: TomlDocument<'a>,
    key: String,
    at: Range<usize>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> TomlItem<'a> {
    /// Accepts a key of the top-level table.
    pub(super) fn new(
        document: TomlDocument<'a>,
        key: &'a Spanned<Cow<'a, str>>,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Self {
        Self {
            document,
            key: key.get_ref().clone().into_owned(),
            at: key.span(),
            value,
        }
    }

    /// Returns an error at the key.
    pub(super) fn misplaced(&self, fault: EnvironmentsFault) -> EnvironmentsError {
        self.document.fault(self.at.start, self.key.clone(), fault)
    }

    /// Returns an error at the value.
    pub(super) fn wrong(&self, fault: EnvironmentsFault) -> EnvironmentsError {
        let offset = self.value.span().start;
        self.document.fault(offset, self.key.clone(), fault)
    }

    /// Returns the line of the value.
    pub(super) fn line(&self) -> usize {
        self.document.line_at(self.value.span().start)
    }

    /// Returns the offset of the key, to find the first of several.
    pub(super) fn offset(&self) -> usize {
        self.at.start
    }

    /// Reads a string without NUL bytes.
    pub(super) fn text(&self) -> Result<&'a str, EnvironmentsError> {
        let text = self.value.get_ref().as_str();
        let text = text.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("a string")))?;
        if text.contains('\0') {
            return Err(self.wrong(EnvironmentsFault::Nul));
        }
        Ok(text)
    }

    /// Reads a non-empty string.
    pub(super) fn name(&self) -> Result<&'a str, EnvironmentsError> {
        let text = self.text()?;
        if text.is_empty() {
            return Err(self.wrong(EnvironmentsFault::Expected("a string that is not empty")));
        }
        Ok(text)
    }

    /// Reads a boolean.
    pub(super) fn switch(&self) -> Result<bool, EnvironmentsError> {
        let switch = self.value.get_ref().as_bool();
        switch.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("true or false")))
    }

    /// Reads a duration.
    pub(super) fn seconds(&self) -> Result<Seconds, EnvironmentsError> {
        let value = self.value.get_ref();
        let text = value
            .as_float()
            .map(|number| number.as_str().to_owned())
            .or_else(|| {
                let number = value.as_integer()?;
                let number = i64::from_str_radix(number.as_str(), number.radix()).ok()?;
                Some(number.to_string())
            });
        let text =
            text.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("a number of seconds")))?;
        text.parse()
            .map_err(|error| self.wrong(EnvironmentsFault::Seconds(error)))
    }

    /// Reads an array.
    pub(super) fn elements(&self) -> Result<Vec<Self>, EnvironmentsError> {
        let array = self.value.get_ref().as_array();
        let array = array.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("an array")))?;
        let element = |value: &'a Spanned<DeValue<'a>>| Self {
            value,
            at: value.span(),
            ..self.clone()
        };
        Ok(array.iter().map(element).collect())
    }

    /// Reads a table of strings with arbitrary keys.
    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Self)>, EnvironmentsError> {
        let mut entries: Vec<_> = self.table()?.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&'a Spanned<_>, &'a Spanned<DeValue<'a>>)| {
            let name: &'a Cow<'a, str> = key.get_ref();
            let item = Self {
                document: self.document,
                key: format!("{}.{name}", self.key),
                at: key.span(),
                value,
            };
            (name.as_ref(), item)
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    /// Reads a table with only the keys in `keys`.
    pub(super) fn section(
        &self,
        keys: &'static [&'static str],
    ) -> Result<TomlSection<'a>, EnvironmentsError> {
        let start = self.value.span().start;
        TomlSection::new(self.document, &self.key, start, self.table()?, keys)
    }

    fn table(&self) -> Result<&'a DeTable<'a>, EnvironmentsError> {
        let table = self.value.get_ref().as_table();
        table.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("a table")))
    }
}

/// Caller: invalid content of a file. The message never quotes values that may be secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}:{line}:{column}: `{key}`: {fault}", path.display())]
pub struct EnvironmentsError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Key, after the names of its enclosing tables.
    pub key: String,
    /// Cause.
    pub fault: EnvironmentsFault,
}

/// Problem with a key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentsFault {
    /// Not TOML; the text comes from the parser.
    #[error("{0}")]
    Syntax(String),
    /// Unknown key.
    #[error("unknown key, expected one of {}", .0.join(", "))]
    UnknownKey(&'static [&'static str]),
    /// Wrong type.
    #[error("expected {0}")]
    Expected(&'static str),
    /// NUL byte in a string.
    #[error("must not contain a NUL byte")]
    Nul,
    /// Missing key.
    #[error("missing key")]
    Missing,
    /// Invalid id.
    #[error(transparent)]
    Id(#[from] EnvironmentIdError),
    /// Duplicate id.
    #[error("`{id}` is already the id of the environment in line {first}")]
    DuplicateId {
        /// The id.
        id: EnvironmentId,
        /// Line of the first one.
        first: usize,
    },
    /// More than one way to connect.
    #[error("an environment has one of `url`, `program`, `target` and `registry_url`")]
    ManyReaches,
    /// No way to connect.
    #[error("an environment needs `url`, `program`, `target` or `registry_url`")]
    NoReach,
    /// The key belongs to another way to connect.
    #[error("only an environment with `{}` has this key", .0.join("` or `"))]
    OnlyWith(&'static [&'static str]),
    /// Invalid duration.
    #[error("{0}")]
    Seconds(#[from] crate::settings_source::SecondsParseError),
    /// Invalid websocket URL.
    #[error("expected ws://HOST:PORT or wss://HOST:PORT, without user, password or fragment")]
    Url,
    /// Invalid target.
    #[error(transparent)]
    Target(TargetParseError),
    /// Invalid registry URL.
    #[error(transparent)]
    Registry(#[from] BaseUrlError),
    /// Invalid environment name for a registry.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The registry token is not a valid header value.
    #[error(transparent)]
    AuthToken(#[from] credentials::RegistryTokenError),
    /// The token would be sent unencrypted.
    #[error("a token needs a {0} URL or one of this machine, or others can read it")]
    TokenInClear(&'static str),
    /// Not exactly one token source.
    #[error("expected one of `auth_token`, `auth_token_env` and `auth_token_file`")]
    TokenSource,
    /// More than one token source for a listening server.
    #[error("expected one of `auth_bearer_token`, `auth_token_env` and `auth_token_file`")]
    ManyTokens,
    /// The token variable is not usable.
    #[error("environment variable `{0}` is not set or not UTF-8")]
    TokenVariable(String),
    /// The token file cannot be read.
    #[error("cannot read `{}`: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The token is not a valid header value.
    #[error(transparent)]
    Token(#[from] InvalidBearerToken),
    /// Invalid variable name.
    #[error("expected the name of a variable: not empty, without `=` and NUL")]
    Variable,
    /// Unknown default environment.
    #[error("no environment has the id `{0}`")]
    UnknownDefault(EnvironmentId),
    /// The local environment is not included, so it cannot be the default.
    #[error("`local` cannot be the default while include_local is false")]
    LocalNotIncluded,
    /// Too many environments.
    #[error("more than {0} environments")]
    TooMany(usize),
}
