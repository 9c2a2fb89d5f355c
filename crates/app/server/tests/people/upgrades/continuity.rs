//! Tests of what survives an upgrade.

use std::{
    collections::VecDeque,
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use exec_server::{
    BackpressureMode, ExecProcess, ExecProcessEvent, ExecServerClient, FollowFrom, FollowOptions,
    ProcessIo, RemoteExecServerConnectArgs, TerminalSize, WaitUntil,
    protocol::{process::ListProcesses, server::ReadServerStatus},
};
use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::{BEFORE_FIRST, UpgradableServer, copy_of_product, start, start_with};
use crate::test_user::{TestUser, within_timeout};

/// Writes numbered lines as fast as it can until a file exists, and then their count.
const WRITER: &str = "
import os, sys
n = 0
while not os.path.exists(sys.argv[1]):
    sys.stdout.write(''.join('%09d\\n' % i for i in range(n, n + 4096)))
    n += 4096
sys.stdout.write('end %d\\n' % n)
sys.stdout.flush()
sys.exit(7)
";

/// Rounds of the long test: more by hand.
fn rounds() -> usize {
    let rounds = std::env::var("EXEC_SERVER_TEST_UPGRADES");
    rounds.map_or(5, |rounds| rounds.parse().unwrap())
}

/// Programs to alternate between: others by hand, for example of another version.
fn programs(user: &TestUser) -> Vec<PathBuf> {
    match std::env::var_os("EXEC_SERVER_TEST_PROGRAMS") {
        Some(paths) => std::env::split_paths(&paths).collect(),
        None => vec![copy_of_product(user, "one"), copy_of_product(user, "two")],
    }
}

/// Checks the output of the writer, and that nothing is lost or repeated.
#[derive(Default)]
struct LineChecker {
    next: u64,
    line: Vec<u8>,
    ended: bool,
}

impl LineChecker {
    fn check(&mut self, data: &[u8]) {
        for &byte in data {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    let line = str::from_utf8(&line).unwrap();
                    assert!(!self.ended, "{line:?} after the end");
                    match line.strip_prefix("end ") {
                        Some(count) => {
                            assert_eq!(count.parse(), Ok(self.next));
                            self.ended = true;
                        }
                        None => {
                            assert_eq!(line.parse(), Ok(self.next), "{line:?}");
                            self.next += 1;
                        }
                    }
                }
                b'\r' => {}
                byte => self.line.push(byte),
            }
        }
    }
}

/// Follows a writer to its end, and returns how many lines it wrote.
fn follow_writer(process: Arc<dyn ExecProcess>, lines: Arc<AtomicU64>) -> JoinHandle<i32> {
    let mut events = process.follow(FollowOptions {
        start: FollowFrom::After(BEFORE_FIRST),
        backpressure: BackpressureMode::Pause,
    });
    tokio::spawn(async move {
        let _process = process;
        let (mut checker, mut code, mut last) = (LineChecker::default(), None, BEFORE_FIRST);
        while let Some(event) = events.next().await {
            if let Some(seq) = event.seq() {
                assert_eq!(seq, last.next());
                last = seq;
            }
            match event {
                ExecProcessEvent::Output(chunk) => {
                    checker.check(&chunk.data);
                    lines.store(checker.next, Ordering::Relaxed);
                }
                ExecProcessEvent::Exited(_, exit) => code = Some(exit.code),
                ExecProcessEvent::Closed(_) => break,
                ExecProcessEvent::Failed(error) => panic!("{error}"),
            }
        }
        assert!(checker.ended, "the output ends after {}", checker.next);
        code.unwrap()
    })
}

