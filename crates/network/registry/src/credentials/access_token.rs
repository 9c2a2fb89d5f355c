//! Personal access tokens. Their issuer says which account they are for.

use std::{fmt, time::Duration};

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, Method};
use serde::Deserialize;

use super::{
    AccountId, CredentialError, Credentials, Fedramp, Reach, ReachError, Token, TokenError,
};
use crate::{
    api::read_object,
    http::{BaseUrl, Call, Connection, ExchangeError, Http},
};

/// What personal access tokens begin with.
const PREFIX: &str = "at-";
/// How long the issuer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer of the issuer: five short members.
const MAX_ANSWER: usize = 64 << 10;

/// Authenticates with a personal access token.
#[derive(Clone)]
pub struct AccessToken {
    headers: HeaderMap,
}

impl AccessToken {
    /// Asks the issuer at `issuer` whom the token is for.
    ///
    /// # Errors
    /// When it is no such token, or its issuer does not say.
    pub async fn establish(
        token: &str,
        issuer: &BaseUrl,
        http: &Http,
    ) -> Result<Self, AccessTokenError> {
        let token = token.trim();
        if !token.starts_with(PREFIX) {
            return Err(AccessTokenError::Kind);
        }
        Reach::Private.admit(issuer.url())?;
        let mut headers = Token::new(token)?.headers();
        let url = issuer
            .join("v1/user-auth-credential/whoami")
            .map_err(AccessTokenError::Url)?;
        let call = Call {
            method: Method::GET,
            url,
            headers: headers.clone(),
            body: None,
            connection: Connection::Kept,
            within: TIMEOUT,
            limit: MAX_ANSWER,
        };
        let reply = http.send(call).await?;
        if !reply.status.is_success() {
            return Err(AccessTokenError::Refused(reply.status.as_u16()));
        }
        // What is answered tells of a person, so it is not repeated.
        let account: WhoAmI = read_object(&reply.body).map_err(|_| AccessTokenError::Malformed)?;
        AccountId::new(&account.chatgpt_account_id)
            .map_err(|_| AccessTokenError::Malformed)?
            .add_to(&mut headers);
        Fedramp::from(account.chatgpt_account_is_fedramp).add_to(&mut headers);
        Ok(Self { headers })
    }
}

impl Credentials for AccessToken {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        ready(Ok(self.headers.clone())).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Anywhere
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").finish_non_exhaustive()
    }
}

/// Whom a token is for. All members must be there, but not everybody has an address.
#[derive(Deserialize)]
#[expect(
    dead_code,
    reason = "an answer without them is none, though nobody asks for them"
)]
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
    /// Caller: it is a token of another kind.
    #[error(
        "access token does not begin with `{PREFIX}`; an agent identity is used only when asked for"
    )]
    Kind,
    /// Caller: no header can carry it.
    #[error("access token cannot be sent")]
    Token(#[from] TokenError),
    /// Caller: the issuer is where others could read the token on its way.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Caller: the issuer's URL cannot be extended.
    #[error("URL of the issuer is malformed")]
    Url(#[source] url::ParseError),
    /// Transport: the issuer did not answer.
    #[error("issuer of the access token did not answer")]
    Exchange(#[from] ExchangeError),
    /// Caller: the issuer does not accept it.
    #[error("issuer refused the access token: {0}")]
    Refused(u16),
    /// Peer: the issuer does not say whom it is for.
    #[error("answer of the access token's issuer cannot be read")]
    Malformed,
}

#[cfg(test)]
mod tests {
    use http::header;
    use serde_json::{Value, json};

    use super::*;
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

    /// Establishes a token with an issuer that answers like this.
    async fn establish(
        status: u16,
        said: &Value,
    ) -> (Result<AccessToken, AccessTokenError>, Server) {
        let said = said.to_string();
        let server = Server::start(move |_, _| answer(status, said.clone())).await;
        let issuer = BaseUrl::parse(&format!("{}/api/", server.url())).unwrap();
        let made = AccessToken::establish(" at-s3cret\n", &issuer, &http()).await;
        (made, server)
    }

    #[tokio::test]
    async fn the_issuer_says_which_account_it_is_for() {
        let (made, server) = establish(200, &whoami()).await;
        let token = made.unwrap();
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
        let (made, _server) = establish(200, &fedramp).await;
        let headers = made.unwrap().headers().await.unwrap();
        assert_eq!(headers["x-openai-fedramp"], "true");
    }

    #[tokio::test]
    async fn an_answer_that_is_not_whole_is_none() {
        for member in whoami().as_object().unwrap().keys() {
            let mut said = whoami();
            said.as_object_mut().unwrap().remove(member);
            let (made, _server) = establish(200, &said).await;
            let refused = matches!(made, Err(AccessTokenError::Malformed));
            assert_eq!(refused, member != "email", "{member}");
        }
        for status in [302, 401, 403, 500] {
            let (made, _server) = establish(status, &whoami()).await;
            assert!(matches!(made, Err(AccessTokenError::Refused(found)) if found == status));
        }
    }

    #[tokio::test]
    async fn other_tokens_and_open_roads_are_refused_before_anything_is_sent() {
        let near = BaseUrl::parse("http://127.0.0.1:1").unwrap();
        for token in ["", "eyJ.a.b", "sk-1"] {
            let made = AccessToken::establish(token, &near, &http()).await;
            assert!(matches!(made, Err(AccessTokenError::Kind)), "{token}");
        }
        let made = AccessToken::establish("at-a\nb", &near, &http()).await;
        assert!(matches!(made, Err(AccessTokenError::Token(_))));
        let clear = BaseUrl::parse("http://issuer.test").unwrap();
        let made = AccessToken::establish("at-1", &clear, &http()).await;
        assert!(matches!(made, Err(AccessTokenError::Reach(_))));
    }
}
