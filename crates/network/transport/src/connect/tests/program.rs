//! Servers that are programs of their own.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::process::{Pid, test_kill_process};
use tokio::sync::mpsc;
use tracing_subscriber::fmt::MakeWriter;

use super::{chain, within};
use crate::{
    connect::{ConnectError, Fault, Program},
    link::{Encoding, Link, ReadError},
};

/// A shell script as a server.
fn script(text: &str) -> Program {
    Program {
        args: vec!["-c".into(), text.into()],
        ..Program::new("sh")
    }
}

async fn line(link: &mut Link) -> String {
    let line = within("a line", link.reader.next()).await.unwrap();
    String::from_utf8(line.unwrap().to_vec()).unwrap()
}

/// Reads the numbers of processes that a script prints on one line.
async fn pids(link: &mut Link) -> Vec<Pid> {
    line(link)
        .await
        .split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
        .collect()
}

/// Waits until none of them runs, and the first, which is ours to reap, is not there at all.
async fn expect_gone(pids: &[Pid]) {
    expect_none_runs(pids).await;
    until("it is reaped", || !is_there(pids[0])).await;
}

async fn expect_none_runs(pids: &[Pid]) {
    until("none runs", || !pids.iter().any(|pid| is_running(*pid))).await;
}

/// Looks again and again: nothing tells when a process that is not ours is gone.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, so).await;
}

fn is_there(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// Tells whether a process is more than a number that its parent has not taken back.
fn is_running(pid: Pid) -> bool {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let state = std::fs::read_to_string(path).ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.chars().next()
    });
    !matches!(state, None | Some('Z' | 'X'))
}

async fn end(link: &mut Link) -> String {
    let end = within("the end", link.reader.next()).await;
    chain(&end.expect_err("programs end with a report"))
}

