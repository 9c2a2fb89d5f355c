//! Presence of executors: a record per environment, written by the node that has the websocket and
//! valid only while that node is alive.
//! Invariant: a presence returned by this node names a live node and, if it is this node, a
//! websocket that it has not given up.

mod own_presences;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::own_presences::{OwnPresences, PresenceState};
use super::{
    SubjectNames,
    bucket::{BucketConfig, KvBucket, RecordRevision, WriteError},
    connection::NatsConnection,
    nodes::ClusterNodes,
    registration_bucket::{RegistrationBucket, json, parse},
};
use crate::store::{
    AttachError, ConnectionId, EnvironmentId, Presence, PresenceRecord, StoreError, Timestamp,
};

/// Bucket of presence records. Nodes renew those of their websockets; those of dead nodes expire.
pub(super) const BUCKET: BucketConfig = BucketConfig {
    name: "presence",
    description: "where executors are connected",
    max_age: Some(Duration::from_secs(600)),
    max_bytes: 128 * 1024 * 1024,
};

/// Events about executors that nodes publish to each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClusterEvent {
    /// An executor's websocket was attached.
    Attached {
        /// The presence record.
        presence: Presence,
        /// Its revision.
        revision: RecordRevision,
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
pub(super) struct PresenceRecords {
    bucket: KvBucket,
    registry: RegistrationBucket,
    nodes: ClusterNodes,
    connection: NatsConnection,
    subjects: SubjectNames,
    own: Arc<Mutex<OwnPresences>>,
    /// Notified when there is work for [`Self::maintain`].
    maintenance_due: Arc<Notify>,
}

impl PresenceRecords {
    /// Creates the service on `bucket`.
    pub(super) fn new(
        bucket: KvBucket,
        registry: RegistrationBucket,
        nodes: ClusterNodes,
        connection: NatsConnection,
        subjects: SubjectNames,
    ) -> Self {
        let (own, maintenance_due) = Default::default();
        Self {
            bucket,
            registry,
            nodes,
            connection,
            subjects,
            own,
            maintenance_due,
        }
    }

    /// Records a websocket of this node, replacing any other.
    ///
    /// # Errors
    /// Returns [`AttachError`]. Dropping the future leaves a record for a moment at most.
    pub(super) async fn attach(&self, presence: Presence) -> Result<(), AttachError> {
        if !self.is_current(&presence).await? {
            return Err(AttachError::Superseded);
        }
        self.lock().begin_write(presence.clone());
        let unfinished = PresenceRollback {
            presences: self,
            presence: &presence,
        };
        let key = key(&presence.environment);
        let written = self.bucket.overwrite(&key, json(&presence)?).await;
        let revision = written.map_err(StoreError::from)?;
        // A registration made since the first check shows up in this one; a later one finds the
        // presence written.
        if !self.is_current(&presence).await? || !self.lock().finish_write(&presence, revision) {
            return Err(AttachError::Superseded);
        }
        unfinished.finish();
        self.publish(&ClusterEvent::Attached { presence, revision })
            .await;
        Ok(())
    }

    /// Deletes the record of this websocket, if it still exists.
    ///
    /// # Errors
    /// Returns [`StoreError`]; it is retried as soon as the broker is back.
    pub(super) async fn detach(&self, presence: &Presence) -> Result<(), StoreError> {
        let unfinished = PresenceRollback {
            presences: self,
            presence,
        };
        self.lock().mark_closed(presence);
        self.erase(presence).await?;
        unfinished.finish();
        Ok(())
    }

    /// Deletes the record of a removed environment, regardless of its writer.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn remove(&self, environment: &EnvironmentId) -> Result<(), StoreError> {
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
    pub(super) async fn find(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<(Presence, RecordRevision)>, StoreError> {
        let slot = self.bucket.read(&key(environment)).await?;
        let presence = parse::<Presence>(&slot, "a presence")?;
        Ok(presence
            .filter(|presence| self.is_valid(presence))
            .map(|presence| (presence, slot.revision)))
    }

    /// Returns the presence of an environment's executor, or when it disconnected.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn presence_record(
        &self,
        environment: &EnvironmentId,
        now: Timestamp,
    ) -> Result<PresenceRecord, StoreError> {
        let slot = self.bucket.read(&key(environment)).await?;
        Ok(match parse::<Presence>(&slot, "a presence")? {
            Some(presence) if self.is_valid(&presence) => PresenceRecord {
                connected: Some(presence),
                ..PresenceRecord::default()
            },
            // This node is about to delete the record.
            Some(presence) if presence.node == *self.nodes.own() => PresenceRecord {
                connected: None,
                left_at: now,
            },
            // Its node has died.
            Some(presence) => PresenceRecord {
                connected: None,
                left_at: match self.nodes.silence(&presence.node) {
                    Some(silence) => now.minus(silence),
                    None => slot.at,
                },
            },
            // The marker of a deleted record carries the time of deletion.
            None => PresenceRecord {
                connected: None,
                left_at: slot.at,
            },
        })
    }

    fn is_valid(&self, presence: &Presence) -> bool {
        if presence.node == *self.nodes.own() {
            self.lock().is_connected(presence)
        } else {
            self.nodes.is_alive(&presence.node)
        }
    }

    /// Handles a websocket recorded by another node. Returns the one that this node lost, if any.
    pub(super) fn handle_other(
        &self,
        theirs: &Presence,
        revision: RecordRevision,
    ) -> Option<Presence> {
        self.lock().handle_other(theirs, revision)
    }

    /// Publishes an event to all nodes, including this one. A disconnected node misses it and
    /// catches up with [`Self::maintain`].
    pub(super) async fn publish(&self, event: &ClusterEvent) {
        let Ok(event) = serde_json::to_vec(event) else {
            return;
        };
        if !self.connection.link().is_up {
            return;
        }
        let published = self
            .connection
            .client
            .publish(self.subjects.executors(), event.into())
            .await;
        if let Err(error) = published {
            tracing::warn!(%error, "failed to publish an executor event");
        }
    }

    /// Resolves when there is work for [`Self::maintain`].
    pub(super) async fn maintenance_due(&self) {
        self.maintenance_due.notified().await;
    }

    /// Schedules [`Self::maintain`].
    pub(super) fn schedule_maintenance(&self) {
        self.maintenance_due.notify_one();
    }

    /// Creates the bucket again if the broker lost it, renews the records of this node's
    /// websockets, deletes those of closed ones, and returns unnoticed losses. `connections` are
    /// the open websockets.
    ///
    /// # Errors
    /// Returns [`StoreError`]: nothing more can be done until the broker is back.
    pub(super) async fn maintain(
        &self,
        connections: &HashSet<ConnectionId>,
    ) -> Result<Vec<Presence>, StoreError> {
        self.bucket.restore().await?;
        let own = {
            let mut own = self.lock();
            own.retain(connections);
            own.all()
        };
        let mut lost = Vec::new();
        for (presence, state) in own {
            match state {
                // The writing task handles it.
                PresenceState::Writing { .. } => {}
                PresenceState::Leaving => self.erase(&presence).await?,
                PresenceState::Written(revision) => {
                    lost.extend(self.renew(presence, revision).await?)
                }
            }
        }
        Ok(lost)
    }

    async fn renew(
        &self,
        presence: Presence,
        revision: RecordRevision,
    ) -> Result<Option<Presence>, StoreError> {
        if !self.is_current(&presence).await? {
            self.lock().mark_closed(&presence);
            self.erase(&presence).await?;
            return Ok(Some(presence));
        }
        let key = key(&presence.environment);
        let mut expected = revision;
        loop {
            match self.bucket.write(&key, json(&presence)?, expected).await {
                Ok(revision) => {
                    if !self.lock().finish_write(&presence, revision) {
                        // The websocket ended meanwhile.
                        self.erase(&presence).await?;
                    }
                    return Ok(None);
                }
                Err(WriteError::Raced) => {}
                Err(error) => return Err(error.into()),
            }
            let slot = self.bucket.read(&key).await?;
            match parse::<Presence>(&slot, "a presence")? {
                Some(other) if other != presence => {
                    return Ok(self.lock().forget(&presence).then_some(presence));
                }
                // The broker lost the record, or only the response to our last write.
                Some(_) | None if slot.revision != expected => expected = slot.revision,
                Some(_) | None => return Err(WriteError::Full.into()),
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
                Err(error) => return Err(error.into()),
            }
        }
        self.lock().forget(presence);
        Ok(())
    }

    async fn is_current(&self, presence: &Presence) -> Result<bool, StoreError> {
        let current = self.registry.registration(&presence.environment).await?;
        Ok(current.is_some_and(|current| current.id == presence.registration))
    }

    fn lock(&self) -> MutexGuard<'_, OwnPresences> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A presence that may or may not be written. On drop, its websocket counts as closed.
struct PresenceRollback<'a> {
    presences: &'a PresenceRecords,
    presence: &'a Presence,
}

impl PresenceRollback<'_> {
    /// Completes without marking the websocket as closed.
    fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for PresenceRollback<'_> {
    fn drop(&mut self) {
        self.presences.lock().mark_closed(self.presence);
        self.presences.schedule_maintenance();
    }
}

fn key(environment: &EnvironmentId) -> String {
    format!("environment.{environment}")
}
