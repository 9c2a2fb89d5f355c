//! Links to server programs.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use exec_test_support::bounded_wait::wait_until;
use rustix::process::{Pid, test_kill_process};
use tokio::sync::mpsc;
use tracing_subscriber::fmt::MakeWriter;

use super::{error_chain, within};
use crate::{
    connect::{ConnectError, ConnectFault, ServerProgram},
    link::{DataEncoding, Link, LinkReadError},
};

/// A shell script as a server.
fn script(text: &str) -> ServerProgram {
    ServerProgram {
        args: vec!["-c".into(), text.into()],
        ..ServerProgram::new("sh")
    }
}

async fn line(link: &mut Link) -> String {
    let line = within("a line", link.reader.next()).await.unwrap();
    String::from_utf8(line.unwrap().to_vec()).unwrap()
}

/// Reads the pids that a script prints on one line.
async fn pids(link: &mut Link) -> Vec<Pid> {
    line(link)
        .await
        .split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
        .collect()
}

/// Waits until none of them runs, and the first, which this process reaps, no longer exists.
async fn expect_gone(pids: &[Pid]) {
    expect_none_runs(pids).await;
    wait_until("it is reaped", || !pid_exists(pids[0])).await;
}

async fn expect_none_runs(pids: &[Pid]) {
    wait_until("none runs", || !pids.iter().any(|pid| is_running(*pid))).await;
}

fn pid_exists(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// Returns whether a process exists and is not a zombie.
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
    error_chain(&end.expect_err("programs end with a report"))
}

