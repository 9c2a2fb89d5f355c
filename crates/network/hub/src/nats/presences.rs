//! Presence of executors: a record per environment, written by the node that has the websocket and
//! valid only while that node is alive.
//! Invariant: a presence returned by this node names a live node and, if it is this node, a
//! websocket that it has not given up.

mod held;

pub(super) use self::held::Lost;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::held::{Held, State};
use super::{
    bucket::{Bucket, Revision, Shape, WriteError},
    connection::Connection,
    nodes::Nodes,
    registry::{Full, Registry, json, parse},
    subjects::Subjects,
};
use crate::store::{
    AttachError, Attendance, ConnectionId, EnvironmentId, Presence, StoreError, Timestamp,
};

/// Bucket of presence records. Nodes renew those of their websockets; those of dead nodes expire.
pub(in crate::nats) const SHAPE: Shape = Shape {
    name: "presence",
    description: "where executors are connected",
    max_age: Some(Duration::from_secs(600)),
    max_bytes: 128 * 1024 * 1024,
};

/// Events about executors that nodes publish to each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::nats) enum News {
    /// An executor's websocket was attached.
    Attached {
        /// The presence record.
        presence: Presence,
        /// Its revision.
        revision: Revision,
    },
    /// A new registration replaced all others, or the environment was removed. The store has the
    /// current one, because events may be outdated.
    Registered {
        /// The environment.
        environment: EnvironmentId,
    },
}

/// Presence records of executors.
#[derive(Clone, Debug)]
pub(in crate::nats) struct Presences {
    bucket: Bucket,
    registry: Registry,
    nodes: Nodes,
    connection: Connection,
    subjects: Subjects,
    held: Arc<Mutex<Held>>,
    /// Notified when there is work for [`Self::tidy`].
    untidy: Arc<Notify>,
}

impl Presences {
    /// Creates the service on `bucket`.
    pub(in crate::nats) fn new(
        bucket: Bucket,
        registry: Registry,
        nodes: Nodes,
        connection: Connection,
        subjects: Subjects,
    ) -> Self {
        let (held, untidy) = Default::default();
        Self {
            bucket,
            registry,
            nodes,
            connection,
            subjects,
            held,
            untidy,
        }
    }

    /// Records a websocket of this node, replacing any other.
    ///
    /// # Errors
    /// Returns [`AttachError`]. Dropping the future leaves a record for a moment at most.
    pub(in crate::nats) async fn attach(&self, presence: Presence) -> Result<(), AttachError> {
        if !self.is_current(&presence).await? {
            return Err(AttachError::Superseded);
        }
        self.lock().begin(presence.clone());
        let unfinished = Unfinished {
            presences: self,
            presence: &presence,
        };
        let key = key(&presence.environment);
        let revision = match self.bucket.overwrite(&key, json(&presence)?).await {
            Ok(revision) => revision,
            Err(WriteError::Full | WriteError::Raced) => {
                return Err(StoreError::unavailable(Full).into());
            }
            Err(WriteError::Store(error)) => return Err(error.into()),
        };
        // A registration made since the first check shows up in this one; a later one finds the
        // presence written.
        if !self.is_current(&presence).await? || !self.lock().written(&presence, revision) {
            return Err(AttachError::Superseded);
        }
        unfinished.finish();
        self.tell(&News::Attached { presence, revision }).await;
        Ok(())
    }

    /// Deletes the record of this websocket, if it still exists.
    ///
    /// # Errors
    /// Returns [`StoreError`]; it is retried as soon as the broker is back.
    pub(in crate::nats) async fn detach(&self, presence: &Presence) -> Result<(), StoreError> {
        let unfinished = Unfinished {
            presences: self,
            presence,
        };
        self.lock().leave(presence);
        self.erase(presence).await?;
        unfinished.finish();
        Ok(())
    }

