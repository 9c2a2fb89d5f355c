//! `exec-server hub token`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use exec_cli::command::TextTable;
use exec_hub::{
    principal::{EnvironmentGlobs, RoleSet},
    store::Timestamp,
    tokens::{self, NewToken, TokenEntry, TokenId},
};
use serde::Serialize;

use crate::{
    cli::{ListTokens, MakeToken, RevokeToken, TokenCommand},
    config::VariableLookup,
    hub::HubPaths,
};

/// Creates, lists or revokes tokens. Writes results to `out` and messages to `messages`. Blocks.
///
/// # Errors
/// When the token file cannot be read or written, or the request is invalid.
pub fn edit_tokens(
    command: &TokenCommand,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create(flags) => create(flags, lookup, out, messages),
        TokenCommand::List(flags) => list(flags, lookup, out),
        TokenCommand::Revoke(flags) => revoke(flags, lookup, messages),
    }
}

fn create(
    flags: &MakeToken,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    let places = HubPaths::find(&flags.token_files, lookup)?;
    let now = Timestamp::now();
    let new = NewToken {
        principal: flags.name.clone(),
        roles: match flags.role[..] {
            [] => RoleSet::default(),
            ref roles => RoleSet::new(roles.iter().copied()),
        },
        environments: EnvironmentGlobs::new(flags.environment.clone())?,
        expires_at: flags.expires_in.map(|span| now.plus(span.0)),
    };
    // Created before the token, so that no token is lost.
    let file = match &flags.out {
        Some(path) => Some(TokenOutput::create(path, flags.force)?),
        None => None,
    };
    let (entry, token) = tokens::create(&places.token_file, new, now)?;
    let row = TokenRow::of(&entry);
    let until = row.expires_at.unwrap_or_else(|| "it is revoked".to_owned());
    let roles = row.roles.join(", ");
    writeln!(
        messages,
        "token {} for {}: {roles}; until {until}",
        row.id, row.principal
    )?;
    let written = match file {
        Some(file) => file.write(token.expose()),
        None => writeln!(out, "{}", token.expose()).and_then(|()| out.flush()),
    };
    written.with_context(|| format!("cannot write the token; revoke {}", row.id))
}

/// File for a new token that only this account can read. Dropping it before it is written leaves
/// nothing behind.
struct TokenOutput {
    file: File,
    /// Temporary path until it is written.
    made: PathBuf,
    path: PathBuf,
    is_written: bool,
}

impl TokenOutput {
    /// Creates the file. An existing one is kept; [`TokenOutput::write`] replaces it if `replace`
    /// is set, otherwise it is an error.
    fn create(path: &Path, replace: bool) -> anyhow::Result<Self> {
        let mut made = path.to_owned();
        if replace {
            made.as_mut_os_string()
                .push(format!(".{}", std::process::id()));
        }
        let mut options = OpenOptions::new();
        // Independent of the umask, only this account can read it.
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&made).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists && !replace {
                return anyhow!("`{}` exists; give --force to replace it", path.display());
            }
            anyhow!(error).context(format!("cannot create `{}`", made.display()))
        })?;
        Ok(Self {
            file,
            made,
            path: path.to_owned(),
            is_written: false,
        })
    }

    fn write(mut self, token: &str) -> io::Result<()> {
        writeln!(self.file, "{token}")?;
        self.file.sync_all()?;
        if self.made != self.path {
            fs::rename(&self.made, &self.path)?;
        }
        self.is_written = true;
        Ok(())
    }
}

impl Drop for TokenOutput {
    fn drop(&mut self) {
        if !self.is_written {
            // The error already reports the failure.
            drop(fs::remove_file(&self.made));
        }
    }
}

fn list(flags: &ListTokens, lookup: VariableLookup<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let places = HubPaths::find(&flags.token_files, lookup)?;
    let entries = tokens::list(&places.token_file)?;
    let rows = entries.iter().map(TokenRow::of);
    if flags.json {
        let rows: Vec<_> = rows.collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    let mut table = TextTable::new(&[
        "ID",
        "PRINCIPAL",
        "ROLES",
        "ENVIRONMENTS",
        "CREATED",
        "EXPIRES",
    ]);
    for row in rows {
        table.push([
            row.id,
            row.principal,
            row.roles.join(","),
            row.environments.join(","),
            row.created_at,
            row.expires_at.unwrap_or_default(),
        ]);
    }
    write!(out, "{table}")?;
    Ok(())
}

fn revoke(
    flags: &RevokeToken,
    lookup: VariableLookup<'_>,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    let places = HubPaths::find(&flags.token_files, lookup)?;
    let id = TokenId::new(&flags.id).context("that is not a token id")?;
    let entry = tokens::revoke(&places.token_file, &id)?;
    writeln!(
        messages,
        "token {} of {} is revoked",
        entry.id, entry.principal
    )?;
    Ok(())
}

/// Token as listed.
#[derive(Debug, Serialize)]
struct TokenRow {
    id: String,
    principal: String,
    roles: Vec<String>,
    environments: Vec<String>,
    created_at: String,
    expires_at: Option<String>,
}

impl TokenRow {
    fn of(entry: &TokenEntry) -> Self {
        Self {
            id: entry.id.to_string(),
            principal: entry.principal.to_string(),
            roles: entry.roles.iter().map(|role| role.to_string()).collect(),
            environments: entry.environments.globs().to_vec(),
            created_at: seconds(entry.created_at),
            expires_at: entry.expires_at.map(seconds),
        }
    }
}

/// Formats a time without milliseconds.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_seconds(at.seconds())
        .rfc3339()
        .replace(".000Z", "Z")
}