/// Writes lines to `cat` and waits for each echo. Returns the times of the echoes.
fn echo(
    process: Arc<dyn ExecProcess>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<Vec<(Instant, Duration)>> {
    let mut events = process.follow(FollowOptions {
        start: FollowFrom::After(BEFORE_FIRST),
        backpressure: BackpressureMode::Pause,
    });
    tokio::spawn(async move {
        let (mut times, mut read) = (Vec::new(), VecDeque::new());
        while !stop.load(Ordering::Relaxed) {
            let line = format!("line {}\n", times.len());
            let written = Instant::now();
            let write = process.write(None, line.clone().into());
            within_timeout(write).await.unwrap();
            while read.len() < line.len() {
                match within_timeout(events.next()).await.unwrap() {
                    ExecProcessEvent::Output(chunk) => read.extend(chunk.data),
                    other @ (ExecProcessEvent::Exited(..)
                    | ExecProcessEvent::Closed(_)
                    | ExecProcessEvent::Failed(_)) => panic!("{other:?}"),
                }
            }
            let echoed: Vec<u8> = read.drain(..).collect();
            assert_eq!(str::from_utf8(&echoed), Ok(&*line));
            times.push((written, written.elapsed()));
        }
        within_timeout(process.close_stdin(None)).await.unwrap();
        let status = within_timeout(process.wait(WaitUntil::Exited, None))
            .await
            .unwrap();
        assert_eq!(status.exit.unwrap().code, 0);
        times
    })
}

/// Opens connections, one after the other, and makes a request on each.
fn connect_continuously(url: String, stop: Arc<AtomicBool>) -> JoinHandle<Vec<Duration>> {
    tokio::spawn(async move {
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let arguments = RemoteExecServerConnectArgs::new(&*url, "visitor");
            let connecting = ExecServerClient::connect_websocket(arguments);
            let client = within_timeout(connecting).await;
            let client =
                client.unwrap_or_else(|error| panic!("connection {}: {error}", times.len()));
            let request = within_timeout(client.call(ReadServerStatus {})).await;
            request.unwrap_or_else(|error| panic!("request {}: {error}", times.len()));
            times.push(begun.elapsed());
        }
        times
    })
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent).div_ceil(100).max(1) - 1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_and_clients_continue_through_upgrades() {
    let user = TestUser::new();
    let programs = programs(&user);
    let mut server = UpgradableServer::start(&user).await;
    let client = server.connect().await;
    let stop_file = user.work().join("stop");
    let writer = ["python3", "-c", WRITER, stop_file.to_str().unwrap()];
    let (lines, terminal_lines) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let on_pipes = start(&client, "on-pipes", &writer).await;
    let on_pipes = follow_writer(on_pipes.process, Arc::clone(&lines));
    let terminal = ProcessIo::Terminal(TerminalSize { rows: 24, cols: 80 });
    let on_terminal = start_with(&client, "on-terminal", &writer, terminal).await;
    let on_terminal = follow_writer(on_terminal.process, Arc::clone(&terminal_lines));
    let followed = [on_pipes, on_terminal];
    let cat = start(&client, "cat", &["cat"]).await;
    let pids = running(&client).await;
    assert_eq!(pids.len(), 3);

    let stop = Arc::new(AtomicBool::new(false));
    let echoed = echo(Arc::clone(&cat.process), Arc::clone(&stop));
    let visitors = connect_continuously(server.url.clone(), Arc::clone(&stop));
    let mut upgrades = Vec::new();
    for round in 0..rounds() {
        let progress = [&lines, &terminal_lines].map(|lines| lines.load(Ordering::Relaxed));
        let begun = Instant::now();
        server
            .upgrade_to(&user, &programs[round % programs.len()])
            .await;
        upgrades.push((begun, Instant::now()));
        // Both writers go on with the new server.
        let continues = async {
            for (lines, before) in [&lines, &terminal_lines].into_iter().zip(progress) {
                while lines.load(Ordering::Relaxed) <= before + 8192 {
                    tokio::task::yield_now().await;
                }
            }
        };
        within_timeout(continues).await;
        let failed = followed.iter().any(JoinHandle::is_finished);
        assert!(
            !failed && !echoed.is_finished() && !visitors.is_finished(),
            "round {round}"
        );
    }
    assert_eq!(running(&client).await, pids);
    stop.store(true, Ordering::Relaxed);
    fs::write(&stop_file, "").unwrap();
    for followed in followed {
        assert_eq!(within_timeout(followed).await.unwrap(), 7);
    }
    let (echoes, mut visits) = (echoed.await.unwrap(), visitors.await.unwrap());
    let mut pauses = pauses(&upgrades, &echoes);
    println!(
        "{} upgrades under load: pause p50 {:?} p95 {:?} max {:?}; {} lines on pipes, {} on a \
         terminal, {} echoes; {} connections, p50 {:?}, p99 {:?}, max {:?}",
        pauses.len(),
        percentile(&mut pauses, 50),
        percentile(&mut pauses, 95),
        percentile(&mut pauses, 100),
        lines.load(Ordering::Relaxed),
        terminal_lines.load(Ordering::Relaxed),
        echoes.len(),
        visits.len(),
        percentile(&mut visits, 50),
        percentile(&mut visits, 99),
        percentile(&mut visits, 100),
    );
}

