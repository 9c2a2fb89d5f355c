//! Reading retained output, and snapshots of it.

use std::{sync::Arc, time::Duration};

use exec_core::output_log::LogPage;
use exec_env::process::{ExecProcess, OutputReadRequest};
use exec_wire::id::OutputSeq;

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::FollowedProcess,
    pattern,
    scratch_dir::ScratchDir,
    subject::{Subject, piped},
};

/// Timeout that never expires within a case.
const LONG: Duration = Duration::from_secs(60);

async fn read(process: &Arc<dyn ExecProcess>, read: OutputReadRequest) -> LogPage {
    within("read response arrives", process.read(read))
        .await
        .unwrap()
}

fn numbers(page: &LogPage) -> Vec<u64> {
    page.chunks.iter().map(|chunk| chunk.seq.0).collect()
}

/// Starts a process that wrote the chunks `a`, `b` and `c`, and that runs until it has read `bytes`
/// bytes or its stdin closes.
async fn three_chunks(subject: &Subject, bytes: usize) -> FollowedProcess {
    let mut running = subject.start(subject.cat(bytes)).await;
    for text in ["a", "b", "c"] {
        running.write(text.as_bytes()).await;
        running.until_stdout_contains(text).await;
    }
    running
}

pub async fn read_does_not_consume_output(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let first = read(&running.process, OutputReadRequest::default()).await;
    assert_eq!(numbers(&first), [1, 2, 3]);
    assert_eq!(
        read(&running.process, OutputReadRequest::default()).await,
        first
    );
    let after = OutputReadRequest {
        after: OutputSeq(2),
        ..OutputReadRequest::default()
    };
    let page = read(&running.process, after).await;
    assert_eq!(
        (numbers(&page), &page.chunks[0].data[..]),
        (vec![3], &b"c"[..])
    );
}

pub async fn read_without_byte_limit_returns_the_process_next_seq(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let page = read(&running.process, OutputReadRequest::default()).await;
    assert_eq!(
        (page.next_seq, page.exit, page.closed),
        (OutputSeq(4), None, false)
    );
    let process = running.process.clone();
    running.close_stdin().await;
    let mut next = OutputSeq(6);
    if subject.differs(Difference::NoCloseStdin) {
        running.write(b"d").await;
        next = OutputSeq(7);
    }
    running.finish().await;
    let page = read(&process, OutputReadRequest::default()).await;
    // Exit and close have sequence numbers, too.
    assert_eq!((page.next_seq, page.closed), (next, true));
    assert_eq!(page.exit.map(|exit| exit.code), Some(0));
}

pub async fn read_with_byte_limit_returns_the_page_next_seq(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let mut after = OutputSeq(0);
    for expected in 1..=3 {
        let budget = OutputReadRequest {
            after,
            max_bytes: Some(1),
            ..OutputReadRequest::default()
        };
        let page = read(&running.process, budget).await;
        assert_eq!(
            (numbers(&page), page.next_seq),
            (vec![expected], OutputSeq(expected + 1))
        );
        after = OutputSeq(page.next_seq.0 - 1);
    }
    let budget = OutputReadRequest {
        after,
        max_bytes: Some(1),
        ..OutputReadRequest::default()
    };
    let page = read(&running.process, budget).await;
    assert_eq!((numbers(&page), page.next_seq), (vec![], OutputSeq(4)));
}

pub async fn byte_limit_never_splits_a_chunk_and_returns_at_least_one(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    for text in ["first", "second"] {
        running.write(text.as_bytes()).await;
        running.until_stdout_contains(text).await;
    }
    for (budget, expected) in [(0, vec![1]), (1, vec![1]), (10, vec![1]), (11, vec![1, 2])] {
        let page = OutputReadRequest {
            max_bytes: Some(budget),
            ..OutputReadRequest::default()
        };
        assert_eq!(
            numbers(&read(&running.process, page).await),
            expected,
            "budget {budget}"
        );
    }
}

pub async fn long_poll_wakes_on_output(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let poll = running.process.read(OutputReadRequest {
        wait: LONG,
        ..OutputReadRequest::default()
    });
    let (page, ()) = within("long poll wakes", async {
        futures_util::future::join(poll, running.write(b"news")).await
    })
    .await;
    assert_eq!(&page.unwrap().chunks[0].data[..], b"news");
}

