//! The sign-in that another program stores in a file.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use base64_simd::URL_SAFE_NO_PAD;
use futures_util::future::{BoxFuture, FutureExt};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{
    AccountId, CredentialError, Credentials, FixedCredentials, RegistryToken, RegistryTokenError,
    SecretScope, add_fedramp,
};
use crate::api::{SecretString, read_object};

/// Longest file. Tokens take a few kilobytes each.
const MAX_BYTES: u64 = 1 << 20;
/// Claim under which the vendor's identity tokens keep their own claims.
const CLAIMS: &str = "https://api.openai.com/auth";

/// Authenticates with a stored sign-in. The file is read for each request, because another program
/// renews it.
#[derive(Debug)]
pub struct SignIn {
    file: PathBuf,
    secret_scope: SecretScope,
}

impl SignIn {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Returns an error if the file contains no sign-in.
    pub async fn open(file: impl Into<PathBuf>) -> Result<Self, SignInError> {
        let file = file.into();
        let secret_scope = load(file.clone()).await?.secret_scope();
        Ok(Self { file, secret_scope })
    }
}

impl Credentials for SignIn {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        async {
            let stored = load(self.file.clone()).await?;
            if stored.secret_scope() == SecretScope::Vendor
                && self.secret_scope != SecretScope::Vendor
            {
                // An API key replaced the account, and this URL was not checked for API keys.
                return Err(SignInError::OtherKind.into());
            }
            Ok(stored.headers)
        }
        .boxed()
    }

    fn secret_scope(&self) -> SecretScope {
        self.secret_scope
    }
}

/// Parses the content of a sign-in file.
fn parse(text: &[u8]) -> Result<FixedCredentials, SignInError> {
    // serde's error messages may repeat values, so they are dropped.
    let state: SignInFile = read_object(text).map_err(|_| SignInError::Malformed)?;
    let key = state.openai_api_key.filter(|key| !key.is_blank());
    let by_account = state.auth_mode.is_some_and(|mode| mode != API_KEY_MODE);
    match (key, state.tokens) {
        (Some(key), tokens) if tokens.is_none() || !by_account => Ok(FixedCredentials::api_key(
            &RegistryToken::new(key.expose())?,
        )),
        (_, Some(tokens)) => tokens.credentials(),
        (_, None) => Err(SignInError::SignedOut),
    }
}

/// Value of `auth_mode` that selects the API key.
const API_KEY_MODE: &str = "apikey";

/// The members of the file that are used here.
#[derive(Deserialize)]
struct SignInFile {
    #[serde(default)]
    auth_mode: Option<String>,
    #[serde(default, rename = "OPENAI_API_KEY")]
    openai_api_key: Option<SecretString>,
    #[serde(default)]
    tokens: Option<AccountTokens>,
}

#[derive(Deserialize)]
struct AccountTokens {
    access_token: SecretString,
    #[serde(default)]
    account_id: Option<String>,
    /// A JWT of the vendor. Not verified: it only says where the account is served.
    #[serde(default)]
    id_token: Option<SecretString>,
}

impl AccountTokens {
    fn credentials(&self) -> Result<FixedCredentials, SignInError> {
        let token = RegistryToken::new(self.access_token.expose())?;
        let account = self.account_id.as_deref().map(AccountId::new).transpose()?;
        let mut credentials = FixedCredentials::harness_token(&token, account.as_ref());
        if self.is_fedramp().unwrap_or_default() {
            add_fedramp(&mut credentials.headers);
        }
        Ok(credentials)
    }

    fn is_fedramp(&self) -> Option<bool> {
        let claims = self.id_token.as_ref()?.expose().split('.').nth(1)?;
        let claims = URL_SAFE_NO_PAD.decode_to_vec(claims).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        claims
            .get(CLAIMS)?
            .get("chatgpt_account_is_fedramp")?
            .as_bool()
    }
}

async fn load(file: PathBuf) -> Result<FixedCredentials, SignInError> {
    let read = spawn_blocking(move || read(&file)).await;
    parse(&read.map_err(io::Error::other)??)
}

/// Reads a file up to a maximum length. Blocks.
fn read(file: &Path) -> Result<Vec<u8>, SignInError> {
    let mut text = Vec::new();
    let file = File::open(file)?;
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read <= MAX_BYTES) {
        Ok(text)
    } else {
        Err(SignInError::Malformed)
    }
}

