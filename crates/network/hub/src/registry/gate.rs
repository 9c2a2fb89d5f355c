//! What every request passes: how often, and who.

use std::sync::Arc;

use exec_transport::http::site::Peer;
use http::HeaderMap;
use tokio::sync::Semaphore;

use super::{BodyBudget, Moment, Refusal};
use crate::{
    audit::{Audit, Event, Outcome},
    limits,
    principal::Principal,
    rate::{Asked, RateLimits},
    tokens::Authenticator,
};

/// Lets requests in and keeps the log of it.
#[derive(Debug)]
pub struct Gate {
    authenticator: Authenticator,
    rates: RateLimits,
    audit: Audit,
    /// A place for each request that is being finished.
    places: Arc<Semaphore>,
    bodies: BodyBudget,
}

impl Gate {
    /// Takes what it judges by.
    pub fn new(authenticator: Authenticator, rates: RateLimits, audit: Audit) -> Self {
        Self {
            authenticator,
            rates,
            audit,
            places: Arc::new(Semaphore::new(limits::REQUESTS)),
            bodies: BodyBudget::default(),
        }
    }

    /// The log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Who may come in.
    pub fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// What the bodies of all requests share.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Counts a request of an address.
    pub(crate) fn address(&self, peer: Peer, moment: Moment) -> Result<(), Refusal> {
        match peer {
            Peer::Network(address) => Ok(self.rates.address(address.ip(), moment.instant)?),
            // Accounts of this machine are let in by the operator, one by one.
            Peer::Account(_) => Ok(()),
        }
    }

    /// Finds out who it is, and counts it.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        asked: Asked,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        let principal = self.authenticate(headers, moment)?;
        self.count(asked, &principal, moment)?;
        Ok(principal)
    }

    /// Counts somebody who could not say who they are, where not all requests of an address are
    /// counted. Returns the answer: the refusal, or that there were too many of them.
    pub(crate) fn stranger(&self, refusal: Refusal, peer: Peer, moment: Moment) -> Refusal {
        self.address(peer, moment).err().unwrap_or(refusal)
    }

    /// Finds out who it is. Who fails is to be counted by the caller, unless that was done before.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        moment: Moment,
    ) -> Result<Principal, Refusal> {
        Ok(self.authenticator.authenticate(headers, moment.at)?)
    }

    /// Counts a request of a principal.
    pub(crate) fn count(
        &self,
        asked: Asked,
        principal: &Principal,
        moment: Moment,
    ) -> Result<(), Refusal> {
        Ok(self
            .rates
            .principal(asked, &principal.name, moment.instant)?)
    }

    /// Does something to its end, even if whoever asked for it hangs up: what the store was told to
    /// do happens in any case, so what follows from it must happen, too. Dropping the future before
    /// there is a place for it leaves it undone.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let done = tokio::spawn(async move {
            let result = work.await;
            drop(place);
            result
        });
        // It panicked, or the hub ends.
        done.await.unwrap_or_else(|_| Err(Refusal::unfinished()))
    }

    /// Resolves when nothing is left to be finished.
    pub(crate) async fn idle(&self) {
        let all = u32::try_from(limits::REQUESTS).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await);
    }

    /// Writes down what came of a request, and hands it on.
    pub(crate) fn conclude<T>(
        &self,
        mut event: Event,
        result: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if let Err(refusal) = &result {
            event.outcome = Outcome::Refused(refusal.hidden.unwrap_or(refusal.code));
        }
        self.audit.record(&event);
        result
    }
}
