//! Load generator for reconnect tests: runs work of every kind repeatedly while connections are
//! cut.
//!
//! Every byte is compared. Steps that may fail because of a cut are marked; all others must
//! succeed.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{
    environment::{Command, Environment, ProcessIo, StartError, StdinMode},
    process::{EventStream, ExecProcess, ExecProcessEvent, OutputReadRequest},
};
use exec_wire::{
    fs::{ReadFile, WriteFile},
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::WriteStatus,
};
use futures_util::{StreamExt, future::join_all};
use tokio::{sync::watch, time::timeout};

/// Timeout of a single step. Under repeated cuts even recovery takes time.
const STEP: Duration = Duration::from_secs(90);
/// Lines of one writer: a few megabytes, written as fast as possible.
const LINES: u64 = 400_000;

/// State shared by the load tasks.
#[derive(Clone, Debug)]
pub struct LoadGenerator {
    environment: Environment,
    over: Arc<AtomicBool>,
    started: Arc<AtomicU64>,
    /// Starts that failed because the connection was cut before the response.
    refused: Arc<AtomicU64>,
    /// Completed rounds.
    rounds: Arc<watch::Sender<u64>>,
}

impl LoadGenerator {
    /// Creates a load generator for an environment.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            over: Arc::default(),
            started: Arc::default(),
            refused: Arc::default(),
            rounds: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Waits for `rounds` more completed rounds.
    pub async fn until_more(&self, rounds: u64) {
        let mut done = self.rounds.subscribe();
        let enough = *done.borrow_and_update() + rounds;
        // The channel closes with the load, which is borrowed here.
        drop(done.wait_for(|done| *done >= enough).await);
    }

    /// Runs all kinds of work concurrently until `over`, each at least once, and returns the number
    /// of rounds.
    pub async fn run(&self, over: impl Future<Output = ()>) -> u64 {
        let over = async {
            over.await;
            self.over.store(true, Ordering::Relaxed);
        };
        let work = join_all([
            tokio::spawn(writers(self.clone())),
            tokio::spawn(writers(self.clone())),
            tokio::spawn(echoes(self.clone())),
            tokio::spawn(echoes(self.clone())),
            tokio::spawn(short_commands(self.clone())),
            tokio::spawn(files(self.clone())),
        ]);
        let (ended, ()) = tokio::join!(work, over);
        ended.into_iter().for_each(Result::unwrap);
        *self.rounds.borrow()
    }

    /// Asserts that most starts succeeded.
    pub fn assert_most_starts_succeeded(&self) {
        assert!(
            self.refused() < self.started.load(Ordering::Relaxed),
            "{self:?}"
        );
    }

    /// Returns the number of starts that were cut off.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a round and returns whether it was the last.
    fn finish_round(&self) -> bool {
        self.rounds.send_modify(|rounds| *rounds += 1);
        self.over.load(Ordering::Relaxed)
    }

    /// Starts a command. A start that was cut off reports an error to the caller; retry it here
    /// under another id.
    async fn start(&self, argv: &[&str], stdin: StdinMode) -> Arc<dyn ExecProcess> {
        loop {
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            let id = ProcessId::new(&format!("p{number}")).unwrap();
            let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
            let command = Command {
                io: ProcessIo::Pipes { stdin },
                env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
                ..Command::new(id, argv, "file:///".parse().unwrap())
            };
            let start = self.environment.backend.start(command);
            match timeout(STEP, start)
                .await
                .expect("start response timed out")
            {
                Ok(started) => return started.process,
                Err(StartError::Disconnected(_)) => self.refused.fetch_add(1, Ordering::Relaxed),
                Err(error) => panic!("start is refused: {error}"),
            };
        }
    }
}

/// Runs writers of several megabytes one after the other and compares their output.
async fn writers(load: LoadGenerator) {
    let expected = (1..=LINES).fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    });
    loop {
        let process = load
            .start(&["seq", "1", &LINES.to_string()], StdinMode::Null)
            .await;
        let (output, code) = finish(&process, follow(&process)).await;
        assert_eq!(code, 0);
        compare(&output, expected.as_bytes());
        if load.finish_round() {
            return;
        }
    }
}

