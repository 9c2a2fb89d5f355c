//! Invites of a hub: the line that one end copies to the other, and its exchange for a token.
//!
//! A line contains the hub's URL, so that nothing else must be typed, and a checksum, so that a
//! truncated one is recognized before anything is sent. Elsewhere: creating and redeeming invites at
//! the hub (`exec-hub`), storing the token (`exec-cli`).

use std::{fmt, str::FromStr};

use base64_simd::URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    api::{ErrorBody, SecretString, read_object},
    http::{BaseUrl, ExchangeError, HttpCall, HttpClient, HttpReply},
};

/// Path of the exchange at a hub.
pub const REDEEM_PATH: &str = "/hub/v1/invites/redeem";

/// Request body of the exchange.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RedeemInviteRequest {
    /// The invite.
    pub invite: SecretString,
    /// Random text that identifies the claimant. The same claimant may repeat the request with it.
    pub claim: SecretString,
}

/// Response body of the exchange.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RedeemInviteResponse {
    /// Token, valid until the invite is revoked.
    pub token: SecretString,
    /// Roles of the token.
    pub roles: Vec<String>,
    /// Globs of the environments that the token is restricted to.
    pub environments: Vec<String>,
}

/// Role that an invite grants.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InviteRole {
    /// A machine that runs commands.
    Executor,
    /// A client that uses such a machine.
    Harness,
}

impl fmt::Display for InviteRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Executor => "executor",
            Self::Harness => "harness",
        })
    }
}

impl FromStr for InviteRole {
    type Err = InviteRoleError;

    fn from_str(text: &str) -> Result<Self, InviteRoleError> {
        [Self::Executor, Self::Harness]
            .into_iter()
            .find(|role| role.to_string() == text)
            .ok_or(InviteRoleError)
    }
}

/// Caller: the text is not a role of an invite.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected `executor` or `harness`")]
pub struct InviteRoleError;

/// An invite as one line without blanks. `Debug` redacts the secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InviteLine {
    /// The hub.
    pub hub: BaseUrl,
    /// Role that the invite grants.
    pub role: InviteRole,
    /// Environment, or a pattern of environments.
    pub name: String,
    /// The single-use secret.
    pub secret: SecretString,
}

/// Content of a line. Unknown members are ignored, so that later versions can add some.
#[derive(Deserialize, Serialize)]
struct InvitePayload {
    hub: String,
    role: InviteRole,
    name: String,
    secret: SecretString,
}

/// Begins every line.
const PREFIX: &str = "exec-invite-";
/// Bytes of the checksum before the content.
const CHECKSUM_BYTES: usize = 6;
/// Longest line: a URL, a name and a secret take a few hundred bytes.
const MAX_LINE_BYTES: usize = 8192;

impl InviteLine {
    /// Returns the line. It is secret until it has been redeemed.
    pub fn expose(&self) -> String {
        let payload = InvitePayload {
            hub: self.hub.to_string(),
            role: self.role,
            name: self.name.clone(),
            secret: self.secret.clone(),
        };
        // All members are strings, so serialization cannot fail.
        let content = serde_json::to_vec(&payload).unwrap_or_default();
        let bytes = [&checksum(&content)[..], &content].concat();
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode_to_string(bytes))
    }

    /// Exchanges the invite for a token. The claimant may repeat this with the same `claim`.
    ///
    /// # Errors
    /// When the invite is no longer valid, would be sent unencrypted, or the hub cannot be reached.
    pub async fn redeem(
        &self,
        claim: &SecretString,
        http: &HttpClient,
    ) -> Result<RedeemInviteResponse, RedeemInviteError> {
        if !self.hub.is_private() {
            return Err(RedeemInviteError::InTheClear);
        }
        let url = self.hub.join(&REDEEM_PATH[1..]);
        let request = RedeemInviteRequest {
            invite: self.secret.clone(),
            claim: claim.clone(),
        };
        let body = serde_json::to_vec(&request).map_err(|_| RedeemInviteError::Malformed)?;
        let url = url.map_err(|_| RedeemInviteError::Malformed)?;
        let call = HttpCall {
            limit: MAX_LINE_BYTES,
            ..HttpCall::post_json(url, HeaderMap::new(), body)
        };
        let reply = http.send(call).await?;
        if !reply.status.is_success() {
            return Err(RedeemInviteError::of_reply(&reply));
        }
        let response: RedeemInviteResponse =
            read_object(&reply.body).map_err(|_| RedeemInviteError::Malformed)?;
        match response.token.is_blank() {
            true => Err(RedeemInviteError::Malformed),
            false => Ok(response),
        }
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::digest(content);
    std::array::from_fn(|index| digest[index])
}

impl FromStr for InviteLine {
    type Err = InviteLineError;

    fn from_str(text: &str) -> Result<Self, InviteLineError> {
        let rest = text.trim().strip_prefix(PREFIX);
        let rest = rest.ok_or(InviteLineError::NotAnInvite)?;
        if rest.len() > MAX_LINE_BYTES {
            return Err(InviteLineError::Damaged);
        }
        let bytes = URL_SAFE_NO_PAD.decode_to_vec(rest.as_bytes());
        let bytes = bytes.map_err(|_| InviteLineError::Damaged)?;
        let content = match bytes.split_at_checked(CHECKSUM_BYTES) {
            Some((sum, content)) if sum == checksum(content) => content,
            Some(_) | None => return Err(InviteLineError::Damaged),
        };
        let payload: InvitePayload =
            serde_json::from_slice(content).map_err(|_| InviteLineError::Unsupported)?;
        Ok(Self {
            hub: BaseUrl::parse(&payload.hub).map_err(|_| InviteLineError::Unsupported)?,
            role: payload.role,
            name: payload.name,
            secret: payload.secret,
        })
    }
}

