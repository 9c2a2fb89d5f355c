//! Signals that the program gets, and the command should.

use std::fs;

use rustix::process::Signal;

use super::{Running, gone};
use crate::cast::Person;

#[tokio::test]
async fn signals_are_passed_on() {
    let person = Person::new();
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let trap = format!("trap 'echo got {name}; exit 9' {name}; echo ready");
        let script = format!("{trap}; while :; do sleep 0.02; done");
        let mut running = Running::start(&mut person.command(["run", "sh", "-c", &script]));
        running.says("ready").await;
        running.signal(signal);
        running.says(&format!("got {name}")).await;
        let (status, said) = running.end().await;
        assert_eq!(status.code(), Some(9), "{name}: {said}");
    }
}

#[tokio::test]
async fn a_command_ends_with_its_session_when_we_are_killed() {
    // Of this machine, whose server waits for what runs before it ends itself.
    let person = Person::new().with("EXEC_SERVER_SESSION_TTL", "0.3");
    let script = "echo $$ > number; echo ready; exec sleep 1000";
    let mut running = Running::start(&mut person.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    running.signal(Signal::KILL);
    gone(&person.work().join("number"));
}

#[tokio::test]
async fn the_third_interrupt_within_a_moment_ends_a_command_that_goes_on() {
    let person = Person::new();
    let script =
        "echo $$ > number; trap 'echo again' INT; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(&mut person.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    for _ in 0..2 {
        running.signal(Signal::INT);
        running.says("again").await;
    }
    running.signal(Signal::INT);
    let (status, _) = running.end().await;
    assert_eq!(status.code(), Some(130));
    gone(&person.work().join("number"));
}

#[tokio::test]
async fn the_second_request_to_terminate_ends_a_command_that_goes_on() {
    let person = Person::new();
    let script = "echo $$ > number; trap 'echo no' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(&mut person.command(["run", "sh", "-c", script]));
    running.says("ready").await;
    running.signal(Signal::TERM);
    running.says("no").await;
    running.signal(Signal::TERM);
    let (status, _) = running.end().await;
    assert_eq!(status.code(), Some(143));
    gone(&person.work().join("number"));
}

#[tokio::test]
async fn ctrl_z_stops_both_and_both_go_on() {
    let person = Person::new();
    let script = "echo $$ > number; echo ready; read line; echo $line";
    let mut run = person.command(["run", "sh", "-c", script]);
    let mut running = Running::start(run.stdin(std::process::Stdio::piped()));
    running.says("ready").await;
    running.signal(Signal::TSTP);
    let ours = super::pid(&running.child);
    let stopped = move || {
        let options = rustix::process::WaitIdOptions::STOPPED;
        let id = rustix::process::WaitId::Pid(ours);
        rustix::process::waitid(id, options).unwrap().unwrap()
    };
    let stopped = crate::cast::soon(tokio::task::spawn_blocking(stopped)).await;
    assert!(stopped.unwrap().stopped());
    let number = fs::read_to_string(person.work().join("number")).unwrap();
    let status = format!("/proc/{}/status", number.trim());
    // The signal is on its way to it when we stop.
    let its = async || {
        while !fs::read_to_string(&status)
            .unwrap()
            .contains("State:\tT (stopped)")
        {
            tokio::task::yield_now().await;
        }
    };
    crate::cast::soon(its()).await;
    running.signal(Signal::CONT);
    let mut stdin = running.child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"on\n")
        .await
        .unwrap();
    running.says("on").await;
    assert_eq!(running.end().await.0.code(), Some(0));
}
