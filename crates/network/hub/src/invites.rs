//! Serves `/hub/v1/invites/redeem`: exchanges an invite for a lasting token.
//! Invariant: an invite yields its token to one claimant, on one or several nodes. The claimant may
//! repeat the request, because the response may have been lost.
//! Elsewhere: creating invites, and their tokens (`tokens`).

#[cfg(test)]
mod tests;

use std::{
    error::Error,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use exec_registry::invite::{REDEEM_PATH, RedeemInviteRequest, RedeemInviteResponse};
use exec_transport::http::service::HttpPeer;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body;
use sha2::{Digest, Sha256};

use crate::{
    audit::{AuditAction, AuditEvent},
    limits,
    principal::AuthEvidence,
    rate_limit::{RateLimitExceeded, TokenBuckets, subscriber_network},
    registry::{HttpRefusal, HubServices, RequestBody, RequestTime, ok},
    store::InviteClaim,
    tokens::{InviteTokenSigner, TokenEntry},
};

/// Handler of `POST /hub/v1/invites/redeem`.
#[derive(Clone, Debug)]
pub struct InviteService {
    services: HubServices,
    signer: InviteTokenSigner,
    attempts: Arc<Mutex<TokenBuckets<IpAddr>>>,
}

impl InviteService {
    /// Creates the handler.
    pub fn new(services: HubServices, signer: InviteTokenSigner) -> Self {
        let attempts = TokenBuckets::new(limits::INVITE_ATTEMPTS, limits::INVITE_ADDRESSES);
        Self {
            services,
            signer,
            attempts: Arc::new(Mutex::new(attempts)),
        }
    }

    /// Returns whether this handler serves a path.
    pub fn answers(path: &str) -> bool {
        path == REDEEM_PATH
    }

    /// Serves a request.
    pub async fn serve<B>(&self, request: Request<B>, peer: HttpPeer) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve_at(request, peer, RequestTime::now()).await
    }

    /// Like [`Self::serve`], at a given time.
    async fn serve_at<B>(
        &self,
        request: Request<B>,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        if request.method() != Method::POST {
            return HttpRefusal::method("POST").into_response();
        }
        let event = AuditEvent::new(moment.at, AuditAction::RedeemInvite, peer);
        let gate = &self.services.gate;
        let body = async {
            self.count(peer, moment)?;
            let (parts, body) = request.into_parts();
            let body = RequestBody::read(&parts.headers, body, gate.bodies()).await?;
            body.parse()
        };
        let redeemed = match body.await {
            Ok(request) => {
                let service = self.clone();
                let redeem = async move { service.redeem(request, moment, event).await };
                gate.run_to_completion(redeem).await
            }
            Err(refusal) => gate.audit_result(event, Err(refusal)),
        };
        redeemed.unwrap_or_else(HttpRefusal::into_response)
    }

    /// Applies the rate limit of an address.
    fn count(&self, peer: HttpPeer, moment: RequestTime) -> Result<(), HttpRefusal> {
        self.services.gate.address(peer, moment)?;
        let HttpPeer::Network(address) = peer else {
            return Ok(());
        };
        let network = subscriber_network(address.ip());
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = attempts.take(network, moment.instant);
        counted.map_err(|retry_after| RateLimitExceeded { retry_after }.into())
    }

    async fn redeem(
        &self,
        request: RedeemInviteRequest,
        moment: RequestTime,
        mut event: AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let redeemed = self.redeem_once(request, moment, &mut event).await;
        self.services.gate.audit_result(event, redeemed)
    }

    async fn redeem_once(
        &self,
        request: RedeemInviteRequest,
        moment: RequestTime,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let claim = request.claim.expose();
        if !CLAIM_BYTES.contains(&claim.len()) {
            return Err(HttpRefusal::invalid("claim must have 16 to 128 bytes"));
        }
        let invite = request.invite.expose();
        let entry = self.find(invite).await.ok_or_else(|| {
            let message = "this hub does not know the invite";
            HttpRefusal::new(StatusCode::NOT_FOUND, "invite_unknown", message)
        })?;
        event.principal = Some(entry.principal.clone());
        event.evidence = Some(AuthEvidence::Token(entry.id.to_string()).to_string());
        let expires_at = entry.invite_expires_at.unwrap_or_default();
        if expires_at <= moment.at {
            let message = format!("the invite expired at {}", expires_at.rfc3339());
            return Err(HttpRefusal::new(
                StatusCode::GONE,
                "invite_expired",
                message,
            ));
        }
        let claim = InviteClaim {
            invite: domain_hash(b"exec-hub/invite/v1\0", invite),
            claimant: domain_hash(b"exec-hub/claimant/v1\0", claim),
            expires_at,
            at: moment.at,
        };
        let redeemed = self.services.store.redeem_invite(claim).await;
        if !redeemed.map_err(|error| HttpRefusal::store(&error))? {
            let message = "the invite has been used";
            return Err(HttpRefusal::new(
                StatusCode::CONFLICT,
                "invite_used",
                message,
            ));
        }
        let token = self.signer.token(&entry);
        Ok(ok(&RedeemInviteResponse {
            token: exec_registry::api::SecretString::new(token.expose()),
            roles: entry.roles.iter().map(|role| role.to_string()).collect(),
            environments: entry.environments.globs().to_vec(),
        }))
    }
}

impl InviteService {
    /// Finds an invite, which may have been created just now.
    async fn find(&self, invite: &str) -> Option<Arc<TokenEntry>> {
        let tokens = self.services.gate.authenticator().tokens();
        if let Some(entry) = tokens.find_invite(invite) {
            return Some(entry);
        }
        let changed = tokens.clone();
        let reload = tokio::task::spawn_blocking(move || changed.reload_if_changed());
        // A reload that panicked has changed nothing.
        drop(reload.await);
        tokens.find_invite(invite)
    }
}

/// Hashes a secret for the store. The domain makes this hash differ from the one in the token file:
/// the token of an invite is derived from that one, so a shared store must not contain it.
fn domain_hash(domain: &[u8], secret: &str) -> [u8; 32] {
    let hash = Sha256::new().chain_update(domain);
    hash.chain_update(secret).finalize().into()
}

/// Length of a claim: enough to be unguessable, and bounded.
const CLAIM_BYTES: std::ops::RangeInclusive<usize> = 16..=128;