/// Caller: the text is not an invite. The errors do not repeat it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InviteLineError {
    /// It does not begin like an invite.
    #[error("not an invite: it begins with `{PREFIX}`")]
    NotAnInvite,
    /// Characters are missing or changed.
    #[error("the invite is incomplete or has been changed: copy the whole line")]
    Damaged,
    /// A later version created it.
    #[error("the invite is of another version of exec-server")]
    Unsupported,
}

/// Why an invite was not redeemed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemInviteError {
    /// Caller: the invite would be sent unencrypted.
    #[error("the invite would be sent unencrypted")]
    InTheClear,
    /// Caller: the hub never issued it, or revoked it.
    #[error("the hub does not know the invite")]
    Unknown,
    /// Caller: another claimant has redeemed it.
    #[error("the invite has been used")]
    Used,
    /// Caller: it is too late.
    #[error("the invite has expired")]
    Expired,
    /// Caller: the hub's rate limit refused the attempt.
    #[error("too many attempts")]
    Limited,
    /// Peer: this is not a hub, or one without invites.
    #[error("no hub with invites answers there: status {0}")]
    NotAHub(u16),
    /// Peer: the hub refused for another reason.
    #[error("the hub refused: status {status}{}", .message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Message of the hub.
        message: Option<String>,
    },
    /// Peer: the response is malformed.
    #[error("invalid response from the hub")]
    Malformed,
    /// Transport: no response arrived.
    #[error("the hub did not respond")]
    Exchange(#[from] ExchangeError),
}

impl RedeemInviteError {
    fn of_reply(reply: &HttpReply) -> Self {
        let error = ErrorBody::read(&reply.body).map(|body| body.error);
        let code = error.as_ref().and_then(|error| error.code.clone());
        let status = reply.status;
        match code.as_deref() {
            Some("invite_unknown") => Self::Unknown,
            Some("invite_used") => Self::Used,
            Some("invite_expired") => Self::Expired,
            _ if status == StatusCode::TOO_MANY_REQUESTS => Self::Limited,
            _ if status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED => {
                Self::NotAHub(status.as_u16())
            }
            None if !status.is_server_error() => Self::NotAHub(status.as_u16()),
            _ => Self::Refused {
                status: status.as_u16(),
                message: error.and_then(|error| error.message),
            },
        }
    }

    /// Returns whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Exchange(error) => error.is_transient(),
            Self::Limited => true,
            Self::Refused { status, .. } => *status >= 500,
            Self::InTheClear
            | Self::Unknown
            | Self::Used
            | Self::Expired
            | Self::NotAHub(_)
            | Self::Malformed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn line() -> InviteLine {
        InviteLine {
            hub: BaseUrl::parse("https://hub.example/base/").unwrap(),
            role: InviteRole::Harness,
            name: "box-*".to_owned(),
            secret: SecretString::new("exi_s3cret"),
        }
    }

    #[test]
    fn line_survives_copying_with_blanks_around_it() {
        let text = line().expose();
        assert!(!text.contains(char::is_whitespace), "{text}");
        assert_eq!(format!(" {text}\n").parse(), Ok(line()));
        assert!(!format!("{:?}", line()).contains("s3cret"));
    }

    #[test]
    fn every_truncated_or_changed_line_is_recognized() {
        let text = line().expose();
        for end in PREFIX.len()..text.len() {
            let cut = text[..end].parse::<InviteLine>();
            assert_eq!(cut, Err(InviteLineError::Damaged), "{end}");
        }
        for at in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(changed.parse::<InviteLine>().is_err(), "{at}");
        }
        for other in ["", "exh_token", "https://hub.example"] {
            let refused = other.parse::<InviteLine>();
            assert_eq!(refused, Err(InviteLineError::NotAnInvite), "{other}");
        }
        let long = format!("{PREFIX}{}", "A".repeat(MAX_LINE_BYTES + 1));
        assert_eq!(long.parse::<InviteLine>(), Err(InviteLineError::Damaged));
    }

    #[tokio::test]
    async fn invite_is_not_sent_unencrypted_to_another_machine() {
        let mut line = line();
        line.hub = BaseUrl::parse("http://192.0.2.1:8765").unwrap();
        let http = HttpClient::without_tls().unwrap();
        let refused = line.redeem(&SecretString::new("claim"), &http).await;
        assert!(matches!(refused, Err(RedeemInviteError::InTheClear)));
    }

    #[test]
    fn refusals_are_told_apart() {
        let of = |status: u16, body: &str| {
            RedeemInviteError::of_reply(&HttpReply {
                status: StatusCode::from_u16(status).unwrap(),
                body: Bytes::copy_from_slice(body.as_bytes()),
            })
        };
        let error = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#);
        use RedeemInviteError as E;
        assert!(matches!(of(404, &error("invite_unknown")), E::Unknown));
        assert!(matches!(of(409, &error("invite_used")), E::Used));
        assert!(matches!(of(410, &error("invite_expired")), E::Expired));
        assert!(matches!(of(429, &error("too_many_requests")), E::Limited));
        assert!(matches!(of(404, "<html>"), E::NotAHub(404)));
        assert!(matches!(of(403, "<html>"), E::NotAHub(403)));
        assert!(matches!(
            of(503, &error("store_unavailable")),
            E::Refused { .. }
        ));
        assert!(of(503, "").is_transient() && !of(409, &error("invite_used")).is_transient());
    }
}
