//! A connection that is lost, for a moment or for good.

use std::{fs, process::Stdio};

use tokio::io::AsyncReadExt;

use super::{Running, noise, window::Window, wire::Wire};
use crate::{
    cast::{Hub, Person, soon},
    watching::http::Samples,
};

const MEBI: usize = 1 << 20;

#[tokio::test]
async fn output_is_whole_after_outages_and_they_are_told() {
    let person = Person::new();
    let server = person.server(&[]).await;
    let wire = Wire::to(&server).await;
    let wrote = noise(24 * MEBI, 6);
    fs::write(person.work().join("big"), &wrote).unwrap();
    let mut run = person.command(["run", "-E", &wire.url, "cat", "big"]);
    let mut child = run
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut came = vec![0; wrote.len()];
    for (number, part) in came.chunks_mut(6 * MEBI).enumerate() {
        soon(stdout.read_exact(part)).await.unwrap();
        if number < 3 {
            wire.cut();
        }
    }
    let mut rest = Vec::new();
    soon(stdout.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "{} bytes more", rest.len());
    assert!(came == wrote);
    let ended = soon(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let said = String::from_utf8(ended.stderr).unwrap();
    let outage = "exec-server: reconnecting…\nexec-server: reconnected\n";
    assert_eq!(said, outage.repeat(3));
}

#[tokio::test]
async fn on_a_terminal_an_outage_is_shown_and_the_line_is_erased_after_it() {
    let person = Person::new().with("TERM", "xterm");
    let server = person.server(&[]).await;
    let wire = Wire::to(&server).await;
    let script = "echo ready; read line; echo got $line";
    let line = ["run", "-E", &wire.url, "-t", "sh", "-c", script];
    let mut window = Window::open(&person.command(line), (24, 80));
    window.shows("ready\r\n").await;
    wire.cut();
    window.shows("\x1b7reconnecting…").await;
    window.shows("\x1b8\x1b[K").await;
    window.types("it\r");
    window.shows("got it\r\n").await;
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_session_that_is_lost_for_good_ends_us_and_the_terminal_is_given_back() {
    let person = Person::new().with("TERM", "xterm");
    let (server, other) = (person.server(&[]).await, person.server(&[]).await);
    let wire = Wire::to(&server).await;
    let script = "echo ready; sleep 1000";
    let line = ["run", "-E", &wire.url, "sh", "-c", script];
    let mut running = Running::start(&mut person.command(line));
    let on_terminal = ["run", "-E", &wire.url, "-t", "sh", "-c", script];
    let mut window = Window::open(&person.command(on_terminal), (24, 80));
    let before = window.settings();
    running.says("ready").await;
    window.shows("ready").await;
    assert!(window.is_raw());
    wire.relay_to(&other);
    let (status, said) = running.end().await;
    assert_eq!(status.code(), Some(75), "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.contains("session") && last.contains("--detach"),
        "{said}"
    );
    assert_eq!(window.end().await.code(), Some(75));
    assert_eq!(window.settings(), before);
    assert!(!window.is_raw());
}

#[tokio::test]
async fn a_detached_process_is_followed_through_outages() {
    let person = Person::new();
    let server = person.server(&[]).await;
    let wire = Wire::to(&server).await;
    let fifo = person.work().join("fifo");
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let line = [
        "run",
        "-E",
        &wire.url,
        "-d",
        "--name=job",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(person.run(line).await.well(), "job\n");
    let logs = ["logs", "-E", &wire.url, "-f", "job"];
    let mut logs = Running::start(&mut person.command(logs));
    let wait = ["wait", "-E", &wire.url, "job"];
    let mut wait = Running::start(&mut person.command(wait));
    logs.says("ready").await;
    // A client that is not there yet would be refused.
    let authority = server.url.strip_prefix("ws://").unwrap();
    let waits = async || {
        let waiting = "exec_server_requests_in_flight";
        while Samples::of(authority).await.value(waiting) < 1.0 {}
    };
    soon(waits()).await;
    wire.cut();
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    logs.says("on").await;
    soon(write).await.unwrap();
    let (status, said) = logs.end().await;
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("reconnecting…"), "{said}");
    assert_eq!(wait.end().await.0.code(), Some(6));
}

#[tokio::test]
async fn one_can_leave_while_the_connection_is_out() {
    let person = Person::new().with("TERM", "xterm");
    let server = person.server(&[]).await;
    let wire = Wire::to(&server).await;
    let line = ["run", "-E", &wire.url, "-dt", "--name=job", "cat"];
    person.run(line).await.well();
    let attach = ["attach", "-E", &wire.url, "job"];
    let mut attached = Window::open(&person.command(attach), (24, 80));
    let shell = ["run", "-E", &wire.url, "-t", "sh", "-c", "echo ready; cat"];
    let mut shell = Window::open(&person.command(shell), (24, 80));
    attached.types("there\r");
    // The second time it is not our own terminal that shows it.
    for _ in 0..2 {
        attached.shows("there\r\n").await;
    }
    shell.shows("ready\r\n").await;
    wire.end();
    for window in [&mut attached, &mut shell] {
        window.shows("reconnecting…").await;
        // More than is kept for when the connection is back.
        for _ in 0..100 {
            window.types("x");
        }
    }
    attached.types("\x10\x11");
    let left = attached.end().await;
    assert_eq!(left.code(), Some(0), "{}", attached.rest());
    shell.types("\x03\x03\x03");
    assert_eq!(shell.end().await.code(), Some(130));
}

#[tokio::test]
async fn a_command_goes_on_when_its_hub_is_restarted_and_that_is_told() {
    let person = Person::new();
    let mut hub = Hub::start(&person).await;
    let _executor = hub.executor(&person, "box");
    let token = hub.token_file.to_str().unwrap();
    let add = ["env", "add", "box", "--hub", &hub.server.url];
    let add = add.into_iter().chain(["--token-file", token]);
    person.run(add).await.well();
    let script = "mkfifo fifo; echo ready; read line < fifo; echo $line; exit 6";
    let line = ["run", "-E", "box", "sh", "-c", script];
    let mut running = Running::start(&mut person.command(line));
    running.says("ready").await;
    hub.restart(&person).await;
    let fifo = person.work().join("fifo");
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    running.says("on").await;
    soon(write).await.unwrap();
    let (status, said) = running.end().await;
    assert_eq!(status.code(), Some(6), "{said}");
    assert!(said.starts_with("exec-server: reconnecting…\n"), "{said}");
    assert!(said.ends_with("exec-server: reconnected\n"), "{said}");
}
