//! What goes in, and what comes out.

use std::{fs, process::Stdio};

use tokio::io::AsyncReadExt;

use super::{Running, noise};
use crate::cast::{Ended, Person, soon};

const MEBI: usize = 1 << 20;

#[tokio::test]
async fn both_streams_come_out_byte_for_byte() {
    let person = Person::new();
    let (out, err) = (noise(10 * MEBI, 1), noise(10 * MEBI, 2));
    fs::write(person.work().join("out"), &out).unwrap();
    fs::write(person.work().join("err"), &err).unwrap();
    let mut run = person.command(["run", "sh", "-c", "cat out & cat err >&2; wait"]);
    let told = soon(run.output()).await.unwrap();
    assert_eq!(told.status.code(), Some(0));
    assert!(told.stdout == out, "stdout has {} bytes", told.stdout.len());
    assert!(told.stderr == err, "stderr has {} bytes", told.stderr.len());
}

#[tokio::test]
async fn streams_that_lead_to_one_place_keep_their_order() {
    let person = Person::new();
    let script = "i=0; while [ $i -lt 300 ]; do echo o$i; echo e$i >&2; i=$((i + 1)); done";
    let exact = r#"exec "$0" run sh -c "$1" 2>&1"#;
    let mut both = tokio::process::Command::new("sh");
    let product = person.command(["--version"]);
    for (name, value) in product.as_std().get_envs() {
        match value {
            Some(value) => both.env(name, value),
            None => both.env_remove(name),
        };
    }
    both.args(["-c", exact])
        .arg(crate::cast::product())
        .arg(script);
    let told = soon(both.stdin(Stdio::null()).output()).await.unwrap();
    let lines = String::from_utf8(told.stdout).unwrap();
    let of = |letter: char| lines.lines().filter(move |line| line.starts_with(letter));
    for letter in ['o', 'e'] {
        let told: Vec<_> = of(letter).collect();
        let wrote: Vec<_> = (0..300).map(|i| format!("{letter}{i}")).collect();
        assert_eq!(told, wrote);
    }
}

#[tokio::test]
async fn a_reader_that_stops_pauses_the_command_and_loses_nothing() {
    let person = Person::new();
    let piece = noise(MEBI, 3);
    fs::write(person.work().join("piece"), &piece).unwrap();
    let script = "i=0; while [ $i -lt 48 ]; do cat piece; i=$((i + 1)); done; touch done";
    let mut run = person.command(["run", "sh", "-c", script]);
    let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = vec![0; 4096];
    soon(stdout.read_exact(&mut first)).await.unwrap();
    // Time enough to write all of it, if anybody took it.
    for _ in 0..10 {
        person.run(["run", "cat", "piece"]).await;
    }
    assert!(!person.work().join("done").exists());
    let mut rest = Vec::new();
    soon(stdout.read_to_end(&mut rest)).await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());
    assert!(person.work().join("done").exists());
    let whole = [first, rest].concat();
    assert_eq!(whole.len(), 48 * MEBI);
    assert!(whole.chunks(MEBI).all(|chunk| chunk == piece));
}

#[tokio::test]
async fn input_is_passed_on_whole_and_its_end_is_too() {
    let person = Person::new();
    let input = noise(5 * MEBI, 4);
    let Ended { status, bytes, .. } = person.run_with(["run", "cat"], &input).await;
    assert_eq!(status, Some(0));
    assert!(bytes == input, "{} bytes", bytes.len());
    let counted = person.run_with(["run", "wc", "-c"], b"abc").await;
    assert_eq!(counted.well().trim(), "3");
    fs::write(person.work().join("input"), &input).unwrap();
    let file = fs::File::open(person.work().join("input")).unwrap();
    let mut from_file = person.command(["run", "cat"]);
    let told = soon(from_file.stdin(file).output()).await.unwrap();
    assert!(told.stdout == input, "{} bytes", told.stdout.len());
}

#[tokio::test]
async fn a_command_that_does_not_read_ends_although_our_input_goes_on() {
    let person = Person::new();
    let mut run = person.command(["run", "sh", "-c", "exit 3"]);
    let mut running = Running::start(run.stdin(Stdio::piped()));
    let held_open = running.child.stdin.take().unwrap();
    assert_eq!(running.end().await.0.code(), Some(3));
    drop(held_open);
    // More than anybody would queue.
    let told = person.run_with(["run", "true"], &noise(4 * MEBI, 5)).await;
    assert_eq!(told.well(), "");
}

#[tokio::test]
async fn nobody_reading_our_output_ends_the_command_quietly() {
    let person = Person::new();
    let script = "echo $$ > number; exec yes";
    let mut running = Running::start(&mut person.command(["run", "sh", "-c", script]));
    running.says("y").await;
    let Running { child, lines } = running;
    drop(lines);
    let ended = soon(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    super::gone(&person.work().join("number"));
}
