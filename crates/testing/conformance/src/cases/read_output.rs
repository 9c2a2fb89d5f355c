//! Reading retained output, and the picture of all of it.

use std::{sync::Arc, time::Duration};

use exec_core::log::Page;
use exec_env::process::{ExecProcess, Read};
use exec_wire::id::OutputSeq;

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::Running,
    pattern,
    scratch_dir::Scratch,
    subject::{Subject, piped},
};

/// Long enough never to be up.
const LONG: Duration = Duration::from_secs(60);

async fn read(process: &Arc<dyn ExecProcess>, read: Read) -> Page {
    within("a read is answered", process.read(read))
        .await
        .unwrap()
}

fn numbers(page: &Page) -> Vec<u64> {
    page.chunks.iter().map(|chunk| chunk.seq.0).collect()
}

/// A process that wrote `a`, `b` and `c`, each by itself, and reads on until it has so many bytes or
/// its input ends.
async fn three_chunks(subject: &Subject, bytes: usize) -> Running {
    let mut running = subject.start(subject.cat(bytes)).await;
    for text in ["a", "b", "c"] {
        running.write(text.as_bytes()).await;
        running.until_says(text).await;
    }
    running
}

pub async fn reading_does_not_consume(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let first = read(&running.process, Read::default()).await;
    assert_eq!(numbers(&first), [1, 2, 3]);
    assert_eq!(read(&running.process, Read::default()).await, first);
    let after = Read {
        after: OutputSeq(2),
        ..Read::default()
    };
    let page = read(&running.process, after).await;
    assert_eq!(
        (numbers(&page), &page.chunks[0].data[..]),
        (vec![3], &b"c"[..])
    );
}

pub async fn without_a_budget_the_next_number_is_the_processes(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let page = read(&running.process, Read::default()).await;
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
    let page = read(&process, Read::default()).await;
    // The exit and the close have numbers, too.
    assert_eq!((page.next_seq, page.closed), (next, true));
    assert_eq!(page.exit.map(|exit| exit.code), Some(0));
}

pub async fn with_a_budget_the_next_number_is_the_pages(subject: &Subject) {
    let running = three_chunks(subject, 4).await;
    let mut after = OutputSeq(0);
    for expected in 1..=3 {
        let budget = Read {
            after,
            max_bytes: Some(1),
            ..Read::default()
        };
        let page = read(&running.process, budget).await;
        assert_eq!(
            (numbers(&page), page.next_seq),
            (vec![expected], OutputSeq(expected + 1))
        );
        after = OutputSeq(page.next_seq.0 - 1);
    }
    let budget = Read {
        after,
        max_bytes: Some(1),
        ..Read::default()
    };
    let page = read(&running.process, budget).await;
    assert_eq!((numbers(&page), page.next_seq), (vec![], OutputSeq(4)));
}

pub async fn a_budget_splits_no_chunk_and_always_gives_one(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    for text in ["first", "second"] {
        running.write(text.as_bytes()).await;
        running.until_says(text).await;
    }
    for (budget, expected) in [(0, vec![1]), (1, vec![1]), (10, vec![1]), (11, vec![1, 2])] {
        let page = Read {
            max_bytes: Some(budget),
            ..Read::default()
        };
        assert_eq!(
            numbers(&read(&running.process, page).await),
            expected,
            "budget {budget}"
        );
    }
}

pub async fn a_long_poll_wakes_for_output(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let poll = running.process.read(Read {
        wait: LONG,
        ..Read::default()
    });
    let (page, ()) = within("the poll wakes", async {
        futures_util::future::join(poll, running.write(b"news")).await
    })
    .await;
    assert_eq!(&page.unwrap().chunks[0].data[..], b"news");
}

pub async fn a_long_poll_wakes_for_the_end(subject: &Subject) {
    let script = r#"read line <"$1""#;
    let (scratch, ends) = (Scratch::new(), !subject.differs(Difference::NoCloseStdin));
    let gate = scratch.gate();
    let command = if ends {
        subject.cat(0)
    } else {
        piped(subject.sh(script, &[gate.path()]))
    };
    let running = subject.start(command).await;
    let poll = running.process.read(Read {
        wait: LONG,
        ..Read::default()
    });
    let end = async {
        running.close_stdin().await;
        gate.open();
    };
    let (page, ()) = within("the poll wakes", async {
        futures_util::future::join(poll, end).await
    })
    .await;
    let page = page.unwrap();
    assert_eq!(
        (page.chunks.len(), page.exit.map(|exit| exit.code)),
        (0, Some(0))
    );
}

pub async fn a_poll_that_has_seen_the_exit_waits_for_the_close(subject: &Subject) {
    let scratch = Scratch::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1") & exit 0"#;
    let mut running = subject.start(subject.sh(script, &[gate.path()])).await;
    running.exit().await;
    let seen = Read {
        after: OutputSeq(1),
        wait: Duration::from_millis(20),
        ..Read::default()
    };
    assert!(
        !read(&running.process, seen).await.closed,
        "the time was up first"
    );
    let poll = running.process.read(Read { wait: LONG, ..seen });
    gate.open();
    let page = within("the poll wakes", poll).await.unwrap();
    assert!(page.closed);
    assert_eq!(page.next_seq, OutputSeq(3));
}

pub async fn a_long_poll_without_news_is_empty(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let wait = Duration::from_millis(20);
    let page = read(
        &running.process,
        Read {
            wait,
            ..Read::default()
        },
    )
    .await;
    assert_eq!(
        (page.chunks.len(), page.next_seq, page.exit),
        (0, OutputSeq(1), None)
    );
}

pub async fn a_small_snapshot_is_everything(subject: &Subject) {
    let running = subject
        .start(subject.sh("echo out; echo err >&2", &[]))
        .await;
    let process = running.process.clone();
    running.finish().await;
    let snapshot = within("it is answered", process.snapshot()).await.unwrap();
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

pub async fn a_large_snapshot_is_head_and_tail(subject: &Subject) {
    const BYTES: usize = 4 << 20;
    let script = r#"echo err >&2; exec "$1" emit "$2""#;
    let command = subject.sh(script, &[subject.probe_path(), &BYTES.to_string()]);
    let running = subject.start(command).await;
    let process = running.process.clone();
    running.finish().await;
    let snapshot = within("it is answered", process.snapshot()).await.unwrap();
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
