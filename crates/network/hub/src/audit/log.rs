//! Where lines go: a file of their own, or among the other logs.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use tokio::sync::mpsc;

use super::{Event, Outcome, sink::Sink};
use crate::rate::{Buckets, Rule};

/// Lines that may wait for the disk.
const QUEUE: usize = 4096;
/// Lines about refused strangers: they need no token to make as many as they like, which must
/// neither fill the disk nor push out what others did.
const STRANGERS: Rule = Rule {
    burst: 1000,
    per_second: 20,
};

/// The audit log. Cheap to clone. Dropping the last clone waits until every line is written.
#[derive(Clone, Debug)]
pub struct Audit(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Tracing,
    File(Arc<Writer>),
}

impl Audit {
    /// Sends lines to `tracing`, target `exec_hub::audit`.
    pub fn tracing() -> Self {
        Self(Kind::Tracing)
    }

    /// Appends lines to a file, which is made for the owner's eyes if need be. When it is moved away,
    /// as log rotation does, a new one is made. Blocks.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn file(path: &Path) -> Result<Self, AuditError> {
        let failed = |source| AuditError {
            path: path.to_owned(),
            source,
        };
        let sink = Sink::open(path).map_err(failed)?;
        Writer::spawn(sink)
            .map(|writer| Self(Kind::File(Arc::new(writer))))
            .map_err(failed)
    }

    /// Writes a line. Never waits: what finds the queue full is counted, and the count is written.
    /// So are refusals of those who did not authenticate, beyond a number.
    pub fn record(&self, event: &Event) {
        let line = event.line();
        match &self.0 {
            Kind::Tracing => tracing::info!(target: "exec_hub::audit", "{line}"),
            Kind::File(writer) if is_stranger(event) => writer.push_stranger(line),
            Kind::File(writer) => writer.push(line),
        }
    }
}

fn is_stranger(event: &Event) -> bool {
    event.principal.is_none() && matches!(event.outcome, Outcome::Refused(_))
}

/// Host: the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {path}")]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// The thread that writes the file, and the way to it.
struct Writer {
    lines: Option<mpsc::Sender<String>>,
    lost: Arc<AtomicU64>,
    strangers: Mutex<Buckets<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn spawn(mut sink: Sink) -> io::Result<Self> {
        let (lines, waiting) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new()
            .name("hub-audit".to_owned())
            .spawn(move || write(&mut sink, waiting, &counted))?;
        Ok(Self {
            lines: Some(lines),
            lost,
            strangers: Mutex::new(Buckets::new(STRANGERS, 1)),
            thread: Some(thread),
        })
    }

    fn push_stranger(&self, line: String) {
        let mut strangers = self
            .strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let taken = strangers.take((), Instant::now());
        drop(strangers);
        match taken {
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

impl Drop for Writer {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; a panic was reported when it happened.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer(..)")
    }
}

fn write(sink: &mut Sink, mut lines: mpsc::Receiver<String>, lost: &AtomicU64) {
    let mut failing = false;
    let mut batch = Vec::new();
    // The last turn, when nobody can send any more, has no lines but may have losses to tell.
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
                // Once for each spell: the disk may be full because of logs.
                if !failing {
                    tracing::error!(%error, "the audit log cannot be written");
                }
                failing = true;
            }
        }
        if last {
            return;
        }
    }
}
