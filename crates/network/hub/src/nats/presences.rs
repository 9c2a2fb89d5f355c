//! Which executor is connected where: a record per environment, written by the node that holds the
//! socket and believed only as long as that node lives.
//! Invariant: a presence that this node answers with names a node that lives and, if it is this
//! node, a socket that it has not given up.

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

/// The bucket of presences. They are written anew by the nodes that hold the sockets; what a dead
/// node left behind vanishes.
pub(in crate::nats) const SHAPE: Shape = Shape {
    name: "presence",
    description: "where executors are connected",
    max_age: Some(Duration::from_secs(600)),
    max_bytes: 128 * 1024 * 1024,
};

/// What nodes tell each other about executors.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::nats) enum News {
    /// An executor's socket was connected.
    Attached {
        /// Where.
        presence: Presence,
        /// The state of its record.
        revision: Revision,
    },
    /// A registration took the place of all others, or the environment was removed. Which one is
    /// current the store knows: news may be overtaken.
    Registered {
        /// The environment.
        environment: EnvironmentId,
    },
}

/// Where executors are connected.
#[derive(Clone, Debug)]
pub(in crate::nats) struct Presences {
    bucket: Bucket,
    registry: Registry,
    nodes: Nodes,
    connection: Connection,
    subjects: Subjects,
    held: Arc<Mutex<Held>>,
    /// Something is left to be looked after.
    untidy: Arc<Notify>,
}

impl Presences {
    /// Keeps them in `bucket`.
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

    /// Writes down a socket of this node, over any other.
    ///
    /// # Errors
    /// [`AttachError`]. Dropping the future leaves a record at most for a moment.
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
        // A registration that was made since the first look shows in this one; a later one finds
        // the presence written.
        if !self.is_current(&presence).await? || !self.lock().written(&presence, revision) {
            return Err(AttachError::Superseded);
        }
        unfinished.finish();
        self.tell(&News::Attached { presence, revision }).await;
        Ok(())
    }

    /// Deletes the record of this very socket, if it is still there.
    ///
    /// # Errors
    /// [`StoreError`]; it is tried again as soon as the broker is back.
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

    /// Deletes the record of an environment that is removed, whoever wrote it.
    ///
    /// # Errors
    /// [`StoreError`].
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

    /// Where the executor of an environment is connected, and the state of that record.
    ///
    /// # Errors
    /// [`StoreError`].
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

    /// Where the executor of an environment is connected `now`, or when it left.
    ///
    /// # Errors
    /// [`StoreError`].
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
            // Its node died with it.
            Some(presence) => Attendance {
                connected: None,
                left_at: match self.nodes.silence(&presence.node) {
                    Some(silence) => now.minus(silence),
                    None => slot.at,
                },
            },
            // The marker of a deleted record is as old as its deletion.
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

    /// Another node wrote down a socket. Returns what this node lost by that.
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

    /// Tells all nodes, this one included. A node that is not connected misses it, and finds out by
    /// [`Self::tidy`] once it is.
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
            tracing::warn!(%error, "other nodes were not told of an executor");
        }
    }

    /// Resolves when something is left for [`Self::tidy`] to look after.
    pub(in crate::nats) async fn untidy(&self) {
        self.untidy.notified().await;
    }

    /// Has [`Self::tidy`] done soon.
    pub(in crate::nats) fn look_again(&self) {
        self.untidy.notify_one();
    }

    /// Makes the bucket again if the broker lost it, renews the records of this node's sockets,
    /// deletes those of sockets that are gone, and returns what was lost to others unnoticed.
    /// `connections` are the sockets that are there.
    ///
    /// # Errors
    /// [`StoreError`]: nothing more can be done until the broker is back.
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
                // Whoever writes it looks after it.
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
                        // Its socket ended meanwhile.
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
                // The broker lost it, or only the answer to our last write.
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
                // Raced: another presence took its place.
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

/// A presence that may be written or not. Dropped, it counts as one whose socket is gone.
struct Unfinished<'a> {
    presences: &'a Presences,
    presence: &'a Presence,
}

impl Unfinished<'_> {
    /// All is as it should be.
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