/// Returns the pause of a client for each upgrade: its slowest echo meanwhile.
fn pauses(upgrades: &[(Instant, Instant)], echoes: &[(Instant, Duration)]) -> Vec<Duration> {
    let pause = |(begun, over): &(Instant, Instant)| {
        let during = echoes
            .iter()
            .filter(|(at, took)| at <= over && *at + *took >= *begun);
        during.map(|(_, took)| *took).max().unwrap()
    };
    upgrades.iter().map(pause).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_at_work_pauses_briefly_for_an_upgrade() {
    let user = TestUser::new();
    let programs = programs(&user);
    let mut server = UpgradableServer::start(&user).await;
    let client = server.connect().await;
    let cat = start(&client, "cat", &["cat"]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let echoed = echo(Arc::clone(&cat.process), Arc::clone(&stop));
    let mut upgrades = Vec::new();
    for round in 0..rounds() {
        let begun = Instant::now();
        let program = &programs[round % programs.len()];
        server.upgrade_to(&user, program).await;
        upgrades.push((begun, Instant::now()));
    }
    stop.store(true, Ordering::Relaxed);
    let mut pauses = pauses(&upgrades, &within_timeout(echoed).await.unwrap());
    let p95 = percentile(&mut pauses, 95);
    println!(
        "{} upgrades: pause p50 {:?} p95 {p95:?} max {:?}",
        pauses.len(),
        percentile(&mut pauses, 50),
        percentile(&mut pauses, 100)
    );
    // A busy machine, or a build without optimisation, takes longer than the goal of 250 ms.
    let limit = std::env::var("EXEC_SERVER_TEST_MAX_PAUSE_MS");
    let limit = limit.map_or(10_000, |limit| limit.parse().unwrap());
    assert!(p95 <= Duration::from_millis(limit), "{p95:?}");
}

/// Returns ids and pids of the running processes, as the server sees them.
async fn running(client: &ExecServerClient) -> Vec<(String, Option<u32>)> {
    let listed = client.call(ListProcesses { all: false });
    let listed = within_timeout(listed).await.unwrap().processes;
    let running = listed.iter().filter(|process| process.running);
    let mut running: Vec<_> = running
        .map(|process| (process.process_id.to_string(), process.os_pid))
        .collect();
    running.sort();
    running
}

#[tokio::test]
async fn client_without_processes_keeps_its_session() {
    let user = TestUser::new();
    let mut server =
        UpgradableServer::listening(&user, "ws://127.0.0.1:0", &["--durable", "off"]).await;
    let client = server.connect().await;
    let session = client.session().session_id.clone();
    let program = copy_of_product(&user, "new");
    server.upgrade_to(&user, &program).await;
    let status = within_timeout(client.call(ReadServerStatus {}))
        .await
        .unwrap();
    assert_eq!(
        i64::from(status.os_pid),
        i64::from(server.pid.as_raw_nonzero().get())
    );
    assert_eq!(client.session().session_id, session);
}
