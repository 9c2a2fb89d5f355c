//! Personal access tokens. Their issuer reports which account they belong to.

use serde::Deserialize;

use super::{
    AccountId, FixedCredentials, RegistryToken, RegistryTokenError, SecretScope, SecretScopeError,
    add_fedramp,
};
use crate::{
    api::read_object,
    http::{BaseUrl, ExchangeError, HttpCall, HttpClient},
};

/// Prefix of personal access tokens.
const PREFIX: &str = "at-";

impl FixedCredentials {
    /// Presents a personal access token, after asking the issuer which account it belongs to.
    ///
    /// # Errors
    /// Returns an error if this is not a personal access token or the issuer does not accept it.
    pub async fn access_token(
        token: &str,
        issuer: &BaseUrl,
        http: &HttpClient,
    ) -> Result<Self, AccessTokenError> {
        let token = token.trim();
        if !token.starts_with(PREFIX) {
            return Err(AccessTokenError::Kind);
        }
        SecretScope::Private.admit(issuer.url())?;
        let mut headers = RegistryToken::new(token)?.headers();
        let url = issuer
            .join("v1/user-auth-credential/whoami")
            .map_err(AccessTokenError::Url)?;
        let reply = http.send(HttpCall::get(url, headers.clone())).await?;
        if !reply.status.is_success() {
            return Err(AccessTokenError::Refused(reply.status.as_u16()));
        }
        // The response describes a person, so errors do not repeat it.
        let account: WhoAmI = read_object(&reply.body).map_err(|_| AccessTokenError::Malformed)?;
        AccountId::new(&account.chatgpt_account_id)
            .map_err(|_| AccessTokenError::Malformed)?
            .add_to(&mut headers);
        if account.chatgpt_account_is_fedramp {
            add_fedramp(&mut headers);
        }
        Ok(Self::new(headers, SecretScope::Anywhere))
    }
}

/// Response of the issuer. All members but the email address are required.
#[derive(Deserialize)]
#[expect(dead_code, reason = "required in a valid response, but not used")]
struct WhoAmI {
    #[serde(default)]
    email: Option<String>,
    chatgpt_user_id: String,
    chatgpt_account_id: String,
    chatgpt_plan_type: String,
    chatgpt_account_is_fedramp: bool,
}

/// Why a personal access token cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessTokenError {
    /// Caller: this is another kind of token.
    #[error(
        "access token does not begin with `{PREFIX}`; agent identities must be requested explicitly"
    )]
    Kind,
    /// Caller: the token is not allowed in a header.
    #[error("access token is not allowed in a header")]
    Token(#[from] RegistryTokenError),
    /// Caller: the connection to the issuer would not be encrypted.
    #[error(transparent)]
    SecretScope(#[from] SecretScopeError),
    /// Caller: the issuer's URL cannot be extended.
    #[error("URL of the issuer is malformed")]
    Url(#[source] url::ParseError),
    /// Transport: the issuer did not respond.
    #[error("issuer of the access token did not respond")]
    Exchange(#[from] ExchangeError),
    /// Caller: the issuer rejected the token.
    #[error("issuer refused the access token: {0}")]
    Refused(u16),
    /// Peer: the issuer's response is invalid.
    #[error("invalid response from the issuer of the access token")]
    Malformed,
}

#[cfg(test)]
mod tests {
    use http::{Method, header};
    use serde_json::{Value, json};

    use super::*;
    use crate::credentials::Credentials as _;
    use crate::http::tests::{Server, answer, http};

    fn whoami() -> Value {
        json!({
            "email": "me@a.test",
            "chatgpt_user_id": "user-1",
            "chatgpt_account_id": "acc-1",
            "chatgpt_plan_type": "pro",
            "chatgpt_account_is_fedramp": false,
        })
    }

    /// Establishes a token with an issuer that sends the given response.
    async fn establish(
        status: u16,
        response: &Value,
    ) -> (Result<FixedCredentials, AccessTokenError>, Server) {
        let response = response.to_string();
        let server = Server::start(move |_, _| answer(status, response.clone())).await;
        let issuer = BaseUrl::parse(&format!("{}/api/", server.url())).unwrap();
        let result = FixedCredentials::access_token(" at-s3cret\n", &issuer, &http()).await;
        (result, server)
    }

    #[tokio::test]
    async fn account_comes_from_the_issuer() {
        let (result, server) = establish(200, &whoami()).await;
        let token = result.unwrap();
        let seen = server.seen();
        assert_eq!((seen.len(), &seen[0].method), (1, &Method::GET));
        assert_eq!(seen[0].target, "/api/v1/user-auth-credential/whoami");
        assert_eq!(seen[0].headers[header::AUTHORIZATION], "Bearer at-s3cret");
        let headers = token.headers().await.unwrap();
        assert_eq!(headers[header::AUTHORIZATION], "Bearer at-s3cret");
        assert_eq!(headers["chatgpt-account-id"], "acc-1");
        assert_eq!(headers.len(), 2);
        assert!(!format!("{token:?}").contains("s3cret"));
        let mut fedramp = whoami();
        fedramp["chatgpt_account_is_fedramp"] = json!(true);
        let (result, _server) = establish(200, &fedramp).await;
        let headers = result.unwrap().headers().await.unwrap();
        assert_eq!(headers["x-openai-fedramp"], "true");
    }

    #[tokio::test]
    async fn incomplete_response_is_rejected() {
        for member in whoami().as_object().unwrap().keys() {
            let mut response = whoami();
            response.as_object_mut().unwrap().remove(member);
            let (result, _server) = establish(200, &response).await;
            let refused = matches!(result, Err(AccessTokenError::Malformed));
            assert_eq!(refused, member != "email", "{member}");
        }
        for status in [302, 401, 403, 500] {
            let (result, _server) = establish(status, &whoami()).await;
            assert!(matches!(result, Err(AccessTokenError::Refused(found)) if found == status));
        }
    }

    #[tokio::test]
    async fn other_tokens_and_unencrypted_issuers_are_rejected_before_sending() {
        let loopback = BaseUrl::parse("http://127.0.0.1:1").unwrap();
        for token in ["", "eyJ.a.b", "sk-1"] {
            let result = FixedCredentials::access_token(token, &loopback, &http()).await;
            assert!(matches!(result, Err(AccessTokenError::Kind)), "{token}");
        }
        let result = FixedCredentials::access_token("at-a\nb", &loopback, &http()).await;
        assert!(matches!(result, Err(AccessTokenError::Token(_))));
        let unencrypted = BaseUrl::parse("http://issuer.test").unwrap();
        let result = FixedCredentials::access_token("at-1", &unencrypted, &http()).await;
        assert!(matches!(result, Err(AccessTokenError::SecretScope(_))));
    }
}
