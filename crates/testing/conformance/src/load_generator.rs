//! Work of every kind, done over and over, to see what becomes of it while connections are cut.
//!
//! Every byte is compared. What may fail under a cut is said where it may; everything else must not.

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
use exec_core::log::{Follow, From, Pace};
use exec_env::{
    backend::StartError,
    command::{Command, Io, Stdin},
    environment::Environment,
    process::{EventStream, ExecProcess, ExecProcessEvent, Read},
};
use exec_wire::{
    fs::{ReadFile, WriteFile},
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::WriteStatus,
};
use futures_util::{StreamExt, future::join_all};
use tokio::{sync::watch, time::timeout};

/// Longest that a single step may take. Cut again and again, even recovery takes its time.
const STEP: Duration = Duration::from_secs(90);
/// Lines of one writer: some megabytes, as fast as it can.
const LINES: u64 = 400_000;

/// What the tasks share.
#[derive(Clone, Debug)]
pub struct Load {
    environment: Environment,
    over: Arc<AtomicBool>,
    started: Arc<AtomicU64>,
    /// Starts whose answer was cut off before the server had begun them, or might have.
    refused: Arc<AtomicU64>,
    /// Rounds of work that were done.
    rounds: Arc<watch::Sender<u64>>,
}

impl Load {
    /// Work that is done in an environment.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            over: Arc::default(),
            started: Arc::default(),
            refused: Arc::default(),
            rounds: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Waits until so many more rounds are done.
    pub async fn until_more(&self, rounds: u64) {
        let mut done = self.rounds.subscribe();
        let enough = *done.borrow_and_update() + rounds;
        // It ends with the load, which is here.
        drop(done.wait_for(|done| *done >= enough).await);
    }

    /// Does everything at once until `over`, each kind at least once; returns how many rounds were done.
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

    /// Sees that most starts succeeded.
    pub fn assert_mostly_started(&self) {
        assert!(
            self.refused() < self.started.load(Ordering::Relaxed),
            "{self:?}"
        );
    }

    /// How many starts were cut off.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a round; tells whether it was the last.
    fn finish_round(&self) -> bool {
        self.rounds.send_modify(|rounds| *rounds += 1);
        self.over.load(Ordering::Relaxed)
    }

    /// Starts a command. A start that was cut off is reported and left to the caller: here it is made
    /// again under another name.
    async fn start(&self, argv: &[&str], stdin: Stdin) -> Arc<dyn ExecProcess> {
        loop {
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            let id = ProcessId::new(&format!("p{number}")).unwrap();
            let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
            let command = Command {
                io: Io::Pipes { stdin },
                env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
                ..Command::new(id, argv, "file:///".parse().unwrap())
            };
            let start = self.environment.backend.start(command);
            match timeout(STEP, start).await.expect("a start is answered") {
                Ok(started) => return started.process,
                Err(StartError::Disconnected(_)) => self.refused.fetch_add(1, Ordering::Relaxed),
                Err(error) => panic!("start is refused: {error}"),
            };
        }
    }
}

/// Writers of megabytes, one after the other; what they wrote is compared byte by byte.
async fn writers(load: Load) {
    let expected = (1..=LINES).fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    });
    loop {
        let process = load
            .start(&["seq", "1", &LINES.to_string()], Stdin::Null)
            .await;
        let (output, code) = finish(&process, follow(&process)).await;
        assert_eq!(code, 0);
        compare(&output, expected.as_bytes());
        if load.finish_round() {
            return;
        }
    }
}

/// Lines that go to `cat` and come back, one at a time, as a person types them.
async fn echoes(load: Load) {
    for round in 0.. {
        let process = load.start(&["cat"], Stdin::Piped).await;
        let mut events = follow(&process);
        let (mut output, mut written) = (Vec::new(), Vec::new());
        for line in 0..200 {
            let line = format!("line {line} of {round}\n");
            written.extend_from_slice(line.as_bytes());
            let write = process.write(None, Bytes::from(line));
            let status = timeout(STEP, write).await.expect("a write is answered");
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
        let status = timeout(STEP, close).await.expect("a close is answered");
        assert_eq!(status, Ok(WriteStatus::Accepted));
        let (rest, code) = finish(&process, events).await;
        assert_eq!((rest.as_slice(), code), (&b""[..], 0));
        if load.finish_round() {
            return;
        }
    }
}

/// Commands that are over before their start is answered.
async fn short_commands(load: Load) {
    for round in 0.. {
        let script = format!("echo {round}; exit 7");
        let process = load.start(&["sh", "-c", &script], Stdin::Null).await;
        let (output, code) = finish(&process, follow(&process)).await;
        assert_eq!(code, 7);
        compare(&output, format!("{round}\n").as_bytes());
        if load.finish_round() {
            return;
        }
    }
}

/// A file that is read again and again.
async fn files(load: Load) {
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
        let read = timeout(STEP, read).await.expect("a read is answered");
        assert!(
            read.as_ref() == Ok(&content),
            "{:?}",
            read.map(|content| content.len())
        );
        // A change that is cut off may have happened or not; it is answered all the same.
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
        drop(timeout(STEP, write).await.expect("a write is answered"));
        if load.finish_round() {
            return;
        }
    }
}

fn follow(process: &Arc<dyn ExecProcess>) -> EventStream {
    process.follow(Follow {
        from: From::After(OutputSeq(0)),
        pace: Pace::Held,
    })
}

async fn next(process: &Arc<dyn ExecProcess>, events: &mut EventStream) -> ExecProcessEvent {
    let Ok(event) = timeout(STEP, events.next()).await else {
        let here = process.status();
        let read = Read {
            after: OutputSeq(here.next_seq.0 - 1),
            ..Read::default()
        };
        let there = timeout(STEP, process.read(read)).await;
        panic!(
            "no event of {} comes: {here:?}, {there:?} there",
            process.id()
        );
    };
    event.expect("events come until the close")
}

/// Everything up to the close.
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

/// Compares without printing megabytes.
fn compare(output: &[u8], expected: &[u8]) {
    let same = output.iter().zip(expected).take_while(|(a, b)| a == b);
    let same = same.count();
    assert!(
        output.len() == expected.len() && same == output.len(),
        "{} bytes instead of {}; different from byte {same} on",
        output.len(),
        expected.len()
    );
}

fn uri(path: &Path) -> PathUri {
    PathUri::from_native(path).unwrap()
}
