//! A JetStream key-value bucket, with the few operations the store needs.
//! Invariant: reads ask the bucket's leader, never a replica that may lag, so that a record written
//! on one node is seen by the next read on any other.

use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    self,
    context::Context,
    kv::{self, UpdateErrorKind},
    stream::{self, DiscardPolicy, LastRawMessageErrorKind, StorageType},
};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};

use super::{
    config::{Prefix, Replicas},
    connection::{Connection, Link, NatsError, REQUEST, lost},
};
use crate::store::{StoreError, Timestamp};

/// What a bucket is made like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The name behind the prefix.
    pub(super) name: &'static str,
    /// What it is for, as the broker's tools show it.
    pub(super) description: &'static str,
    /// Records vanish this long after they were written. `None`: never.
    pub(super) max_age: Option<Duration>,
    /// All records together.
    pub(super) max_bytes: i64,
}

/// A bucket.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    connection: Connection,
    context: Context,
    config: stream::Config,
    store: kv::Store,
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// What is in it. `None`: nothing, or no longer.
    pub(super) value: Option<Bytes>,
    /// When that was written or deleted, by the broker's clock; 1970 if nothing is known of it.
    pub(super) at: Timestamp,
    /// Stands for the state that was read: a write that names it fails when there was another.
    pub(super) revision: Revision,
}

/// A state of a record; the default is that of one that never was. Revisions of one bucket grow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(super) struct Revision(u64);

/// Why a write did not happen.
#[derive(Debug)]
pub(super) enum WriteError {
    /// Somebody else wrote since the record was read.
    Raced,
    /// The bucket holds all it may.
    Full,
    /// The broker did not answer as it should. The write may have happened.
    Store(StoreError),
}

impl Bucket {
    /// Opens a bucket and makes it if it does not exist.
    ///
    /// # Errors
    /// [`NatsError::Bucket`].
    pub(super) async fn open(
        connection: &Connection,
        prefix: &Prefix,
        replicas: Replicas,
        shape: Shape,
    ) -> Result<Self, NatsError> {
        let mut context = jetstream::new(connection.client.clone());
        context.set_timeout(REQUEST);
        let bucket = format!("{}-{}", prefix.as_str(), shape.name);
        // As the key-value convention has it, so that the broker's own tools show the bucket. Made
        // by hand, because the library's way asks for account details that older brokers lack.
        let config = stream::Config {
            name: format!("KV_{bucket}"),
            description: Some(shape.description.to_owned()),
            subjects: vec![format!("$KV.{bucket}.>")],
            max_messages_per_subject: 1,
            max_age: shape.max_age.unwrap_or_default(),
            max_bytes: shape.max_bytes,
            max_message_size: MAX_VALUE,
            storage: StorageType::File,
            num_replicas: replicas.count(),
            discard: DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            ..stream::Config::default()
        };
        let opened = match make(&context, &config).await {
            Ok(()) => context.get_key_value(&bucket).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        let store = opened.map_err(|source| NatsError::Bucket { bucket, source })?;
        Ok(Self {
            connection: connection.clone(),
            context,
            config,
            store,
        })
    }

    /// Makes the bucket again if the broker lost it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.ask(make(&self.context, &self.config))
            .await?
            .map_err(StoreError::unavailable)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn read(&self, key: &str) -> Result<Slot, StoreError> {
        let subject = format!("{}{key}", self.store.prefix);
        let read = self.store.stream.get_last_raw_message_by_subject(&subject);
        let message = match self.ask(read).await? {
            Ok(message) => message,
            Err(error) => {
                return match error.kind() {
                    LastRawMessageErrorKind::NoMessageFound => Ok(Slot {
                        value: None,
                        at: Timestamp::default(),
                        revision: Revision::default(),
                    }),
                    LastRawMessageErrorKind::InvalidSubject
                    | LastRawMessageErrorKind::JetStream(_)
                    | LastRawMessageErrorKind::Other => Err(StoreError::unavailable(error)),
                };
            }
        };
        // Deleted records leave a marker behind, which says so in this header.
        let is_marker = message.headers.get(OPERATION).is_some();
        Ok(Slot {
            value: (!is_marker).then_some(message.payload),
            at: SystemTime::from(message.time).into(),
            revision: Revision(message.sequence),
        })
    }

    /// Writes a record if it is still as it was at `seen`.
    ///
    /// # Errors
    /// [`WriteError`].
    pub(super) async fn write(
        &self,
        key: &str,
        value: Vec<u8>,
        seen: Revision,
    ) -> Result<Revision, WriteError> {
        let write = self.store.update(key, value.into(), seen.0);
        let written = self.ask(write).await.map_err(WriteError::Store)?;
        written.map(Revision).map_err(write_error)
    }

    /// Writes a record over whatever there is.
    ///
    /// # Errors
    /// [`WriteError`], but never `Raced`.
    pub(super) async fn overwrite(
        &self,
        key: &str,
        value: Vec<u8>,
    ) -> Result<Revision, WriteError> {
        let write = self.store.put(key, value.into());
        let written = self.ask(write).await.map_err(WriteError::Store)?;
        written.map(Revision).map_err(|error| {
            if is_full(&error) {
                WriteError::Full
            } else {
                WriteError::Store(StoreError::unavailable(error))
            }
        })
    }

    /// Deletes a record if it is still as it was at `seen`. Of all who try, one succeeds.
    ///
    /// # Errors
    /// [`WriteError`].
    pub(super) async fn delete(&self, key: &str, seen: Revision) -> Result<(), WriteError> {
        let delete = self.store.purge_expect_revision(key, Some(seen.0));
        let deleted = self.ask(delete).await.map_err(WriteError::Store)?;
        deleted.map_err(write_error)
    }

    /// Takes a record out and leaves no marker of it, unless it was written after `seen`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn purge(&self, key: &str, seen: Revision) -> Result<(), StoreError> {
        let subject = format!("{}{key}", self.store.prefix);
        let purge = self.store.stream.purge();
        // The broker takes the first number that stays.
        let purge = purge.sequence(seen.0 + 1).filter(subject);
        let purged = self.ask(purge.into_future()).await?;
        purged.map_err(StoreError::unavailable)?;
        Ok(())
    }