/// Caller: the sign-in cannot be used. The error contains nothing of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignInError {
    /// The file cannot be read.
    #[error("failed to read the sign-in file")]
    Read(#[from] io::Error),
    /// The file is not a sign-in file.
    #[error("sign-in file is malformed")]
    Malformed,
    /// The file contains neither an API key nor an account.
    #[error("not signed in")]
    SignedOut,
    /// A token is not allowed in a header.
    #[error("sign-in token is not allowed in a header")]
    Token(#[from] RegistryTokenError),
    /// An API key has replaced the account since start-up.
    #[error("an API key replaced the account of the sign-in; restart the executor")]
    OtherKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(state: &str) -> Result<HeaderMap, SignInError> {
        Ok(parse(state.as_bytes())?.headers)
    }

    #[test]
    fn account_is_sent_with_its_token() {
        let claims = r#"{"https://api.openai.com/auth":{"chatgpt_account_is_fedramp":true}}"#;
        let id_token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode_to_string(claims));
        let state = format!(
            r#"{{"auth_mode":"chatgpt","OPENAI_API_KEY":null,"last_refresh":"x","tokens":{{
                "id_token":"{id_token}","access_token":"tok-1","refresh_token":"r","account_id":"acc-1"}}}}"#
        );
        let headers = headers(&state).unwrap();
        assert_eq!(headers["authorization"], "Bearer tok-1");
        assert_eq!(headers["chatgpt-account-id"], "acc-1");
        assert_eq!(headers["x-openai-fedramp"], "true");
        assert_eq!(headers.len(), 3);
        let stored = parse(state.as_bytes()).unwrap();
        assert_eq!(stored.secret_scope(), SecretScope::Anywhere);
        assert!(!format!("{stored:?}").contains("tok-1"));
    }

    #[test]
    fn api_key_is_limited_to_its_vendor() {
        let state = r#"{"OPENAI_API_KEY":"key-1"}"#;
        let stored = parse(state.as_bytes()).unwrap();
        assert_eq!(stored.headers["authorization"], "Bearer key-1");
        assert_eq!(
            (stored.headers.len(), stored.secret_scope()),
            (1, SecretScope::Vendor)
        );
    }

    #[test]
    fn auth_mode_selects_key_or_account() {
        let both = |mode: &str| {
            let state = format!(
                r#"{{{mode}"OPENAI_API_KEY":"key-1","tokens":{{"access_token":"tok-1"}}}}"#
            );
            headers(&state).unwrap()["authorization"].clone()
        };
        assert_eq!(both(""), "Bearer key-1");
        assert_eq!(both(r#""auth_mode":"apikey","#), "Bearer key-1");
        assert_eq!(both(r#""auth_mode":"chatgpt","#), "Bearer tok-1");
    }

    #[test]
    fn missing_or_malformed_sign_in_is_an_error() {
        for state in ["{}", r#"{"OPENAI_API_KEY":" "}"#, r#"{"tokens":null}"#] {
            assert!(
                matches!(headers(state), Err(SignInError::SignedOut)),
                "{state}"
            );
        }
        for state in [
            "",
            "[]",
            r#"{"tokens":{}}"#,
            r#"{"tokens":{"access_token":7}}"#,
        ] {
            assert!(
                matches!(headers(state), Err(SignInError::Malformed)),
                "{state}"
            );
        }
        let broken = r#"{"tokens":{"access_token":"a\nb"}}"#;
        assert!(matches!(headers(broken), Err(SignInError::Token(_))));
    }

    #[tokio::test]
    async fn the_file_is_read_for_each_request() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth.json");
        assert!(matches!(
            SignIn::open(&file).await,
            Err(SignInError::Read(_))
        ));
        std::fs::write(&file, r#"{"tokens":{"access_token":"one"}}"#).unwrap();
        let sign_in = SignIn::open(&file).await.unwrap();
        assert_eq!(
            sign_in.headers().await.unwrap()["authorization"],
            "Bearer one"
        );
        std::fs::write(&file, r#"{"tokens":{"access_token":"two"}}"#).unwrap();
        assert_eq!(
            sign_in.headers().await.unwrap()["authorization"],
            "Bearer two"
        );
        // An API key must not go to registries that were accepted for an account's token.
        std::fs::write(&file, r#"{"OPENAI_API_KEY":"key"}"#).unwrap();
        let error = sign_in.headers().await.unwrap_err();
        assert!(matches!(
            error,
            CredentialError::SignIn(SignInError::OtherKind)
        ));
        std::fs::write(&file, vec![b' '; (1 << 20) + 1]).unwrap();
        assert!(matches!(
            SignIn::open(&file).await,
            Err(SignInError::Malformed)
        ));
    }
}
