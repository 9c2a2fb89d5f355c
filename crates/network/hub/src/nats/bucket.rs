//! A JetStream key-value bucket, reduced to the operations that the store needs.
//! Invariant: reads query the bucket's leader, never a lagging replica, so that a record written on
//! one node is visible to the next read on any other.

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
    config::{NatsPrefix, ReplicaCount},
    connection::{NatsConnection, NatsError, NatsLinkState, REQUEST_TIMEOUT, connection_lost},
};
use crate::store::{StoreError, Timestamp};

/// Configuration of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketConfig {
    /// Name after the prefix.
    pub(super) name: &'static str,
    /// Description shown by the broker's tools.
    pub(super) description: &'static str,
    /// Lifetime of records. `None`: unlimited.
    pub(super) max_age: Option<Duration>,
    /// Total size of all records.
    pub(super) max_bytes: i64,
}

/// A bucket.
#[derive(Clone, Debug)]
pub(super) struct KvBucket {
    connection: NatsConnection,
    context: Context,
    config: stream::Config,
    store: kv::Store,
}

/// A record as read.
#[derive(Clone, Debug)]
pub(super) struct KvRecord {
    /// The value. `None`: never written, or deleted.
    pub(super) value: Option<Bytes>,
    /// Time of the write or deletion by the broker's clock; 1970 if unknown.
    pub(super) at: Timestamp,
    /// Revision that was read, for conditional writes.
    pub(super) revision: RecordRevision,
}

/// Revision of a record; the default means never written. Revisions of one bucket increase.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(super) struct RecordRevision(u64);

/// Why a write failed.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The record has changed since it was read.
    Raced,
    /// The bucket is full.
    Full,
    /// The broker failed. The write may have happened.
    Store(StoreError),
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Raced => Self::unavailable(RecordContention),
            WriteError::Full => Self::unavailable(BucketFull),
            WriteError::Store(error) => error,
        }
    }
}

/// Host: the bucket is full.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("NATS bucket is full")]
struct BucketFull;

/// Host: other nodes keep changing the same record.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many nodes are changing one record")]
struct RecordContention;

impl KvBucket {
    /// Opens a bucket, creating it if missing.
    ///
    /// # Errors
    /// Returns [`NatsError::Bucket`].
    pub(super) async fn open(
        connection: &NatsConnection,
        prefix: &NatsPrefix,
        replicas: ReplicaCount,
        shape: BucketConfig,
    ) -> Result<Self, NatsError> {
        let mut context = jetstream::new(connection.client.clone());
        context.set_timeout(REQUEST_TIMEOUT);
        let bucket = format!("{}-{}", prefix.as_str(), shape.name);
        // Follows the key-value convention, so that the broker's tools show the bucket. Created by
        // hand, because the library queries account details that older brokers lack.
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

    /// Creates the bucket again if the broker lost it.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.request(make(&self.context, &self.config))
            .await?
            .map_err(StoreError::unavailable)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn read(&self, key: &str) -> Result<KvRecord, StoreError> {
        let subject = format!("{}{key}", self.store.prefix);
        let read = self.store.stream.get_last_raw_message_by_subject(&subject);
        let message = match self.request(read).await? {
            Ok(message) => message,
            Err(error) => {
                return match error.kind() {
                    LastRawMessageErrorKind::NoMessageFound => Ok(KvRecord {
                        value: None,
                        at: Timestamp::default(),
                        revision: RecordRevision::default(),
                    }),
                    LastRawMessageErrorKind::InvalidSubject
                    | LastRawMessageErrorKind::JetStream(_)
                    | LastRawMessageErrorKind::Other => Err(StoreError::unavailable(error)),
                };
            }
        };
        // Deleted records leave a marker with this header.
        let is_marker = message.headers.get(OPERATION).is_some();
        Ok(KvRecord {
            value: (!is_marker).then_some(message.payload),
            at: SystemTime::from(message.time).into(),
            revision: RecordRevision(message.sequence),
        })
    }

    /// Writes a record if it is unchanged since `revision`.
    ///
    /// # Errors
    /// Returns [`WriteError`].
    pub(super) async fn write(
        &self,
        key: &str,
        value: Vec<u8>,
        revision: RecordRevision,
    ) -> Result<RecordRevision, WriteError> {
        let write = self.store.update(key, value.into(), revision.0);
        let written = self.request(write).await.map_err(WriteError::Store)?;
        written.map(RecordRevision).map_err(write_error)
    }

    /// Writes a record unconditionally.
    ///
    /// # Errors
    /// Returns [`WriteError`], but never `Raced`.
    pub(super) async fn overwrite(
        &self,
        key: &str,
        value: Vec<u8>,
    ) -> Result<RecordRevision, WriteError> {
        let write = self.store.put(key, value.into());
        let written = self.request(write).await.map_err(WriteError::Store)?;
        written.map(RecordRevision).map_err(|error| {
            if is_full(&error) {
                WriteError::Full
            } else {
                WriteError::Store(StoreError::unavailable(error))
            }
        })
    }

    /// Deletes a record if it is unchanged since `revision`. Of concurrent calls, one succeeds.
    ///
    /// # Errors
    /// Returns [`WriteError`].
    pub(super) async fn delete(
        &self,
        key: &str,
        revision: RecordRevision,
    ) -> Result<(), WriteError> {
        let delete = self.store.purge_expect_revision(key, Some(revision.0));
        let deleted = self.request(delete).await.map_err(WriteError::Store)?;
        deleted.map_err(write_error)
    }

    /// Removes a record without leaving a marker, unless it was written after `revision`.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn purge(
        &self,
        key: &str,
        revision: RecordRevision,
    ) -> Result<(), StoreError> {
        let subject = format!("{}{key}", self.store.prefix);
        let purge = self.store.stream.purge();
        // The broker expects the first number to keep.
        let purge = purge.sequence(revision.0 + 1).filter(subject);
        let purged = self.request(purge.into_future()).await?;
        purged.map_err(StoreError::unavailable)?;
        Ok(())
    }

    /// Returns the keys with prefix `<family>.`, without the prefix, in order. May include deleted
    /// records.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
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
        self.request(list).await?
    }

    /// Returns the number of records, including recently deleted ones.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn count(&self) -> Result<u64, StoreError> {
        let info = self.request(self.store.stream.get_info()).await?;
        Ok(info.map_err(StoreError::unavailable)?.state.messages)
    }

    /// Runs a request to the broker and fails fast. Without a connection the library would wait for
    /// one, and after a loss for the whole timeout.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`]: the request may have been executed.
    async fn request<T>(&self, operation: impl Future<Output = T>) -> Result<T, StoreError> {
        let link = self.reachable()?;
        let mut watch = self.connection.watch();
        tokio::select! {
            biased;
            answer = operation => Ok(answer),
            () = connection_lost(&mut watch, link.losses) => Err(StoreError::unavailable(NatsDisconnected)),
        }
    }

    /// Returns the connection's state if it is connected.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) fn reachable(&self) -> Result<NatsLinkState, StoreError> {
        let link = self.connection.link();
        match link.is_up {
            true => Ok(link),
            false => Err(StoreError::unavailable(NatsDisconnected)),
        }
    }
}

/// Host: the broker is not connected.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("connection to NATS is lost")]
struct NatsDisconnected;

/// Creates a bucket unless it exists with any settings, such as those of an older hub or of an
/// operator.
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

/// Returns whether the broker refused because the bucket is full.
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

/// Largest record. A key with its names takes less than 4 KiB.
const MAX_VALUE: i32 = 64 * 1024;