    /// Deletes the record of a removed environment, regardless of its writer.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(in crate::nats) async fn remove(
        &self,
        environment: &EnvironmentId,
    ) -> Result<(), StoreError> {
        let slot = self.bucket.read(&key(environment)).await?;
        match parse::<Presence>(&slot, "a presence")? {
            Some(presence) => self.erase(&presence).await,
            None => Ok(()),
        }
    }

    /// Returns the presence of an environment's executor and its revision.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(in crate::nats) async fn find(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<(Presence, Revision)>, StoreError> {
        let slot = self.bucket.read(&key(environment)).await?;
        let presence = parse::<Presence>(&slot, "a presence")?;
        Ok(presence
            .filter(|presence| self.is_there(presence))
            .map(|presence| (presence, slot.revision)))
    }

    /// Returns the presence of an environment's executor, or when it disconnected.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(in crate::nats) async fn attendance(
        &self,
        environment: &EnvironmentId,
        now: Timestamp,
    ) -> Result<Attendance, StoreError> {
        let slot = self.bucket.read(&key(environment)).await?;
        Ok(match parse::<Presence>(&slot, "a presence")? {
            Some(presence) if self.is_there(&presence) => Attendance {
                connected: Some(presence),
                ..Attendance::default()
            },
            // This node is about to delete the record.
            Some(presence) if presence.node == *self.nodes.own() => Attendance {
                connected: None,
                left_at: now,
            },
            // Its node has died.
            Some(presence) => Attendance {
                connected: None,
                left_at: match self.nodes.silence(&presence.node) {
                    Some(silence) => now.minus(silence),
                    None => slot.at,
                },
            },
            // The marker of a deleted record carries the time of deletion.
            None => Attendance {
                connected: None,
                left_at: slot.at,
            },
        })
    }

    fn is_there(&self, presence: &Presence) -> bool {
        if presence.node == *self.nodes.own() {
            self.lock().holds(presence)
        } else {
            self.nodes.is_alive(&presence.node)
        }
    }

    /// Handles a websocket recorded by another node. Returns the loss of this node, if any.
    pub(in crate::nats) fn handle_other(
        &self,
        theirs: &Presence,
        revision: Revision,
    ) -> Option<Lost> {
        let ours = self.lock().handle_other(theirs, revision)?;
        Some(Lost::ToConnection {
            environment: theirs.environment.clone(),
            ours: ours.connection,
            theirs: theirs.connection.clone(),
        })
    }

    /// Publishes an event to all nodes, including this one. A disconnected node misses it and
    /// catches up with [`Self::tidy`].
    pub(in crate::nats) async fn tell(&self, news: &News) {
        let Ok(news) = serde_json::to_vec(news) else {
            return;
        };
        if !self.connection.link().is_up {
            return;
        }
        let told = self
            .connection
            .client
            .publish(self.subjects.executors(), news.into())
            .await;
        if let Err(error) = told {
            tracing::warn!(%error, "failed to publish an executor event");
        }
    }

    /// Resolves when there is work for [`Self::tidy`].
    pub(in crate::nats) async fn untidy(&self) {
        self.untidy.notified().await;
    }

    /// Schedules [`Self::tidy`].
    pub(in crate::nats) fn look_again(&self) {
        self.untidy.notify_one();
    }

    /// Creates the bucket again if the broker lost it, renews the records of this node's
    /// websockets, deletes those of closed ones, and returns unnoticed losses. `connections` are
    /// the open websockets.
    ///
    /// # Errors
    /// Returns [`StoreError`]: nothing more can be done until the broker is back.
    pub(in crate::nats) async fn tidy(
        &self,
        connections: &HashSet<ConnectionId>,
    ) -> Result<Vec<Lost>, StoreError> {
        self.bucket.restore().await?;
        let held = {
            let mut held = self.lock();
            held.retain(connections);
            held.all()
        };
        let mut lost = Vec::new();
        for (presence, state) in held {
            match state {
                // The writing task handles it.
                State::Writing { .. } => {}
                State::Leaving => self.erase(&presence).await?,
                State::Written(revision) => lost.extend(self.renew(presence, revision).await?),
            }
        }
        Ok(lost)
    }

    async fn renew(
        &self,
        presence: Presence,
        revision: Revision,
    ) -> Result<Option<Lost>, StoreError> {
        let environment = presence.environment.clone();
        if !self.is_current(&presence).await? {
            self.lock().leave(&presence);
            self.erase(&presence).await?;
            return Ok(Some(Lost::ToRegistration {
                environment,
                ours: presence.connection,
            }));
        }
        let mut seen = revision;
        loop {
            match self
                .bucket
                .write(&key(&environment), json(&presence)?, seen)
                .await
            {
                Ok(revision) => {
                    if !self.lock().written(&presence, revision) {
                        // The websocket ended meanwhile.
                        self.erase(&presence).await?;
                    }
                    return Ok(None);
                }
                Err(WriteError::Raced) => {}
                Err(WriteError::Full) => return Err(StoreError::unavailable(Full)),
                Err(WriteError::Store(error)) => return Err(error),
            }
            let slot = self.bucket.read(&key(&environment)).await?;
            match parse::<Presence>(&slot, "a presence")? {
                Some(other) if other != presence => {
                    let lost = Lost::ToConnection {
                        environment,
                        ours: presence.connection.clone(),
                        theirs: other.connection,
                    };
                    return Ok(self.lock().forget(&presence).then_some(lost));
                }
                // The broker lost the record, or only the response to our last write.
                Some(_) | None if slot.revision != seen => seen = slot.revision,
                Some(_) | None => return Err(StoreError::unavailable(Full)),
            }
        }
    }

    async fn erase(&self, presence: &Presence) -> Result<(), StoreError> {
        let key = key(&presence.environment);
        let slot = self.bucket.read(&key).await?;
        if parse::<Presence>(&slot, "a presence")?.as_ref() == Some(presence) {
            match self.bucket.delete(&key, slot.revision).await {
                // Raced: another presence has replaced it.
                Ok(()) | Err(WriteError::Raced) => {}
                Err(WriteError::Full) => return Err(StoreError::unavailable(Full)),
                Err(WriteError::Store(error)) => return Err(error),
            }
        }
        self.lock().forget(presence);
        Ok(())
    }

    async fn is_current(&self, presence: &Presence) -> Result<bool, StoreError> {
        let current = self.registry.registration(&presence.environment).await?;
        Ok(current.is_some_and(|current| current.id == presence.registration))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A presence that may or may not be written. On drop, its websocket counts as closed.
struct Unfinished<'a> {
    presences: &'a Presences,
    presence: &'a Presence,
}

impl Unfinished<'_> {
    /// Completes without marking the websocket as closed.
    fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.presences.lock().leave(self.presence);
        self.presences.look_again();
    }
}

fn key(environment: &EnvironmentId) -> String {
    format!("environment.{environment}")
}
