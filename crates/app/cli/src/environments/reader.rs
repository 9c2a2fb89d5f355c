//! TOML, read strictly: every value knows its place, and every key is expected.
//! Not here: what the keys mean.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use exec_environments::manager::{EnvironmentId, EnvironmentIdError};
use exec_registry::{api::EnvironmentIdError as NameError, credentials, http::BaseUrlError};
use exec_transport::connect::TokenError;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::settings_source::Seconds;

/// A file and its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TomlDocument<'a> {
    /// The file, for messages.
    pub(super) path: &'a Path,
    /// What is in it.
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

    /// Says what is wrong at `offset`.
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

    /// Returns what stands where a key stands in the line of `offset`, for text that is no TOML.
    fn key_at(self, offset: usize) -> String {
        let line = self.text.lines().nth(self.line_at(offset) - 1);
        let line = line.unwrap_or("").trim();
        let key = line.split('=').next().unwrap_or("").trim();
        let bare = |c: char| c.is_ascii_alphanumeric() || "_-.[]".contains(c);
        // A line without `=` may be the rest of a value, which may be secret.
        let named = line.contains('=') || line.starts_with('[');
        let key = if named && key.chars().all(bare) {
            key
        } else {
            ""
        };
        key.trim_matches(['[', ']']).to_owned()
    }
}

/// A table of which every key is known.
#[derive(Debug)]
pub(super) struct TomlSection<'a> {
    document: TomlDocument<'a>,
    /// The names of the tables around, and its own, each followed by a dot.
    prefix: String,
    /// Where it begins.
    start: usize,
    items: BTreeMap<&'static str, TomlItem<'a>>,
}

impl<'a> TomlSection<'a> {
    /// Takes a table that has no other keys than `known`.
    pub(super) fn new(
        document: TomlDocument<'a>,
        name: &str,
        start: usize,
        table: &'a DeTable<'a>,
        known: &'static [&'static str],
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
            let Some(known) = known.iter().find(|known| **known == name) else {
                return Err(item.misplaced(EnvironmentsFault::UnknownKey(known)));
            };
            items.insert(*known, item);
        }
        Ok(Self {
            document,
            prefix,
            start,
            items,
        })
    }

    /// Returns what a key says.
    pub(super) fn item(&self, key: &'static str) -> Option<&TomlItem<'a>> {
        self.items.get(key)
    }

    /// Returns what a key says that must be there.
    pub(super) fn required(&self, key: &'static str) -> Result<&TomlItem<'a>, EnvironmentsError> {
        self.item(key)
            .ok_or_else(|| self.fault(key, EnvironmentsFault::Missing))
    }

    /// Says what is wrong with the table, for lack of `key`.
    pub(super) fn fault(&self, key: &'static str, fault: EnvironmentsFault) -> EnvironmentsError {
        let key = format!("{}{key}", self.prefix);
        self.document.fault(self.start, key, fault)
    }
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(super) struct TomlItem<'a> {
    document: TomlDocument<'a>,
    key: String,
    at: Range<usize>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> TomlItem<'a> {
    /// Takes a key of the outermost table.
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

    /// Says that the key should not be there.
    pub(super) fn misplaced(&self, fault: EnvironmentsFault) -> EnvironmentsError {
        self.document.fault(self.at.start, self.key.clone(), fault)
    }

    /// Says what is wrong with the value.
    pub(super) fn wrong(&self, fault: EnvironmentsFault) -> EnvironmentsError {
        let offset = self.value.span().start;
        self.document.fault(offset, self.key.clone(), fault)
    }

    /// Returns the line of the value.
    pub(super) fn line(&self) -> usize {
        self.document.line_at(self.value.span().start)
    }

    /// Returns where the key stands, to tell which of several is the first.
    pub(super) fn place(&self) -> usize {
        self.at.start
    }

    /// Reads a text without NUL bytes.
    pub(super) fn text(&self) -> Result<&'a str, EnvironmentsError> {
        let text = self.value.get_ref().as_str();
        let text = text.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("a string")))?;
        if text.contains('\0') {
            return Err(self.wrong(EnvironmentsFault::Nul));
        }
        Ok(text)
    }

    /// Reads a text that says something.
    pub(super) fn name(&self) -> Result<&'a str, EnvironmentsError> {
        let text = self.text()?;
        if text.is_empty() {
            return Err(self.wrong(EnvironmentsFault::Expected("a string that is not empty")));
        }
        Ok(text)
    }

    /// Reads true or false.
    pub(super) fn switch(&self) -> Result<bool, EnvironmentsError> {
        let switch = self.value.get_ref().as_bool();
        switch.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("true or false")))
    }

    /// Reads a span of time.
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

    /// Reads the elements of an array.
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

    /// Reads a table of texts whose keys are free.
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

    /// Reads a table that has no other keys than `known`.
    pub(super) fn section(
        &self,
        known: &'static [&'static str],
    ) -> Result<TomlSection<'a>, EnvironmentsError> {
        let start = self.value.span().start;
        TomlSection::new(self.document, &self.key, start, self.table()?, known)
    }

    fn table(&self) -> Result<&'a DeTable<'a>, EnvironmentsError> {
        let table = self.value.get_ref().as_table();
        table.ok_or_else(|| self.wrong(EnvironmentsFault::Expected("a table")))
    }
}

