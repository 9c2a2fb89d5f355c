//! `exec-server hub invite`, and the file with the hub's URL in its data directory.

use std::{
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use exec_hub::{
    hub::Hub,
    principal::{EnvironmentGlobs, Role, RoleSet},
    store::{EnvironmentId, Timestamp},
    tokens::{self as hub_tokens, NewToken},
};
use exec_registry::{
    api::SecretString,
    http::BaseUrl,
    invite::{InviteLine, InviteRole},
};
use exec_settings::settings_source;

use super::{HubPaths, seconds};
use crate::{
    cli::{HubFlags, HubInvite},
    command::{CommandFailure, FailureKind},
    config::VariableLookup,
};

/// Creates an invite. Writes the line to `out` and a message to `messages`. Blocks.
///
/// # Errors
/// When the hub's URL is not known or not encrypted, or the token file cannot be changed. No invite
/// exists then.
pub fn create_invite(
    flags: &HubInvite,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    let usage = |what: String| CommandFailure::new(FailureKind::Usage, what);
    let name = flags.name.as_str();
    if flags.role == InviteRole::Executor && name.parse::<EnvironmentId>().is_err() {
        let what = format!("invalid environment id `{name}`");
        return Err(usage(what)
            .next("use 1 to 128 letters, digits, `_` and `-`")
            .into());
    }
    let principal = match &flags.principal {
        Some(principal) => principal.clone(),
        None => name.parse().map_err(|error| {
            usage(format!("invalid principal `{name}`: {error}")).next("give --principal")
        })?,
    };
    let paths = HubPaths::find(&flags.token_files, lookup)?;
    let hub = match &flags.url {
        Some(url) => url.clone(),
        None => last_url(&paths.data_dir)?,
    };
    if !hub.is_private() {
        let what = format!("an invite to `{hub}` would be sent unencrypted");
        return Err(usage(what)
            .next("give the hub a certificate, or --url with the https:// URL of a proxy")
            .into());
    }
    let role = match flags.role {
        InviteRole::Executor => Role::Executor,
        InviteRole::Harness => Role::Harness,
    };
    let new = NewToken {
        principal,
        roles: RoleSet::new([role]),
        environments: EnvironmentGlobs::new(vec![name.to_owned()])?,
        expires_at: None,
    };
    let lifetime = flags.expires_in.0;
    let (entry, secret) = hub_tokens::invite(&paths.token_file, new, lifetime, Timestamp::now())?;
    let line = InviteLine {
        hub,
        role: flags.role,
        name: name.to_owned(),
        secret: SecretString::new(secret.expose()),
    };
    let until = entry.invite_expires_at.map(seconds).unwrap_or_default();
    let usage = match flags.role {
        InviteRole::Executor => "on the machine: exec-server join LINE".to_owned(),
        InviteRole::Harness => {
            "where it is used: exec-server env add NAME --invite LINE".to_owned()
        }
    };
    let (id, role) = (&entry.id, flags.role);
    writeln!(
        messages,
        "invite {id} for the {role} `{name}`, once, until {until}; {usage}"
    )?;
    let written = writeln!(out, "{}", line.expose()).and_then(|()| out.flush());
    written.with_context(|| format!("cannot write the invite; revoke {id}"))
}

/// Stores the URL of a hub for `hub invite`. Without `--public-url`, a hub that listens on all
/// addresses has no URL that clients can use: then a stored one is removed.
pub(super) fn remember_url(flags: &HubFlags, lookup: VariableLookup<'_>, hub: &Hub) {
    let written = HubPaths::find(&flags.token_files, lookup).and_then(|paths| {
        let path = url_file(&paths.data_dir);
        let url = match &flags.public_url {
            Some(url) => url.to_string(),
            None if hub.address().ip().to_canonical().is_unspecified() => {
                return match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                    Ok(()) | Err(_) => Ok(()),
                };
            }
            None => hub.url(),
        };
        // A hub that stores its state in NATS has not created the directory.
        let mut directory = DirBuilder::new();
        directory.recursive(true).mode(0o700);
        directory.create(&paths.data_dir)?;
        Ok(fs::write(&path, format!("{url}\n"))?)
    });
    if let Err(error) = written {
        tracing::warn!(%error, "cannot store the hub's URL: `hub invite` needs --url");
    }
}

fn url_file(data_dir: &Path) -> PathBuf {
    data_dir.join("url")
}

/// Returns the URL of the hub that ran last with this data directory.
fn last_url(data_dir: &Path) -> anyhow::Result<BaseUrl> {
    let path = url_file(data_dir);
    match settings_source::read_text(&path) {
        Ok(text) => {
            BaseUrl::parse(&text).with_context(|| format!("invalid URL in `{}`", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let data_dir = data_dir.display();
            let what =
                format!("the URL of the hub with the data directory `{data_dir}` is not known");
            Err(CommandFailure::new(FailureKind::Usage, what)
                .next("start the hub with --public-url, or give --url")
                .into())
        }
        Err(error) => bail!("cannot read `{}`: {error}", path.display()),
    }
}