#[tokio::test]
async fn program_exchanges_messages_on_stdin_and_stdout() {
    let mut link = ServerProgram::new("cat").start().unwrap();
    let message = || exec_wire::outgoing_message::OutgoingMessage::notification("x", &());
    link.writer.push(message(), DataEncoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
    assert_eq!(line(&mut link).await, r#"{"method":"x","params":null}"#);
    within("closed", link.writer.close()).await.unwrap();
    assert_eq!(end(&mut link).await, "server program exited with status 0");
}

#[tokio::test]
async fn program_gets_its_arguments_environment_and_directory() {
    let dir = tempfile::tempdir().unwrap();
    let program = ServerProgram {
        args: ["-c", r#"echo "$0 $ONE $(pwd) ${PATH:+path}""#, "a b"]
            .map(Into::into)
            .to_vec(),
        env: [("ONE".into(), "s3cret".into())].into(),
        cwd: Some(dir.path().to_owned()),
        ..ServerProgram::new("sh")
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
async fn start_failures_name_the_program_or_directory() {
    let error = ServerProgram::new("no-such-program-of-ours")
        .start()
        .unwrap_err();
    assert_eq!(error.fault(), ConnectFault::Caller);
    let text = error_chain(&error);
    assert!(
        text.starts_with("cannot start `no-such-program-of-ours`: No such file"),
        "{text}"
    );
    let bad_directory = ServerProgram {
        cwd: Some("/no/such/directory".into()),
        ..ServerProgram::new("cat")
    };
    let error = bad_directory.start().unwrap_err();
    assert!(matches!(error, ConnectError::WorkingDirectory { .. }));
    assert!(
        error_chain(&error)
            .starts_with("cannot use working directory `/no/such/directory`: No such file")
    );
}

#[tokio::test]
async fn exit_is_reported_with_the_last_stderr_line() {
    for (text, expected) in [
        (
            "echo first >&2; echo 'no key' >&2; exit 3",
            "exited with status 3: no key",
        ),
        ("exit 1", "exited with status 1"),
        ("kill -9 $$", "was killed by signal 9"),
        (
            "printf 'unfinished' >&2; exit 7",
            "exited with status 7: unfinished",
        ),
    ] {
        let mut link = script(text).start().unwrap();
        assert_eq!(end(&mut link).await, format!("server program {expected}"));
        // The result is the same when polled again.
        assert_eq!(end(&mut link).await, format!("server program {expected}"));
    }
}

#[tokio::test]
async fn output_before_exit_is_not_lost() {
    let mut link = script("i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done; exit 4")
        .start()
        .unwrap();
    for count in 0..5000 {
        assert_eq!(line(&mut link).await, count.to_string());
    }
    assert_eq!(end(&mut link).await, "server program exited with status 4");
}

#[tokio::test]
async fn writing_to_an_exited_program_reports_its_exit() {
    let mut link = script("exec <&-; echo closed; echo 'too bad' >&2; exit 5")
        .start()
        .unwrap();
    assert_eq!(line(&mut link).await, "closed");
    let message = exec_wire::outgoing_message::OutgoingMessage::notification("x", &());
    link.writer.push(message, DataEncoding::Text);
    let error = within("an error", link.writer.flush()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(
        error.to_string(),
        "server program exited with status 5: too bad"
    );
}

#[tokio::test]
async fn closed_stdout_of_a_running_program_ends_the_link() {
    let mut link = script("exec >&-; exec sleep 1000").start().unwrap();
    let end = within("the end", link.reader.next()).await;
    assert!(matches!(end, Ok(None)), "{end:?}");
}

#[tokio::test]
async fn escaped_child_holding_stdout_does_not_hide_the_exit() {
    let escaping = "setsid sh -c 'echo $$; exec sleep 60' & read -r go; exit 6";
    let mut link = script(escaping).start().unwrap();
    let escaped = pids(&mut link).await;
    within("closed", link.writer.close()).await.unwrap();
    let end = within("the end", link.reader.next()).await;
    assert!(
        matches!(&end, Err(LinkReadError::Exited(exit)) if exit.status.unwrap().code() == Some(6))
    );
    rustix::process::kill_process(escaped[0], rustix::process::Signal::KILL).ok();
}

#[tokio::test]
async fn dropping_the_link_terminates_the_process_group() {
    let mut link = script("sleep 1000 & echo $$ $!; wait").start().unwrap();
    let group = pids(&mut link).await;
    assert_eq!(rustix::process::getpgid(Some(group[1])).unwrap(), group[0]);
    let dropped = Instant::now();
    drop(link);
    expect_gone(&group).await;
    assert!(
        dropped.elapsed() < Duration::from_secs(2),
        "SIGTERM was enough"
    );
}

#[tokio::test]
async fn a_group_that_ignores_sigterm_is_killed_two_seconds_later() {
    let script = script("trap '' TERM; (sleep 1000) & echo $$ $!; while :; do sleep 1000; done");
    let mut link = script.start().unwrap();
    let group = pids(&mut link).await;
    let dropped = Instant::now();
    drop(link);
    expect_gone(&group).await;
    let took = dropped.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(10),
        "{took:?}"
    );
}

#[tokio::test]
async fn remaining_group_members_are_killed_after_the_leader_exits() {
    let mut link = script("sleep 1000 & echo $!; exit 2").start().unwrap();
    let survivors = pids(&mut link).await;
    expect_none_runs(&survivors).await;
    assert_eq!(end(&mut link).await, "server program exited with status 2");
}

#[test]
fn runtime_shutdown_leaves_no_process_behind() {
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
        let (link, group) = first.block_on(async {
            let mut link = script(text).start().unwrap();
            let group = pids(&mut link).await;
            (link, group)
        });
        drop(first);
        drop(link);
        runtime().block_on(expect_gone(&group));
    }
}

#[tokio::test]
async fn stderr_lines_are_logged() {
    let (log, mut lines) = LogWriter::new();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut link = script(r#"printf 'one\n\033[31mtwo\n' >&2; exit 0"#)
        .start()
        .unwrap();
    end(&mut link).await;
    for text in ["one", " [31mtwo"] {
        let line = within("a line of log", lines.recv()).await.unwrap();
        let expected = format!(r#"server program stderr program="sh" line="{text}""#);
        assert!(line.contains(&expected) && line.contains("INFO"), "{line}");
    }
}

/// Sends each log line to a channel.
#[derive(Clone)]
struct LogWriter(Arc<Mutex<mpsc::UnboundedSender<String>>>);

impl LogWriter {
    fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (send, lines) = mpsc::unbounded_channel();
        (Self(Arc::new(Mutex::new(send))), lines)
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).into_owned();
        drop(self.0.lock().unwrap().send(text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