/// Caller: a file says what cannot be. The text never quotes a value that may be secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}:{line}:{column}: `{key}`: {fault}", path.display())]
pub struct EnvironmentsError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The key, behind the names of the tables around it.
    pub key: String,
    /// What is wrong with it.
    pub fault: EnvironmentsFault,
}

/// What is wrong with one key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentsFault {
    /// The file is no TOML here; the text is the parser's.
    #[error("{0}")]
    Syntax(String),
    /// The key does not exist.
    #[error("unknown key, expected one of {}", .0.join(", "))]
    UnknownKey(&'static [&'static str]),
    /// The value is of another kind.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A text has a NUL byte, which nothing that it is used for can have.
    #[error("must not contain a NUL byte")]
    Nul,
    /// The key must be there.
    #[error("missing key")]
    Missing,
    /// The id is none that a person can choose.
    #[error(transparent)]
    Id(#[from] EnvironmentIdError),
    /// The id is taken.
    #[error("`{id}` is already the id of the environment in line {first}")]
    DuplicateId {
        /// The id.
        id: EnvironmentId,
        /// Where it was first.
        first: usize,
    },
    /// There are two ways to reach it.
    #[error("an environment has one of `url`, `program` and `registry_url`")]
    ManyReaches,
    /// There is no way to reach it.
    #[error("an environment needs `url`, `program` or `registry_url`")]
    NoReach,
    /// The key belongs to another way to reach an environment.
    #[error("only an environment with `{}` has this key", .0.join("` or `"))]
    OnlyWith(&'static [&'static str]),
    /// The number is no span of time.
    #[error("{0}")]
    Seconds(#[from] crate::settings_source::SecondsParseError),
    /// The URL is not one of a websocket.
    #[error("expected ws://HOST:PORT or wss://HOST:PORT, without user, password or fragment")]
    Url,
    /// The URL is not one of a registry.
    #[error(transparent)]
    Registry(#[from] BaseUrlError),
    /// The name is none that a registry could know an environment by.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The token for the registry cannot be put into a header.
    #[error(transparent)]
    AuthToken(#[from] credentials::TokenError),
    /// The token would travel readable by others.
    #[error("a token needs a {0} URL or one of this machine, or others can read it")]
    TokenInClear(&'static str),
    /// The token is given not at all, or twice.
    #[error("expected one of `auth_token`, `auth_token_env` and `auth_token_file`")]
    TokenSource,
    /// The token of a server that listens is given twice.
    #[error("expected one of `auth_bearer_token`, `auth_token_env` and `auth_token_file`")]
    ManyTokens,
    /// The variable that is to hold the token does not.
    #[error("environment variable `{0}` is not set, or is no text")]
    TokenVariable(String),
    /// The file that is to hold the token cannot be read.
    #[error("cannot read `{}`: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The token cannot be put into a header.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The name of a variable is no name.
    #[error("expected the name of a variable: not empty, without `=` and NUL")]
    Variable,
    /// There is no such environment.
    #[error("no environment has the id `{0}`")]
    UnknownDefault(EnvironmentId),
    /// The local environment is not there to be the default.
    #[error("`local` cannot be the default while include_local is false")]
    LocalNotIncluded,
    /// There are too many.
    #[error("more than {0} environments")]
    TooMany(usize),
}
