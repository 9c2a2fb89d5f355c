//! The audit log: who requested what, when, from where, and the outcome. One JSON object per line.
//! Invariant: it contains no secrets, and lost lines are counted in a later line.
//! Elsewhere: debug logs (`tracing`), metrics (`metrics`).

#[cfg(test)]
mod tests;

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use exec_transport::http::service::HttpPeer;
use serde::{Serialize, Serializer};
use tokio::sync::mpsc;

use crate::{
    principal::{Principal, PrincipalName},
    rate_limit::{RateRule, TokenBucket},
    store::{EnvironmentId, RegistrationId, Timestamp},
};

/// Lines that may wait for the disk.
const QUEUE: usize = 4096;
/// Rate limit for lines about refused unauthenticated requests. Anybody can cause them, so they
/// must neither fill the disk nor displace other lines.
const REFUSAL_RATE: RateRule = RateRule {
    burst: 1000,
    per_second: 20,
};

/// The audit log. Cheap to clone. Dropping the last clone flushes all lines.
#[derive(Clone, Debug)]
pub struct AuditLog(AuditTarget);

#[derive(Clone, Debug)]
enum AuditTarget {
    Tracing,
    File(Arc<AuditWriter>),
}

impl AuditLog {
    /// Writes lines to `tracing` with target `exec_hub::audit`.
    pub fn tracing() -> Self {
        Self(AuditTarget::Tracing)
    }

    /// Appends lines to a file, created with mode 0600. If log rotation moves the file away, a new
    /// one is created. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn file(path: &Path) -> Result<Self, AuditError> {
        let failed = |source| AuditError {
            path: path.to_owned(),
            source,
        };
        let sink = AuditFile::open(path).map_err(failed)?;
        AuditWriter::spawn(sink)
            .map(|writer| Self(AuditTarget::File(Arc::new(writer))))
            .map_err(failed)
    }

    /// Records an event without waiting. Events that find the queue full are counted, and the count
    /// is written. The same applies to unauthenticated refusals above the rate limit.
    pub fn record(&self, event: &AuditEvent) {
        let line = event.line();
        match &self.0 {
            AuditTarget::Tracing => tracing::info!(target: "exec_hub::audit", "{line}"),
            AuditTarget::File(writer) if is_unauthenticated_refusal(event) => {
                writer.push_refusal(line)
            }
            AuditTarget::File(writer) => writer.push(line),
        }
    }
}

fn is_unauthenticated_refusal(event: &AuditEvent) -> bool {
    event.principal.is_none() && matches!(event.outcome, AuditOutcome::Refused(_))
}

/// Host: the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open the audit log {path}")]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// Handle to the thread that writes the file.
struct AuditWriter {
    lines: Option<mpsc::Sender<String>>,
    lost: Arc<AtomicU64>,
    refusals: Mutex<TokenBucket>,
    thread: Option<JoinHandle<()>>,
}

impl AuditWriter {
    fn spawn(mut sink: AuditFile) -> io::Result<Self> {
        let (lines, receiver) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new()
            .name("hub-audit".to_owned())
            .spawn(move || write(&mut sink, receiver, &counted))?;
        Ok(Self {
            lines: Some(lines),
            lost,
            refusals: Mutex::default(),
            thread: Some(thread),
        })
    }

    fn push_refusal(&self, line: String) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = refusals.take(REFUSAL_RATE.burst, REFUSAL_RATE.interval(), Instant::now());
        drop(refusals);
        match allowed {
            Ok(()) => self.push(line),
            Err(_) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn push(&self, line: String) {
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for AuditWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditWriter(..)")
    }
}

fn write(sink: &mut AuditFile, mut lines: mpsc::Receiver<String>, lost: &AtomicU64) {
    let mut failing = false;
    let mut batch = Vec::new();
    // The last iteration, after all senders are gone, has no lines but may have to report losses.
    loop {
        let last = lines.blocking_recv_many(&mut batch, QUEUE) == 0;
        let count = batch.len() as u64;
        let mut text = String::new();
        for line in batch.drain(..) {
            text.push_str(&line);
            text.push('\n');
        }
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            text.push_str(&format!("{{\"lost\":{missing}}}\n"));
        }
        let written = if text.is_empty() {
            Ok(())
        } else {
            sink.append(text.as_bytes())
        };
        match written {
            Ok(()) => failing = false,
            Err(error) => {
                lost.fetch_add(missing + count, Ordering::Relaxed);
                // Logged once per failure period: logs may be why the disk is full.
                if !failing {
                    tracing::error!(%error, "failed to write the audit log");
                }
                failing = true;
            }
        }
        if last {
            return;
        }
    }
}

/// An audited event, and its line in the log.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEvent {
    /// Time of the event.
    #[serde(serialize_with = "rfc3339")]
    pub at: Timestamp,
    /// Requested action.
    pub action: AuditAction,
    /// Outcome of the request.
    #[serde(flatten)]
    pub outcome: AuditOutcome,
    /// Remote address.
    #[serde(serialize_with = "text")]
    pub peer: HttpPeer,
    /// Authenticated principal, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<PrincipalName>,
    /// What the principal authenticated with: an id, never a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Environment concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentId>,
    /// Registration concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration: Option<RegistrationId>,
    /// Principal of the harness that was validated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness: Option<PrincipalName>,
}

fn rfc3339<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.rfc3339())
}

fn text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl AuditEvent {
    /// Creates an event with outcome `Allowed`.
    pub fn new(at: Timestamp, action: AuditAction, peer: HttpPeer) -> Self {
        Self {
            at,
            action,
            outcome: AuditOutcome::Allowed,
            peer,
            principal: None,
            evidence: None,
            environment: None,
            registration: None,
            harness: None,
        }
    }

    /// Sets the authenticated principal.
    pub fn set_principal(&mut self, principal: &Principal) {
        self.principal = Some(principal.name.clone());
        self.evidence = Some(principal.evidence.to_string());
    }

    /// Returns the JSON line without line feed.
    fn line(&self) -> String {
        // All members are strings, so serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Requested action.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AuditAction {
    /// An executor registered an environment.
    Register,
    /// A harness asked for a connection to an environment.
    Connect,
    /// An executor validated a harness.
    Validate,
    /// An executor registered a direct environment.
    DirectRegister,
    /// A direct executor opened its socket.
    DirectExecutor,
    /// A harness opened a socket to a direct executor.
    DirectConnect,
    /// An invite was redeemed for a token.
    RedeemInvite,
    /// A principal listed environments.
    List,
    /// A principal removed an environment.
    Remove,
    /// An executor's relay socket opened.
    ExecutorSocket,
    /// A harness's relay socket opened.
    HarnessSocket,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "lowercase")]
pub enum AuditOutcome {
    /// The request was granted.
    Allowed,
    /// The request was refused with this code.
    Refused(&'static str),
}

#[derive(Debug)]
struct AuditFile {
    path: PathBuf,
    file: File,
    /// Device and inode of the open file.
    identity: (u64, u64),
}

impl AuditFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let current = fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if !current.is_ok_and(|current| current == self.identity) {
            *self = Self::open(&self.path)?;
        }
        self.file.write_all(text)
    }
}
