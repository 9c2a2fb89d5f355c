//! Serves `/hub/v1/invites/redeem`: exchanges an invite for a lasting token.
//! Invariant: an invite yields its token to one claimant, on one or several nodes. The claimant may
//! repeat the request, because the response may have been lost.
//! Elsewhere: creating invites, and their tokens (`tokens`).

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use exec_registry::invite::{REDEEM_PATH, RedeemInviteRequest, RedeemInviteResponse};
use exec_transport::http::service::HttpPeer;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use sha2::{Digest, Sha256};

use crate::{
    audit::{AuditAction, AuditEvent},
    limits,
    principal::AuthEvidence,
    rate_limit::{RateLimitExceeded, TokenBuckets, subscriber_network},
    registry::{HttpRefusal, HubServices, IncomingBody, RequestBody, RequestTime, ok},
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
    pub(crate) async fn serve(
        &self,
        request: Request<impl IncomingBody>,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        if request.method() != Method::POST {
            return Err(HttpRefusal::method("POST"));
        }
        let mut event = AuditEvent::new(moment.at, AuditAction::RedeemInvite, peer);
        let gate = &self.services.gate;
        let body = async {
            self.count(peer, moment)?;
            let (parts, body) = request.into_parts();
            let body = RequestBody::read(&parts.headers, body, gate.bodies()).await?;
            body.parse()
        };
        let request = match body.await {
            Ok(request) => request,
            Err(refusal) => return gate.audit_result(event, Err(refusal)),
        };
        let service = self.clone();
        let redeem = async move {
            let redeemed = service.redeem(request, moment, &mut event).await;
            service.services.gate.audit_result(event, redeemed)
        };
        gate.run_to_completion(redeem).await
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
        if !self.services.store.redeem_invite(claim).await? {
            let message = "the invite has been used";
            return Err(HttpRefusal::new(
                StatusCode::CONFLICT,
                "invite_used",
                message,
            ));
        }
        Ok(ok(&RedeemInviteResponse {
            token: self.signer.token(&entry),
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