    /// The keys that begin with `<family>.`, without that, in order. Some may be deleted records.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn keys(&self, family: &str) -> Result<Vec<String>, StoreError> {
        let begin = format!("{}{family}.", self.store.prefix);
        let list = async {
            let stream = &self.store.stream;
            let subjects = stream.info_with_subjects(format!("{begin}>")).await;
            let mut subjects = subjects.map_err(StoreError::unavailable)?;
            let mut keys = Vec::new();
            while let Some((subject, _)) =
                subjects.try_next().await.map_err(StoreError::unavailable)?
            {
                keys.extend(subject.strip_prefix(&begin).map(str::to_owned));
            }
            keys.sort_unstable();
            Ok(keys)
        };
        self.ask(list).await?
    }

    /// How many records there are, those deleted lately included.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn count(&self) -> Result<u64, StoreError> {
        let info = self.ask(self.store.stream.get_info()).await?;
        Ok(info.map_err(StoreError::unavailable)?.state.messages)
    }

    /// Asks the broker something. Without a connection the library would wait for one, and when it is
    /// lost, for the answer's time; a caller with a request to answer does not.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: what was asked for may have happened.
    async fn ask<T>(&self, question: impl Future<Output = T>) -> Result<T, StoreError> {
        let link = self.reachable()?;
        let mut watch = self.connection.watch();
        tokio::select! {
            biased;
            answer = question => Ok(answer),
            () = lost(&mut watch, link.losses) => Err(StoreError::unavailable(Disconnected)),
        }
    }

    /// The connection's state if it stands.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) fn reachable(&self) -> Result<Link, StoreError> {
        let link = self.connection.link();
        match link.is_up {
            true => Ok(link),
            false => Err(StoreError::unavailable(Disconnected)),
        }
    }
}

/// Host: there is no broker now.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to NATS is lost")]
struct Disconnected;

/// Makes a bucket unless it exists, with whatever settings: those of an older hub, or of an operator
/// who knows better.
async fn make(
    context: &Context,
    config: &stream::Config,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Err(error) = context.create_stream(config.clone()).await else {
        return Ok(());
    };
    match context.get_stream_no_info(&config.name).await {
        Ok(found) if found.get_info().await.is_ok() => Ok(()),
        Ok(_) | Err(_) => Err(error.into()),
    }
}

fn write_error(error: kv::UpdateError) -> WriteError {
    match error.kind() {
        UpdateErrorKind::WrongLastRevision => WriteError::Raced,
        UpdateErrorKind::Other if is_full(&error) => WriteError::Full,
        UpdateErrorKind::InvalidKey | UpdateErrorKind::TimedOut | UpdateErrorKind::Other => {
            WriteError::Store(StoreError::unavailable(error))
        }
    }
}

/// Whether the broker refused because the bucket's bytes are used up.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<jetstream::Error>() {
            return error.error_code() == jetstream::ErrorCode::STREAM_STORE_FAILED;
        }
        cause = error.source();
    }
    false
}

const OPERATION: &str = "KV-Operation";

/// No record is larger: a key with its names is below 4 KiB.
const MAX_VALUE: i32 = 64 * 1024;
