//! Tokens that a parent process writes to standard input once: a registration bearer, or a ChatGPT
//! access token with its account.
//!
//! One line is read; the rest is ignored. Elsewhere: rotating tokens (`credential_pipe`), and what
//! the end of standard input means (the product crate).

use base64_simd::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tokio::io::AsyncRead;

use super::{
    AccountId, FixedCredentials, PipeError, RegistryToken, SecretScope,
    credential_pipe::CredentialLineReader,
};

impl FixedCredentials {
    /// Reads a bearer token for every request to the registry: one line, without a time limit.
    ///
    /// # Errors
    /// Returns an error if the line is incomplete, too long, or not a valid bearer.
    pub async fn read_bearer(reader: impl AsyncRead + Unpin) -> Result<Self, StdinTokenError> {
        let line = line(reader).await?.ok_or(StdinTokenError::BearerLine)?;
        let token = token(&line).ok_or(StdinTokenError::InvalidBearer)?;
        Ok(Self::new(token.headers(), SecretScope::Private).hide_bodies())
    }

    /// Reads a ChatGPT access token: one line with a JWT. The registry verifies its signature. If
    /// the token names an account, `account` must match it.
    ///
    /// # Errors
    /// Returns an error if the line is incomplete, too long or not a JWT, or if the account is
    /// missing or does not match.
    pub async fn read_chatgpt_token(
        reader: impl AsyncRead + Unpin,
        account: Option<&str>,
    ) -> Result<Self, StdinTokenError> {
        let line = line(reader).await?.ok_or(StdinTokenError::ChatGptLine)?;
        let token = token(&line).ok_or(StdinTokenError::InvalidChatGpt)?;
        let claimed = ChatGptClaims::read(&line).ok_or(StdinTokenError::InvalidChatGpt)?;
        let account = match (claimed.chatgpt_account_id, account) {
            (Some(claimed), Some(expected)) if claimed != expected => {
                return Err(StdinTokenError::AccountMismatch);
            }
            (Some(claimed), _) => claimed,
            (None, Some(expected)) => expected.to_owned(),
            (None, None) => return Err(StdinTokenError::NoAccount),
        };
        if account.trim() != account {
            return Err(StdinTokenError::InvalidAccount);
        }
        let account = AccountId::new(&account).map_err(|_| StdinTokenError::InvalidAccount)?;
        let mut headers = token.headers();
        account.add_to(&mut headers);
        Ok(Self::new(headers, SecretScope::Https).hide_bodies())
    }
}

/// Reads one line. Returns `None` if it is incomplete or too long.
async fn line(reader: impl AsyncRead + Unpin) -> Result<Option<Vec<u8>>, StdinTokenError> {
    match CredentialLineReader::new(reader).next().await {
        Ok(Some(mut line)) => {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            Ok(Some(line))
        }
        Ok(None) | Err(PipeError::TooLong(_)) => Ok(None),
        Err(error) => Err(StdinTokenError::Read(error)),
    }
}

/// Parses a token that is a single word.
fn token(line: &[u8]) -> Option<RegistryToken> {
    let is_one_word = line.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(line).ok().filter(|_| is_one_word)?;
    RegistryToken::new(text).ok()
}

/// The claims of a ChatGPT access token that are used here.
#[derive(Default, Deserialize)]
struct ChatGptClaims {
    #[serde(default)]
    chatgpt_account_id: Option<String>,
}

