//! Websocket upgrades: `GET /direct/<environment>` for harnesses, `GET
//! /direct/<environment>/executor` for executors.

use std::{future::poll_fn, io, task::Poll, time::Duration};

use bytes::Bytes;
use exec_transport::{
    http::{service::HttpPeer, wants_websocket},
    link::{Link, MessageWriter},
    message_pump::{PumpEnd, pump_messages},
};
use http::{Method, StatusCode, request::Parts};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use super::{
    DirectService,
    slot_table::{ExecutorLookup, Handover, SlotError, SlotId},
};
use crate::{
    audit::{AuditAction, AuditEvent},
    principal::{Principal, PrincipalName},
    rate_limit::LimitedRequest,
    registry::{HttpRefusal, RequestTime},
    store::{EnvironmentId, RegistrationId},
};

const PREFIX: &str = "/direct/";
/// How long a harness waits for an executor to reconnect, which takes less than a second.
const EXECUTOR_TIMEOUT: Duration = Duration::from_secs(5);

/// An accepted websocket upgrade.
#[derive(Debug)]
pub(crate) enum DirectUpgrade {
    Executor {
        environment: EnvironmentId,
        registration: RegistrationId,
    },
    Harness(Handover),
}

impl DirectService {
    /// Returns whether a path belongs to direct websockets.
    pub fn answers(path: &str) -> bool {
        path.starts_with(PREFIX)
    }

    /// Accepts or refuses a websocket upgrade.
    pub(crate) async fn upgrade(
        &self,
        parts: &Parts,
        peer: HttpPeer,
        moment: RequestTime,
    ) -> Result<DirectUpgrade, HttpRefusal> {
        let rest = parts.uri.path().strip_prefix(PREFIX);
        let rest = rest.ok_or_else(HttpRefusal::not_found)?;
        let (environment, action) = match rest.split_once('/') {
            None => (rest, AuditAction::DirectConnect),
            Some((environment, "executor")) => (environment, AuditAction::DirectExecutor),
            Some(_) => return Err(HttpRefusal::not_found()),
        };
        let environment: EnvironmentId = environment.parse()?;
        if parts.method != Method::GET {
            return Err(HttpRefusal::method("GET"));
        }
        if !wants_websocket(&parts.headers) {
            return Err(HttpRefusal::upgrade_required());
        }
        let mut event = AuditEvent::new(moment.at, action, peer);
        event.environment = Some(environment.clone());
        let admission = if action == AuditAction::DirectExecutor {
            self.admit_executor(parts, peer, environment, moment, &mut event)
                .await
        } else {
            let gate = &self.services.gate;
            match gate.address(peer, moment) {
                Ok(()) => {
                    self.admit_harness(parts, environment, moment, &mut event)
                        .await
                }
                Err(refusal) => Err(refusal),
            }
        };
        self.services.gate.audit_result(event, admission)
    }

    /// 409 makes an executor register again; any other refusal except 5xx ends it.
    async fn admit_executor(
        &self,
        parts: &Parts,
        peer: HttpPeer,
        environment: EnvironmentId,
        moment: RequestTime,
        event: &mut AuditEvent,
    ) -> Result<DirectUpgrade, HttpRefusal> {
        // Rate limited only on failure, because executors treat most refusals as final.
        let principal = self
            .authenticate_upgrade(parts, moment)
            .map_err(|refusal| self.services.gate.limit_failure(refusal, peer, moment))?;
        event.set_principal(&principal);
        let query = parts.uri.query().unwrap_or_default();
        let registration = query.strip_prefix("registration=").unwrap_or_default();
        let owner = self.services.store.owner(&environment).await?;
        let table = self.table();
        let entry = table
            .check(&environment, registration)
            .map_err(SlotError::into_refusal)?;
        if !principal.may_register(&environment, &entry.owner) {
            return Err(HttpRefusal::forbidden("this environment is not yours"));
        }
        // The environment was removed meanwhile, perhaps on another node: the next registrant owns
        // it.
        if owner.as_ref() != Some(&entry.owner) {
            return Err(SlotError::Unknown.into_refusal());
        }
        event.registration = Some(entry.registration.clone());
        Ok(DirectUpgrade::Executor {
            registration: entry.registration.clone(),
            environment,
        })
    }

    async fn admit_harness(
        &self,
        parts: &Parts,
        environment: EnvironmentId,
        moment: RequestTime,
        event: &mut AuditEvent,
    ) -> Result<DirectUpgrade, HttpRefusal> {
        let principal = self.authenticate_upgrade(parts, moment)?;
        event.set_principal(&principal);
        self.services
            .gate
            .count(LimitedRequest::Direct, &principal, moment)?;
        let owner = match self.services.store.owner(&environment).await? {
            Some(owner) if principal.may_connect(&environment, &owner) => owner,
            _ if !principal.may_wait_for(&environment) => {
                return Err(HttpRefusal::forbidden(
                    "you may not connect to this environment",
                ));
            }
            None => return Err(HttpRefusal::unknown_environment()),
            Some(_) => return Err(HttpRefusal::unknown_environment().with_audit_code("forbidden")),
        };
        let handover = self
            .wait_for_executor(&environment, &owner, &principal)
            .await?;
        Ok(DirectUpgrade::Harness(handover))
    }

