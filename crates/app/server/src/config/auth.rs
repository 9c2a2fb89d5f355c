//! Authentication options: which go together, and the secrets they name.

use std::path::Path;
use std::time::Duration;

use exec_transport::auth::{Auth, JwtRules, TokenDigest};
use exec_transport::listen::ListenUrl;

use exec_cli::settings_source;

use super::{ConfigError, ServerSettings, WsAuth};

/// Builds the authentication, reading the file with the token or secret.
pub(super) fn resolve(settings: &ServerSettings, listen: &ListenUrl) -> Result<Auth, ConfigError> {
    let Some(mode) = settings.ws_auth else {
        return match given(settings).next() {
            Some((option, _)) => Err(ConfigError::OptionWithoutAuth(option)),
            None => Ok(Auth::Open),
        };
    };
    if !listen.is_network() {
        return Err(ConfigError::AuthWithoutNetwork(listen.clone()));
    }
    if let Some((option, needed)) = given(settings).find(|(_, needed)| *needed != mode) {
        return Err(ConfigError::OptionOfOtherAuth {
            option,
            needed: needed.as_str(),
        });
    }
    match mode {
        WsAuth::CapabilityToken => capability_token(settings).map(Auth::CapabilityToken),
        WsAuth::SignedBearerToken => signed_bearer(settings).map(Auth::SignedBearer),
    }
}

/// Lists the given options that require a kind of authentication.
fn given(settings: &ServerSettings) -> impl Iterator<Item = (&'static str, WsAuth)> {
    let (token, signed) = (WsAuth::CapabilityToken, WsAuth::SignedBearerToken);
    [
        (TOKEN_FILE, token, settings.ws_token_file.is_some()),
        (
            "--ws-token-sha256",
            token,
            settings.ws_token_sha256.is_some(),
        ),
        (
            SECRET_FILE,
            signed,
            settings.ws_shared_secret_file.is_some(),
        ),
        ("--ws-issuer", signed, settings.ws_issuer.is_some()),
        ("--ws-audience", signed, settings.ws_audience.is_some()),
        (
            "--ws-max-clock-skew-seconds",
            signed,
            settings.ws_max_clock_skew_seconds.is_some(),
        ),
    ]
    .into_iter()
    .filter_map(|(option, mode, is_given)| is_given.then_some((option, mode)))
}

fn capability_token(settings: &ServerSettings) -> Result<TokenDigest, ConfigError> {
    let path = match (&settings.ws_token_file, &settings.ws_token_sha256) {
        (None, Some(digest)) => return Ok(digest.clone()),
        (Some(path), None) => path,
        (None, None) | (Some(_), Some(_)) => return Err(ConfigError::TokenSource),
    };
    let token = settings_source::read_text(path).map_err(unreadable(TOKEN_FILE, path))?;
    if token.trim().is_empty() {
        return Err(ConfigError::EmptyToken(path.clone()));
    }
    Ok(TokenDigest::of_token(&token))
}

fn signed_bearer(settings: &ServerSettings) -> Result<JwtRules, ConfigError> {
    let path = settings
        .ws_shared_secret_file
        .as_deref()
        .ok_or(ConfigError::NoSharedSecret)?;
    let secret = settings_source::read(path).map_err(unreadable(SECRET_FILE, path))?;
    let skew = settings
        .ws_max_clock_skew_seconds
        .map_or(DEFAULT_SKEW, Duration::from_secs);
    JwtRules::new(
        &secret,
        settings.ws_issuer.clone(),
        settings.ws_audience.clone(),
        skew,
    )
    .map_err(|source| ConfigError::ShortSecret {
        path: path.to_owned(),
        source,
    })
}

fn unreadable(option: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ConfigError {
    move |source| ConfigError::ReadSecret {
        option,
        path: path.to_owned(),
        source,
    }
}

const TOKEN_FILE: &str = "--ws-token-file";
const SECRET_FILE: &str = "--ws-shared-secret-file";
const DEFAULT_SKEW: Duration = Duration::from_secs(30);
