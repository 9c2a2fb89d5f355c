//! Redeems an invite of a hub and stores its token.
//!
//! Invariant: the token is in a file with mode 0600 before the invite counts as redeemed here. After
//! a lost response the same line can be given again, because the claim that identifies this account
//! is stored before the request.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use exec_registry::{
    api::SecretString,
    http::BaseUrl,
    invite::{InviteLine, InviteRole, RedeemInviteError},
};
use exec_settings::{
    outbound_network::OutboundNetwork,
    settings_source::{self, VariableLookup, config_directory},
};
use exec_wire::error::error_chain;

use crate::command::{
    directory_env::{digest, replace},
    failure::{CommandFailure, FailureKind},
};

/// A redeemed invite.
#[derive(Clone, Debug)]
pub struct RedeemedInvite {
    /// The hub.
    pub hub: BaseUrl,
    /// Environment, or a pattern of environments.
    pub name: String,
    /// File with the token, mode 0600.
    pub token_file: PathBuf,
}

/// Reads an invite for this role. Sends nothing.
///
/// # Errors
/// When the line is not such an invite, or would be sent unencrypted.
pub fn read_invite(line: &str, role: InviteRole) -> Result<InviteLine, CommandFailure> {
    let invite: InviteLine = line.parse().map_err(|error| {
        CommandFailure::usage(format!("{error}")).next("`exec-server hub invite` prints one")
    })?;
    if invite.role != role {
        let what = format!("this invite is for the {} `{}`", invite.role, invite.name);
        return Err(CommandFailure::usage(what).next(match invite.role {
            InviteRole::Executor => "on that machine run: exec-server join LINE",
            InviteRole::Harness => "use it with: exec-server env add NAME --invite LINE",
        }));
    }
    if !invite.hub.is_private() {
        return Err(failure(&invite.hub, &RedeemInviteError::InTheClear));
    }
    Ok(invite)
}

/// Redeems an invite and stores the token. Does nothing if this account has redeemed it before.
///
/// # Errors
/// When the hub refuses or cannot be reached, or the token cannot be stored.
pub async fn redeem_invite(
    invite: &InviteLine,
    lookup: VariableLookup<'_>,
) -> Result<RedeemedInvite, CommandFailure> {
    let token_file = token_file(invite, lookup)?;
    let redeemed = RedeemedInvite {
        hub: invite.hub.clone(),
        name: invite.name.clone(),
        token_file,
    };
    let path = &redeemed.token_file;
    if path.exists() {
        return Ok(redeemed);
    }
    let not_stored = |error: io::Error| {
        let what = format!("cannot store the token in `{}`: {error}", path.display());
        CommandFailure::failed(what).next("the invite was not used")
    };
    let claim_file = path.with_extension("claim");
    let claim = claim(&claim_file).map_err(not_stored)?;
    let failed = |error: anyhow::Error| CommandFailure::failed(format!("{error:#}"));
    let network =
        OutboundNetwork::find(lookup, &invite.hub).map_err(|error| failed(error.into()))?;
    let http = network.http(&invite.hub).await.map_err(failed)?;
    let response = invite.redeem(&claim, &http).await.map_err(|error| {
        if !error.is_transient() {
            // The hub has not accepted this claim.
            drop(fs::remove_file(&claim_file));
        }
        failure(&invite.hub, &error)
    })?;
    let token = format!("{}\n", response.token.expose());
    replace(path, token.as_bytes(), 0o600).map_err(|error| {
        let what = format!("cannot store the token in `{}`: {error}", path.display());
        CommandFailure::failed(what).next("then give the same line again")
    })?;
    // A leftover claim is harmless.
    drop(fs::remove_file(&claim_file));
    Ok(redeemed)
}

/// Returns the file for the token of an invite. Its name has the environment and a hash of the
/// secret.
fn token_file(invite: &InviteLine, lookup: VariableLookup<'_>) -> Result<PathBuf, CommandFailure> {
    let home = config_directory(lookup).and_then(|home| std::path::absolute(home).ok());
    let home = home.ok_or_else(|| {
        CommandFailure::failed("cannot determine the settings directory")
            .next("set HOME, XDG_CONFIG_HOME or EXEC_SERVER_HOME")
    })?;
    let plain = |sign: char| match sign.is_ascii_alphanumeric() || "_-".contains(sign) {
        true => sign,
        false => '_',
    };
    let name: String = invite.name.chars().take(MAX_NAME).map(plain).collect();
    let digest = digest(invite.secret.expose().as_bytes());
    let digest = &digest[..16];
    Ok(home.join("tokens").join(format!("{name}-{digest}.token")))
}

/// Longest part of an environment's name in a file name.
const MAX_NAME: usize = 64;

/// Returns the random text that identifies this claimant. Stores it first if it is new.
fn claim(path: &Path) -> io::Result<SecretString> {
    if let Some(directory) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            // Two random UUIDs: 244 random bits.
            let text = format!(
                "{}{}",
                uuid::Uuid::new_v4().simple(),
                uuid::Uuid::new_v4().simple()
            );
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(SecretString::new(text))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let text = settings_source::read_text(path)?;
            match text.len() == CLAIM_BYTES {
                true => Ok(SecretString::new(text)),
                false => Err(io::Error::other(format!(
                    "`{}` is damaged: remove it",
                    path.display()
                ))),
            }
        }
        Err(error) => Err(error),
    }
}

const CLAIM_BYTES: usize = 64;

/// Explains why an invite was not redeemed, and suggests the next step.
fn failure(hub: &BaseUrl, error: &RedeemInviteError) -> CommandFailure {
    use RedeemInviteError as E;
    let new_one = "ask for another one: exec-server hub invite";
    match error {
        E::InTheClear => CommandFailure::new(
            FailureKind::Usage,
            format!("refusing to send an invite to `{hub}` unencrypted"),
        )
        .next("give the hub a certificate, or a proxy with https:// and --public-url"),
        E::Used => CommandFailure::new(FailureKind::NotAllowed, "the invite has been used")
            .next(format!("{new_one}; if you did not use it, revoke it: exec-server hub token revoke")),
        E::Expired => {
            CommandFailure::new(FailureKind::NotAllowed, "the invite has expired").next(new_one)
        }
        E::Unknown => CommandFailure::new(
            FailureKind::NotAllowed,
            format!("the hub at `{hub}` does not know this invite: it was revoked, or another hub answers there"),
        )
        .next(new_one),
        E::Limited => CommandFailure::new(
            FailureKind::Unreachable,
            format!("too many attempts from this address at the hub `{hub}`"),
        )
        .next("try again in a minute"),
        E::NotAHub(_) | E::Malformed => CommandFailure::new(
            FailureKind::Unreachable,
            format!("cannot redeem the invite at `{hub}`: {error}"),
        )
        .next("check the URL of the hub and its version"),
        E::Exchange(source) if source.is_unreachable() => CommandFailure::new(
            FailureKind::Unreachable,
            format!("cannot reach the hub at `{hub}`: nothing answers"),
        )
        .next("start it, or check the network; the invite stays valid until it expires"),
        E::Refused { .. } | E::Exchange(_) | _ => CommandFailure::new(
            FailureKind::Unreachable,
            format!("cannot redeem the invite at `{hub}`: {}", error_chain(error)),
        )
        .next("give the same line again; SSL_CERT_FILE names certificates to trust"),
    }
}