pub async fn long_poll_wakes_on_exit(subject: &Subject) {
    let script = r#"read line <"$1""#;
    let (scratch, ends) = (
        ScratchDir::new(),
        !subject.differs(Difference::NoCloseStdin),
    );
    let gate = scratch.gate();
    let command = if ends {
        subject.cat(0)
    } else {
        piped(subject.sh(script, &[gate.path()]))
    };
    let running = subject.start(command).await;
    let poll = running.process.read(OutputReadRequest {
        wait: LONG,
        ..OutputReadRequest::default()
    });
    let end = async {
        running.close_stdin().await;
        gate.open();
    };
    let (page, ()) = within("long poll wakes", async {
        futures_util::future::join(poll, end).await
    })
    .await;
    let page = page.unwrap();
    assert_eq!(
        (page.chunks.len(), page.exit.map(|exit| exit.code)),
        (0, Some(0))
    );
}

pub async fn poll_after_exit_waits_for_close(subject: &Subject) {
    let scratch = ScratchDir::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1") & exit 0"#;
    let mut running = subject.start(subject.sh(script, &[gate.path()])).await;
    running.exit().await;
    let seen = OutputReadRequest {
        after: OutputSeq(1),
        wait: Duration::from_millis(20),
        ..OutputReadRequest::default()
    };
    assert!(
        !read(&running.process, seen).await.closed,
        "long poll returned before its timeout"
    );
    let poll = running
        .process
        .read(OutputReadRequest { wait: LONG, ..seen });
    gate.open();
    let page = within("long poll wakes", poll).await.unwrap();
    assert!(page.closed);
    assert_eq!(page.next_seq, OutputSeq(3));
}

pub async fn long_poll_timeout_returns_an_empty_page(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let wait = Duration::from_millis(20);
    let page = read(
        &running.process,
        OutputReadRequest {
            wait,
            ..OutputReadRequest::default()
        },
    )
    .await;
    assert_eq!(
        (page.chunks.len(), page.next_seq, page.exit),
        (0, OutputSeq(1), None)
    );
}

pub async fn small_snapshot_is_complete(subject: &Subject) {
    let running = subject
        .start(subject.sh("echo out; echo err >&2", &[]))
        .await;
    let process = running.process.clone();
    running.finish().await;
    let snapshot = within("response arrives", process.snapshot())
        .await
        .unwrap();
    assert_eq!(
        (&snapshot.stdout.data[..], snapshot.stdout.omitted),
        (&b"out\n"[..], 0)
    );
    assert_eq!(
        (&snapshot.stderr.data[..], snapshot.stderr.omitted),
        (&b"err\n"[..], 0)
    );
    assert_eq!(
        (snapshot.terminal.data.len(), snapshot.terminal.omitted),
        (0, 0)
    );
}

pub async fn large_snapshot_keeps_head_and_tail(subject: &Subject) {
    const BYTES: usize = 4 << 20;
    let script = r#"echo err >&2; exec "$1" emit "$2""#;
    let command = subject.sh(script, &[subject.probe_path(), &BYTES.to_string()]);
    let running = subject.start(command).await;
    let process = running.process.clone();
    running.finish().await;
    let snapshot = within("response arrives", process.snapshot())
        .await
        .unwrap();
    let (stdout, all) = (snapshot.stdout, pattern::bytes(BYTES));
    assert!(stdout.omitted > 0, "more was written than is kept");
    assert_eq!(stdout.data.len() as u64 + stdout.omitted, BYTES as u64);
    let head = stdout
        .data
        .iter()
        .zip(&all)
        .take_while(|(one, other)| one == other)
        .count();
    let tail = stdout.data.len() - head;
    assert!(head > 0 && tail > 0, "head {head}, tail {tail}");
    pattern::assert_same(&stdout.data[head..], &all[BYTES - tail..]);
    assert_eq!(
        (&snapshot.stderr.data[..], snapshot.stderr.omitted),
        (&b"err\n"[..], 0)
    );
}