    /// Returns the waiting executor, or the next one that connects.
    ///
    /// A new connection of the same principal replaces its old one, which may be dead without the
    /// hub knowing yet.
    async fn wait_for_executor(
        &self,
        environment: &EnvironmentId,
        owner: &PrincipalName,
        principal: &Principal,
    ) -> Result<Handover, HttpRefusal> {
        let deadline = Instant::now() + EXECUTOR_TIMEOUT;
        let mut arrivals = self.arrivals.subscribe();
        let mut may_evict = true;
        loop {
            arrivals.mark_unchanged();
            let found = self.table().find(environment, owner, &principal.name);
            match found {
                ExecutorLookup::Executor(handover) => return Ok(handover),
                ExecutorLookup::Replaceable(stop) if may_evict => {
                    stop.notify_one();
                    may_evict = false;
                }
                ExecutorLookup::Busy => {
                    let message = "another harness uses this environment";
                    return Err(HttpRefusal::new(
                        StatusCode::CONFLICT,
                        "environment_busy",
                        message,
                    ));
                }
                ExecutorLookup::Replaceable(_) | ExecutorLookup::NotReady => {}
            }
            let arrived = timeout_at(deadline, arrivals.changed()).await;
            if !matches!(arrived, Ok(Ok(()))) {
                return Err(HttpRefusal::offline());
            }
        }
    }
}

impl SlotError {
    fn into_refusal(self) -> HttpRefusal {
        match self {
            Self::Superseded => {
                let message = "another executor has taken over this environment";
                HttpRefusal::new(StatusCode::GONE, "registration_superseded", message)
            }
            Self::Unknown => {
                let message = "this registration is not known; register again";
                HttpRefusal::new(StatusCode::CONFLICT, "registration_unknown", message)
            }
        }
    }
}

impl DirectService {
    /// Serves a websocket until it ends. Dropping the future closes it and its peer.
    pub(crate) async fn serve(&self, upgrade: DirectUpgrade, mut link: Link) {
        match upgrade {
            DirectUpgrade::Harness(handover) => {
                // The executor's task joins the two, unless it has ended meanwhile.
                if let Err(mut link) = handover.send(link) {
                    close(&mut *link.writer).await;
                }
            }
            DirectUpgrade::Executor {
                environment,
                registration,
            } => {
                let attached = self.table().attach(&environment, &registration);
                if let Some((id, stop)) = attached {
                    let guard = SlotGuard {
                        direct: self,
                        environment,
                        id,
                    };
                    tokio::select! {
                        () = guard.serve(&mut link) => {}
                        () = stop.notified() => {}
                    }
                }
                close(&mut *link.writer).await;
            }
        }
    }
}

/// An attached executor websocket, detached on drop.
struct SlotGuard<'a> {
    direct: &'a DirectService,
    environment: EnvironmentId,
    id: SlotId,
}

impl SlotGuard<'_> {
    /// Waits for a harness and joins it, once.
    async fn serve(&self, link: &mut Link) {
        loop {
            let (handover, mut harness) = oneshot::channel();
            if !self
                .direct
                .table()
                .wait_for_harness(&self.environment, self.id, handover)
            {
                return;
            }
            self.direct.notify_arrival();
            tokio::select! {
                arrived = &mut harness => if let Ok(mut harness) = arrived {
                    self.direct.table().join(&self.environment, self.id);
                    self.direct.notify_arrival();
                    join_links(link, &mut harness).await;
                    return close(&mut *harness.writer).await;
                },
                () = wait_while_idle(link) => return,
            }
            // The reserved harness did not arrive: its connection failed during the upgrade.
        }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.direct.table().detach(&self.environment, self.id);
    }
}

/// Keeps an idle websocket alive until it ends. Returns if the executor sends a message before any
/// request.
async fn wait_while_idle(link: &mut Link) {
    loop {
        let wants_flush = poll_fn(|cx| {
            if link.reader.poll_message(cx).is_ready() {
                return Poll::Ready(false);
            }
            link.writer.poll_keepalive(cx).map(|()| true)
        });
        if !wants_flush.await || flush(&mut *link.writer).await.is_err() {
            return;
        }
    }
}

/// Write timeout without progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Forwards messages both ways until one side ends, fails, or sends a binary message.
///
/// Messages are buffered whole, so a pair uses memory for the largest message each way. A slow
/// reader applies backpressure to the other side.
async fn join_links(one: &mut Link, two: &mut Link) {
    // Binary messages require both ends to negotiate on the same websocket, so they are not
    // forwarded.
    let text = |message: &Bytes| str::from_utf8(message).map(|_| true);
    let limit = Some(WRITE_TIMEOUT);
    let (end, writer) = tokio::select! {
        end = pump_messages(&mut *one.reader, &mut *two.writer, limit, text) => (end, &mut two.writer),
        end = pump_messages(&mut *two.reader, &mut *one.writer, limit, text) => (end, &mut one.writer),
    };
    if !matches!(end, PumpEnd::Write(_)) {
        // A failure does not matter: the connection is closed either way.
        drop(flush(&mut **writer).await);
    }
}

/// Flushes, with a timeout that restarts whenever bytes were written.
async fn flush(writer: &mut dyn MessageWriter) -> io::Result<()> {
    loop {
        let before = writer.buffered();
        match timeout(WRITE_TIMEOUT, writer.flush()).await {
            Ok(flushed) => return flushed,
            Err(_) if writer.buffered() < before => {}
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Closes the websocket within a time limit.
async fn close(writer: &mut dyn MessageWriter) {
    // The result does not matter: the connection is dropped either way.
    drop(timeout(CLOSE_TIMEOUT, writer.close()).await);
}