#[tokio::test]
async fn a_program_is_spoken_to_on_its_standard_input_and_output() {
    let mut link = Program::new("cat").start().unwrap();
    let message = || exec_wire::outgoing::Outgoing::notification("x", &());
    link.writer.push(message(), Encoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
    assert_eq!(line(&mut link).await, r#"{"method":"x","params":null}"#);
    within("closed", link.writer.close()).await.unwrap();
    assert_eq!(end(&mut link).await, "server program exited with status 0");
}

#[tokio::test]
async fn arguments_environment_and_directory_are_those_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program {
        args: ["-c", r#"echo "$0 $ONE $(pwd) ${PATH:+path}""#, "a b"]
            .map(Into::into)
            .to_vec(),
        env: [("ONE".into(), "s3cret".into())].into(),
        cwd: Some(dir.path().to_owned()),
        ..Program::new("sh")
    };
    let mut link = program.start().unwrap();
    let expected = format!("a b s3cret {} path", dir.path().display());
    assert_eq!(line(&mut link).await, expected);
    let shown = format!("{program:?}");
    assert!(
        shown.contains("ONE") && !shown.contains("s3cret"),
        "{shown}"
    );
}

#[tokio::test]
async fn what_cannot_be_started_is_told() {
    let error = Program::new("no-such-program-of-ours").start().unwrap_err();
    assert_eq!(error.fault(), Fault::Caller);
    let text = chain(&error);
    assert!(
        text.starts_with("cannot start `no-such-program-of-ours`: No such file"),
        "{text}"
    );
    let misplaced = Program {
        cwd: Some("/no/such/directory".into()),
        ..Program::new("cat")
    };
    let error = misplaced.start().unwrap_err();
    assert!(matches!(error, ConnectError::WorkingDirectory { .. }));
    assert!(chain(&error).starts_with("cannot work in `/no/such/directory`: No such file"));
}

#[tokio::test]
async fn the_end_of_a_program_is_told_with_its_last_words() {
    for (text, told) in [
        (
            "echo first >&2; echo 'no key' >&2; exit 3",
            "exited with status 3: no key",
        ),
        ("exit 1", "exited with status 1"),
        ("kill -9 $$", "was ended by signal 9"),
        (
            "printf 'unfinished' >&2; exit 7",
            "exited with status 7: unfinished",
        ),
    ] {
        let mut link = script(text).start().unwrap();
        assert_eq!(end(&mut link).await, format!("server program {told}"));
        // Whoever asks again is told the same.
        assert_eq!(end(&mut link).await, format!("server program {told}"));
    }
}

#[tokio::test]
async fn output_before_the_end_is_not_lost() {
    let mut link = script("i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done; exit 4")
        .start()
        .unwrap();
    for count in 0..5000 {
        assert_eq!(line(&mut link).await, count.to_string());
    }
    assert_eq!(end(&mut link).await, "server program exited with status 4");
}

#[tokio::test]
async fn whoever_writes_to_a_program_that_is_gone_is_told_why() {
    let mut link = script("exec <&-; echo closed; echo 'too bad' >&2; exit 5")
        .start()
        .unwrap();
    assert_eq!(line(&mut link).await, "closed");
    let message = exec_wire::outgoing::Outgoing::notification("x", &());
    link.writer.push(message, Encoding::Text);
    let error = within("an error", link.writer.flush()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(
        error.to_string(),
        "server program exited with status 5: too bad"
    );
}

#[tokio::test]
async fn a_program_that_closes_its_output_and_lives_on_has_hung_up() {
    let mut link = script("exec >&-; exec sleep 1000").start().unwrap();
    let end = within("the end", link.reader.next()).await;
    assert!(matches!(end, Ok(None)), "{end:?}");
}

#[tokio::test]
async fn someone_who_escapes_with_the_output_does_not_hide_the_end() {
    let escaping = "setsid sh -c 'echo $$; exec sleep 60' & read -r go; exit 6";
    let mut link = script(escaping).start().unwrap();
    let escaped = pids(&mut link).await;
    within("closed", link.writer.close()).await.unwrap();
    let end = within("the end", link.reader.next()).await;
    assert!(matches!(&end, Err(ReadError::Exited(exit)) if exit.status.unwrap().code() == Some(6)));
    rustix::process::kill_process(escaped[0], rustix::process::Signal::KILL).ok();
}

#[tokio::test]
async fn dropping_the_link_ends_the_whole_group() {
    let mut link = script("sleep 1000 & echo $$ $!; wait").start().unwrap();
    let family = pids(&mut link).await;
    assert_eq!(
        rustix::process::getpgid(Some(family[1])).unwrap(),
        family[0]
    );
    let dropped = Instant::now();
    drop(link);
    expect_gone(&family).await;
    assert!(
        dropped.elapsed() < Duration::from_secs(2),
        "SIGTERM was enough"
    );
}

#[tokio::test]
async fn a_group_that_ignores_sigterm_is_killed_two_seconds_later() {
    let script = script("trap '' TERM; (sleep 1000) & echo $$ $!; while :; do sleep 1000; done");
    let mut link = script.start().unwrap();
    let family = pids(&mut link).await;
    let dropped = Instant::now();
    drop(link);
    expect_gone(&family).await;
    let took = dropped.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(10),
        "{took:?}"
    );
}

#[tokio::test]
async fn who_is_left_of_a_group_whose_leader_exits_is_ended() {
    let mut link = script("sleep 1000 & echo $!; exit 2").start().unwrap();
    let left = pids(&mut link).await;
    expect_none_runs(&left).await;
    assert_eq!(end(&mut link).await, "server program exited with status 2");
}

#[test]
fn a_runtime_that_is_shut_down_leaves_nothing_behind() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    for text in [
        "sleep 1000 & echo $$ $!; wait",
        "trap '' TERM; sleep 1000 & echo $$ $!; while :; do sleep 1000; done",
    ] {
        let first = runtime();
        let (link, family) = first.block_on(async {
            let mut link = script(text).start().unwrap();
            let family = pids(&mut link).await;
            (link, family)
        });
        drop(first);
        drop(link);
        runtime().block_on(expect_gone(&family));
    }
}

#[tokio::test]
async fn what_a_program_says_on_standard_error_is_logged() {
    let (log, mut lines) = Log::new();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut link = script(r#"printf 'one\n\033[31mtwo\n' >&2; exit 0"#)
        .start()
        .unwrap();
    end(&mut link).await;
    for said in ["one", " [31mtwo"] {
        let line = within("a line of log", lines.recv()).await.unwrap();
        let expected = format!(r#"server program says program="sh" line="{said}""#);
        assert!(line.contains(&expected) && line.contains("INFO"), "{line}");
    }
}

/// Sends each line that is logged.
#[derive(Clone)]
struct Log(Arc<Mutex<mpsc::UnboundedSender<String>>>);

impl Log {
    fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (send, lines) = mpsc::unbounded_channel();
        (Self(Arc::new(Mutex::new(send))), lines)
    }
}

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).into_owned();
        drop(self.0.lock().unwrap().send(text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
