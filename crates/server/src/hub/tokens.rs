//! `exec-server hub token`.

use std::io::Write;

use anyhow::Context;
use exec_hub::{
    principal::{Environments, Roles},
    store::Timestamp,
    tokens::{self, Entry, NewToken, TokenId},
};
use serde::Serialize;

use super::{places::Places, table::Table};
use crate::{
    cli::{ListTokens, MakeToken, RevokeToken, TokenCommand},
    config::Lookup,
};

/// Makes, lists or revokes tokens. What was asked for goes to `out`, what is said about it to `aside`.
/// Blocks.
///
/// # Errors
/// When the token file cannot be read or written, or what is asked for cannot be.
pub fn edit_tokens(
    command: &TokenCommand,
    lookup: Lookup<'_>,
    out: &mut dyn Write,
    aside: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create(flags) => create(flags, lookup, out, aside),
        TokenCommand::List(flags) => list(flags, lookup, out),
        TokenCommand::Revoke(flags) => revoke(flags, lookup, aside),
    }
}

fn create(
    flags: &MakeToken,
    lookup: Lookup<'_>,
    out: &mut dyn Write,
    aside: &mut dyn Write,
) -> anyhow::Result<()> {
    let places = Places::find(&flags.place, lookup)?;
    let now = Timestamp::now();
    let new = NewToken {
        principal: flags.name.clone(),
        roles: match flags.role[..] {
            [] => Roles::default(),
            ref roles => Roles::new(roles.iter().copied()),
        },
        environments: Environments::new(flags.environment.clone())?,
        expires_at: flags.expires_in.map(|span| now.plus(span.0)),
    };
    let (entry, token) = tokens::create(&places.token_file, new, now)?;
    let row = Row::of(&entry);
    let until = row.expires_at.unwrap_or_else(|| "it is revoked".to_owned());
    let roles = row.roles.join(", ");
    writeln!(
        aside,
        "token {} for {}: {roles}; until {until}",
        row.id, row.principal
    )?;
    writeln!(out, "{}", token.expose())?;
    out.flush().context("cannot write the token; revoke it")
}

fn list(flags: &ListTokens, lookup: Lookup<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let places = Places::find(&flags.place, lookup)?;
    let entries = tokens::list(&places.token_file)?;
    let rows = entries.iter().map(Row::of);
    if flags.json {
        let rows: Vec<_> = rows.collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    let mut table = Table::new(&[
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

fn revoke(flags: &RevokeToken, lookup: Lookup<'_>, aside: &mut dyn Write) -> anyhow::Result<()> {
    let places = Places::find(&flags.place, lookup)?;
    let id = TokenId::new(&flags.id).context("that is not the id of a token")?;
    let entry = tokens::revoke(&places.token_file, &id)?;
    writeln!(
        aside,
        "token {} of {} is revoked",
        entry.id, entry.principal
    )?;
    Ok(())
}

/// A token, as it is shown.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    principal: String,
    roles: Vec<String>,
    environments: Vec<String>,
    created_at: String,
    expires_at: Option<String>,
}

impl Row {
    fn of(entry: &Entry) -> Self {
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

/// People need no milliseconds.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_seconds(at.seconds())
        .rfc3339()
        .replace(".000Z", "Z")
}
