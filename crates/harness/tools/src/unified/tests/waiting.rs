//! Wait times and conditions.

use std::time::Duration;

use exec_wire::process::OutputStream;
use regex::bytes::Regex;
use tokio::time::{Instant, sleep};

use super::{ExecFixture, command, quick, summary, write};
use crate::unified::{ExecCommand, OutputView, WaitFor, WriteStdin};

const SECOND: Duration = Duration::from_secs(1);

fn pattern(text: &str) -> WaitFor {
    WaitFor::Pattern(Regex::new(text).unwrap())
}

#[tokio::test(start_paused = true)]
async fn finished_command_is_shown_at_once() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| {
        fake.print("hello\n");
        fake.exit(3);
        fake.close();
    });
    let output = fixture.run(command()).await;
    assert_eq!(summary(&output), ("hello\n", Some(3), false));
    assert_eq!(output.wall_time, Duration::ZERO);
    assert!(fixture.exec.processes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn running_command_is_shown_at_the_deadline() {
    let fixture = ExecFixture::new();
    let (output, ()) = tokio::join!(fixture.run(command()), async {
        let (_, fake) = fixture.backend.started(0).await;
        sleep(SECOND).await;
        fake.print("soon\n");
        sleep(9 * SECOND).await;
        fake.print("at the deadline\n");
    });
    assert_eq!(summary(&output), ("soon\nat the deadline\n", None, true));
    assert_eq!(output.wall_time, 10 * SECOND);
    let short = fixture.run(quick()).await;
    assert_eq!(short.wall_time, Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn polls_wait_longer_than_writes() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    assert_eq!(fixture.look(number).await.unwrap().wall_time, 5 * SECOND);
    let written = fixture.exec.write_stdin(write(number, "x")).await.unwrap();
    assert_eq!(written.wall_time, Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn calls_continue_where_the_last_one_ended() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    let mut all = String::new();
    for round in 0..5 {
        fake.print(format!("{round}a "));
        let (output, ()) = tokio::join!(fixture.look(number), async {
            sleep(SECOND).await;
            fake.print(format!("{round}b "));
        });
        all += &output.unwrap().transcript.text;
    }
    assert_eq!(all, "0a 0b 1a 1b 2a 2b 3a 3b 4a 4b ");
}

#[tokio::test(start_paused = true)]
async fn idle_time_ends_the_wait_after_output() {
    let fixture = ExecFixture::new();
    let wait = WaitFor::Idle(SECOND);
    let (output, ()) = tokio::join!(fixture.run(ExecCommand { wait, ..command() }), async {
        let (_, fake) = fixture.backend.started(0).await;
        for _ in 0..3 {
            sleep(SECOND * 9 / 10).await;
            fake.print("x");
        }
    });
    assert_eq!(summary(&output), ("xxx", None, true));
    assert_eq!(output.wall_time, Duration::from_millis(3700));
    let wait = WaitFor::Idle(SECOND);
    let silent = fixture.run(ExecCommand { wait, ..command() }).await;
    assert_eq!(silent.wall_time, 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn pattern_matches_across_chunks_and_colours() {
    let fixture = ExecFixture::new();
    let wait = pattern("(?m)^ready on [0-9]+$");
    let yield_time = Some(100 * SECOND);
    let call = ExecCommand {
        wait,
        yield_time,
        ..command()
    };
    let (output, ()) = tokio::join!(fixture.run(call), async {
        let (_, fake) = fixture.backend.started(0).await;
        for part in [
            "not ready on 1\n",
            "\x1b[32mrea",
            "dy\x1b[0m on",
            " 80",
            "80\n",
        ] {
            sleep(10 * SECOND).await;
            fake.print(part);
        }
    });
    assert_eq!(
        output.wall_time,
        40 * SECOND,
        "a prompt need not end its line"
    );
    assert_eq!(
        summary(&output),
        ("not ready on 1\nready on 80", None, true)
    );
}

#[tokio::test(start_paused = true)]
async fn pattern_is_found_anywhere_in_large_output() {
    let fixture = ExecFixture::new();
    for needle_at in [0, 40_000, 63_000] {
        let number = fixture.running().await;
        let (_, fake) = fixture
            .backend
            .started(fixture.backend.start_count() - 1)
            .await;
        let look = WriteStdin {
            wait: pattern("(?m)^needle$"),
            ..write(number, "go")
        };
        let (output, ()) = tokio::join!(fixture.exec.write_stdin(look), async {
            fake.print("not a needle\n".repeat(5000));
            let mut chunk = "hay\n".repeat(16_000);
            chunk.insert_str(needle_at, "needle\n");
            fake.print(chunk);
        });
        assert_eq!(output.unwrap().wall_time, Duration::ZERO, "{needle_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn poll_matches_earlier_output_and_write_does_not() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("line\n> ");
    let look = WriteStdin {
        wait: pattern("> $"),
        yield_time: Some(60 * SECOND),
        ..write(number, "")
    };
    let output = fixture.exec.write_stdin(look.clone()).await.unwrap();
    assert_eq!(output.transcript.text, "line\n> ");
    assert_eq!(output.wall_time, Duration::ZERO);
    fake.print("old> ");
    let written = WriteStdin {
        chars: "go\n".to_owned(),
        ..look
    };
    let (output, ()) = tokio::join!(fixture.exec.write_stdin(written), async {
        sleep(SECOND).await;
        fake.print("new> ");
    });
    let output = output.unwrap();
    assert_eq!(output.transcript.text, "old> new> ");
    assert_eq!(output.wall_time, SECOND);
}

#[tokio::test(start_paused = true)]
async fn byte_count_ends_the_wait() {
    let fixture = ExecFixture::new();
    let wait = WaitFor::Bytes(6);
    let (output, ()) = tokio::join!(fixture.run(ExecCommand { wait, ..command() }), async {
        let (_, fake) = fixture.backend.started(0).await;
        for part in ["abc", "de", "f", "gh"] {
            sleep(SECOND).await;
            fake.print_to(OutputStream::Stderr, part);
        }
    });
    assert_eq!(summary(&output), ("abcdef", None, true));
    assert_eq!(output.wall_time, 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_loses_no_output() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("one ");
    let dropped = tokio::time::timeout(SECOND, fixture.look(number)).await;
    assert!(dropped.is_err());
    fake.print("two");
    let output = fixture.look(number).await.unwrap();
    assert_eq!(output.transcript.text, "one two");
}

#[tokio::test(start_paused = true)]
async fn raw_output_is_cut_between_characters() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    let look = WriteStdin {
        view: OutputView::Raw,
        ..write(number, "")
    };
    fake.print(b"\x1b[1ma\xe2\x82");
    let first = fixture.exec.write_stdin(look.clone()).await.unwrap();
    fake.print(b"\xac\r\n");
    let second = fixture.exec.write_stdin(look).await.unwrap();
    let text = first.transcript.text + &second.transcript.text;
    assert_eq!(text, "\x1b[1ma\u{20ac}\r\n");
}

#[tokio::test(start_paused = true)]
async fn token_budget_is_respected() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| {
        fake.print("0123456789".repeat(100));
        fake.exit(0);
        fake.close();
    });
    let max_output_tokens = Some(5);
    let call = ExecCommand {
        max_output_tokens,
        ..command()
    };
    let output = fixture.run(call).await;
    let expected = "0123456789\n[... 245 tokens (980 bytes) left out ...]\n0123456789";
    assert_eq!(output.transcript.text, expected);
    assert_eq!(output.transcript.original_tokens, 250);
}

#[tokio::test(start_paused = true)]
async fn environment_info_is_requested_once() {
    let fixture = ExecFixture::new();
    let started_at = Instant::now();
    for _ in 0..3 {
        fixture.running().await;
    }
    assert_eq!(fixture.backend.info_requests(), 1);
    assert_eq!(started_at.elapsed(), Duration::from_millis(750));
}

#[tokio::test(start_paused = true)]
async fn pattern_is_found_in_the_retained_head() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("listening on 8080\n");
    for _ in 0..40 {
        fake.print("request\n".repeat(8000));
        tokio::task::yield_now().await;
    }
    let look = WriteStdin {
        wait: pattern("listening on"),
        ..write(number, "")
    };
    let output = fixture.exec.write_stdin(look).await.unwrap();
    assert!(output.transcript.omitted_bytes > 1 << 20, "{output:?}");
    assert!(output.transcript.text.starts_with("listening on 8080\n"));
    assert_eq!(output.wall_time, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn pattern_is_found_across_the_end_of_a_long_line() {
    let fixture = ExecFixture::new();
    let wait = pattern("last words\nready");
    let (output, ()) = tokio::join!(fixture.run(ExecCommand { wait, ..command() }), async {
        let (_, fake) = fixture.backend.started(0).await;
        fake.print("x".repeat(20_000) + "last words\n");
        sleep(SECOND).await;
        fake.print("ready");
    });
    assert_eq!(output.wall_time, SECOND);
}

#[tokio::test(start_paused = true)]
async fn line_start_does_not_match_inside_a_line() {
    let fixture = ExecFixture::new();
    let wait = pattern("(?m)^x+ready|\\Ay|\\bx+ready");
    let (output, ()) = tokio::join!(fixture.run(ExecCommand { wait, ..command() }), async {
        let (_, fake) = fixture.backend.started(0).await;
        fake.print("a".to_owned() + &"x".repeat(40_000));
        sleep(SECOND).await;
        fake.print("ready\n");
        sleep(SECOND).await;
        fake.print("y\n".repeat(20_000));
        sleep(SECOND).await;
        fake.print("y");
    });
    assert_eq!(output.wall_time, 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn slow_pattern_is_searched_at_intervals() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    // Each `a` may start a match, but none completes before the end.
    let regex = Regex::new("(?-u)a[^z]{3000}c").unwrap();
    let started_at = std::time::Instant::now();
    let (output, ()) = tokio::join!(
        fixture.exec.write_stdin(WriteStdin {
            wait: WaitFor::Pattern(regex),
            yield_time: Some(Duration::from_secs(60)),
            ..write(number, "")
        }),
        async {
            for _ in 0..2000 {
                fake.print("abababababababab\n");
                tokio::task::yield_now().await;
            }
            fake.print("c\n");
        }
    );
    assert!(
        started_at.elapsed() < Duration::from_secs(3),
        "{:?}",
        started_at.elapsed()
    );
    let waited = output.unwrap().wall_time;
    assert!(waited < Duration::from_secs(1), "it was found: {waited:?}");
}