/// Sends lines through `cat` one at a time, like interactive input.
async fn echoes(load: LoadGenerator) {
    for round in 0.. {
        let process = load.start(&["cat"], StdinMode::Piped).await;
        let mut events = follow(&process);
        let (mut output, mut written) = (Vec::new(), Vec::new());
        for line in 0..200 {
            let line = format!("line {line} of {round}\n");
            written.extend_from_slice(line.as_bytes());
            let write = process.write(None, Bytes::from(line));
            let status = timeout(STEP, write).await.expect("write response arrives");
            assert_eq!(status, Ok(WriteStatus::Accepted));
            while output.len() < written.len() {
                match next(&process, &mut events).await {
                    ExecProcessEvent::Output(chunk) => output.extend_from_slice(&chunk.data),
                    other @ (ExecProcessEvent::Exited(..)
                    | ExecProcessEvent::Closed(_)
                    | ExecProcessEvent::Failed(_)) => panic!("`cat` goes on: {other:?}"),
                }
            }
            compare(&output, &written);
        }
        let close = process.close_stdin(None);
        let status = timeout(STEP, close)
            .await
            .expect("close response timed out");
        assert_eq!(status, Ok(WriteStatus::Accepted));
        let (rest, code) = finish(&process, events).await;
        assert_eq!((rest.as_slice(), code), (&b""[..], 0));
        if load.finish_round() {
            return;
        }
    }
}

/// Runs commands that exit before their start is answered.
async fn short_commands(load: LoadGenerator) {
    for round in 0.. {
        let script = format!("echo {round}; exit 7");
        let process = load.start(&["sh", "-c", &script], StdinMode::Null).await;
        let (output, code) = finish(&process, follow(&process)).await;
        assert_eq!(code, 7);
        compare(&output, format!("{round}\n").as_bytes());
        if load.finish_round() {
            return;
        }
    }
}

/// Reads a file repeatedly.
async fn files(load: LoadGenerator) {
    let dir = tempfile::tempdir().unwrap();
    let path = uri(&dir.path().join("file"));
    let content = Bytes::from(vec![b'x'; 20_000]);
    std::fs::write(dir.path().join("file"), &content).unwrap();
    loop {
        let read = load.environment.files.read_file(ReadFile {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: None,
        });
        let read = timeout(STEP, read).await.expect("read response arrives");
        assert!(
            read.as_ref() == Ok(&content),
            "{:?}",
            read.map(|content| content.len())
        );
        // A change that is cut off may or may not have happened, but the call completes.
        let write = load.environment.files.write_file(
            WriteFile {
                path: path.clone(),
                data_base64: None,
                follow_symlinks: None,
                create_parents: false,
                atomic: true,
                mode: None,
                sandbox: None,
            },
            content.clone(),
        );
        drop(timeout(STEP, write).await.expect("write response arrives"));
        if load.finish_round() {
            return;
        }
    }
}

fn follow(process: &Arc<dyn ExecProcess>) -> EventStream {
    process.follow(FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    })
}

async fn next(process: &Arc<dyn ExecProcess>, events: &mut EventStream) -> ExecProcessEvent {
    let Ok(event) = timeout(STEP, events.next()).await else {
        let here = process.status();
        let read = OutputReadRequest {
            after: OutputSeq(here.next_seq.0 - 1),
            ..OutputReadRequest::default()
        };
        let there = timeout(STEP, process.read(read)).await;
        panic!(
            "no event of {}: {here:?} here, {there:?} on the server",
            process.id()
        );
    };
    event.expect("event stream ended before the close")
}

/// Collects all events until the close.
async fn finish(process: &Arc<dyn ExecProcess>, mut events: EventStream) -> (Vec<u8>, i32) {
    let (mut output, mut code, mut last) = (Vec::new(), None, 0);
    loop {
        let event = next(process, &mut events).await;
        if let ExecProcessEvent::Failed(error) = &event {
            panic!("process failed after event {last}: {error}");
        }
        let seq = event.seq().unwrap().0;
        assert!(last == 0 || seq == last + 1, "{seq} follows {last}");
        last = seq;
        match event {
            ExecProcessEvent::Output(chunk) => output.extend_from_slice(&chunk.data),
            ExecProcessEvent::Exited(_, exit) => code = Some(exit.code),
            ExecProcessEvent::Closed(_) => return (output, code.unwrap()),
            ExecProcessEvent::Failed(_) => {}
        }
    }
}

/// Compares bytes without printing megabytes on failure.
fn compare(output: &[u8], expected: &[u8]) {
    let same = output.iter().zip(expected).take_while(|(a, b)| a == b);
    let same = same.count();
    assert!(
        output.len() == expected.len() && same == output.len(),
        "{} bytes instead of {}; first difference at byte {same}",
        output.len(),
        expected.len()
    );
}

fn uri(path: &Path) -> PathUri {
    PathUri::from_native(path).unwrap()
}