impl ChatGptClaims {
    /// Decodes the payload of a JWT. Returns `None` if it is not a JWT.
    fn read(jwt: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct JwtPayload {
            #[serde(default, rename = "https://api.openai.com/auth")]
            auth: Option<ChatGptClaims>,
        }

        let mut parts = jwt.splitn(3, |byte| *byte == b'.');
        let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if header.is_empty() || signature.is_empty() {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode_to_vec(payload).ok()?;
        let payload: JwtPayload = crate::api::read_object(&payload).ok()?;
        Some(payload.auth.unwrap_or_default())
    }
}

/// Caller: standard input did not provide a token. The error never repeats a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdinTokenError {
    /// The line is incomplete or too long.
    #[error("expected a newline-terminated registration bearer of at most 16 KiB")]
    BearerLine,
    /// The line is empty, contains whitespace, or is not ASCII.
    #[error("invalid registration bearer")]
    InvalidBearer,
    /// The line is incomplete or too long.
    #[error("expected a newline-terminated ChatGPT access token of at most 16 KiB")]
    ChatGptLine,
    /// The line is not a JWT.
    #[error("invalid ChatGPT access token")]
    InvalidChatGpt,
    /// The token names another account than the flag.
    #[error("--chatgpt-account-id does not match the token")]
    AccountMismatch,
    /// Neither the token nor a flag names an account.
    #[error("token has no ChatGPT account ID; supply --chatgpt-account-id")]
    NoAccount,
    /// The account cannot be sent in a header.
    #[error("invalid ChatGPT account ID")]
    InvalidAccount,
    /// Standard input cannot be read.
    #[error("failed to read the token from standard input")]
    Read(#[source] PipeError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{BodyDisclosure, Credentials as _};

    const AUTH: &str = "https://api.openai.com/auth";

    async fn bearer(input: &[u8]) -> Result<String, StdinTokenError> {
        let bearer = FixedCredentials::read_bearer(input).await?;
        assert_eq!(
            (bearer.secret_scope(), bearer.body_disclosure()),
            (SecretScope::Private, BodyDisclosure::Hidden)
        );
        let headers = bearer.headers().await.unwrap();
        Ok(headers["authorization"].to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn registration_bearer_is_one_line_without_whitespace() {
        for input in [&b"abc\n"[..], b"abc\r\n", b"abc\nwhat follows"] {
            assert_eq!(bearer(input).await.unwrap(), "Bearer abc");
        }
        let longest = [&vec![b'a'; 16_383][..], b"\n"].concat();
        assert!(bearer(&longest).await.is_ok());
        let too_long = [&vec![b'a'; 16_384][..], b"\n"].concat();
        for input in [&b""[..], b"abc", &too_long] {
            let error = bearer(input).await.unwrap_err();
            assert!(matches!(error, StdinTokenError::BearerLine), "{error:?}");
        }
        for input in [
            &b"\n"[..],
            b"\r\n",
            b"a b\n",
            b" a\n",
            b"a\tb\n",
            b"\xffa\n",
        ] {
            let error = bearer(input).await.unwrap_err();
            assert!(matches!(error, StdinTokenError::InvalidBearer), "{error:?}");
        }
    }

    fn jwt(payload: &serde_json::Value) -> String {
        let payload = URL_SAFE_NO_PAD.encode_to_string(payload.to_string());
        format!("head.{payload}.signature")
    }

    async fn account(line: &str, expected: Option<&str>) -> Result<String, StdinTokenError> {
        let input = format!("{line}\n");
        let token = FixedCredentials::read_chatgpt_token(input.as_bytes(), expected).await?;
        assert_eq!(
            (token.secret_scope(), token.body_disclosure()),
            (SecretScope::Https, BodyDisclosure::Hidden)
        );
        let headers = token.headers().await.unwrap();
        assert_eq!(headers["authorization"], format!("Bearer {line}"));
        assert!(!format!("{token:?}").contains("signature"), "{token:?}");
        Ok(headers["chatgpt-account-id"].to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn account_comes_from_the_token_or_the_flag() {
        let with = jwt(&serde_json::json!({AUTH: {"chatgpt_account_id": "acc"}}));
        let without = jwt(&serde_json::json!({"exp": 1}));
        assert_eq!(account(&with, None).await.unwrap(), "acc");
        assert_eq!(account(&with, Some("acc")).await.unwrap(), "acc");
        assert_eq!(account(&without, Some("acc")).await.unwrap(), "acc");
        for other in ["other", " acc", ""] {
            let error = account(&with, Some(other)).await.unwrap_err();
            assert!(
                matches!(error, StdinTokenError::AccountMismatch),
                "{error:?}"
            );
        }
        let error = account(&without, None).await.unwrap_err();
        assert!(matches!(error, StdinTokenError::NoAccount), "{error:?}");
        for invalid in ["", " acc", "a\u{7f}"] {
            let invalid = jwt(&serde_json::json!({AUTH: {"chatgpt_account_id": invalid}}));
            let error = account(&invalid, None).await.unwrap_err();
            assert!(
                matches!(error, StdinTokenError::InvalidAccount),
                "{error:?}"
            );
        }
    }

    #[tokio::test]
    async fn line_that_is_not_a_jwt_is_rejected() {
        let valid = jwt(&serde_json::json!({AUTH: {"chatgpt_account_id": "acc"}}));
        let (signed, _) = valid.rsplit_once('.').unwrap();
        for line in [
            "",
            "abc",
            "a.b.c",
            signed,
            &format!("{signed}."),
            &format!(" {valid}"),
            &format!("{valid} x"),
            &jwt(&serde_json::json!({AUTH: 7})),
            &jwt(&serde_json::json!({AUTH: {"chatgpt_account_id": 7}})),
            &jwt(&serde_json::json!("text")),
        ] {
            let error = account(line, Some("acc")).await.unwrap_err();
            assert!(
                matches!(error, StdinTokenError::InvalidChatGpt),
                "{line}: {error:?}"
            );
        }
        let error = FixedCredentials::read_chatgpt_token(valid.as_bytes(), None)
            .await
            .unwrap_err();
        assert!(matches!(error, StdinTokenError::ChatGptLine), "{error:?}");
    }
}
