//! Resource limits of a process and how exceeding them is reported.

use exec_env::environment::{Command, StartError};
use exec_wire::process::{ExitCause, ProcessLimits};

use crate::{
    difference::Difference,
    followed_process::EventHistory,
    scratch_dir::ScratchDir,
    subject::{Subject, piped},
};

/// Asserts that a limit is refused and returns true if the subject does not support limits.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::NoLimits);
    if assert_unsupported {
        let limits = ProcessLimits {
            wall_ms: Some(300),
            ..ProcessLimits::default()
        };
        let command = subject.sh("exit 0", &[]);
        let error = subject.refused(Command { limits, ..command }).await;
        assert!(matches!(
            error,
            StartError::Refused {
                field: "limits",
                ..
            }
        ));
    }
    assert_unsupported
}

async fn limited(subject: &Subject, command: Command, limits: ProcessLimits) -> EventHistory {
    subject
        .start(Command { limits, ..command })
        .await
        .finish()
        .await
}

pub async fn wall_time_limit_kills_the_tree(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let script =
        r#"exec 9>"$1"; echo held >&9; setsid sleep 1000 & while :; do echo .; sleep 1; done"#;
    let limits = ProcessLimits {
        wall_ms: Some(300),
        ..ProcessLimits::default()
    };
    let told = limited(subject, subject.sh(script, &[lifeline.path()]), limits).await;
    lifeline.held().await;
    lifeline.gone().await;
    let exit = told.exit().unwrap();
    let killed = (137, Some("SIGKILL"), ExitCause::WallLimit);
    assert_eq!((exit.code, exit.signal, exit.cause), killed);
}

pub async fn idle_limit_kills_a_silent_process(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        idle_ms: Some(300),
        ..ProcessLimits::default()
    };
    let told = limited(
        subject,
        subject.sh("echo once; exec sleep 1000", &[]),
        limits,
    )
    .await;
    assert_eq!(told.text(), "once\n");
    let exit = told.exit().unwrap();
    assert_eq!((exit.code, exit.cause), (137, ExitCause::IdleLimit));
}

pub async fn output_resets_the_idle_limit(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        idle_ms: Some(1000),
        ..ProcessLimits::default()
    };
    // Runs for twice the limit but is never silent that long.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.2; done";
    let told = limited(subject, subject.sh(script, &[]), limits).await;
    let exit = told.exit().unwrap();
    assert_eq!((exit.code, exit.cause), (0, ExitCause::Exit));
}

pub async fn input_resets_the_idle_limit(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        idle_ms: Some(1000),
        ..ProcessLimits::default()
    };
    let silent = piped(subject.command(&["sh", "-c", "cat >/dev/null"]));
    let running = subject.start(Command { limits, ..silent }).await;
    let mut beats = tokio::time::interval(std::time::Duration::from_millis(200));
    for _ in 0..10 {
        beats.tick().await;
        running.write(b"x").await;
    }
    running.close_stdin().await;
    assert_eq!(running.finish().await.code(), 0);
}

pub async fn open_file_limit_applies_to_the_process(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        open_files: Some(23),
        ..ProcessLimits::default()
    };
    let told = limited(subject, subject.sh("ulimit -n; ulimit -Hn", &[]), limits).await;
    assert_eq!((told.text().as_str(), told.code()), ("23\n23\n", 0));
}

pub async fn file_size_limit_is_reported_as_a_signal(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.path("file");
    let limits = ProcessLimits {
        file_bytes: Some(4096),
        ..ProcessLimits::default()
    };
    let script = r#"exec head -c 100000 /dev/zero >"$1""#;
    let told = limited(
        subject,
        subject.sh(script, &[file.to_str().unwrap()]),
        limits,
    )
    .await;
    let exit = told.exit().unwrap();
    let killed = (153, Some("SIGXFSZ"), ExitCause::Signal);
    assert_eq!((exit.code, exit.signal, exit.cause), killed);
    assert_eq!(std::fs::metadata(file).unwrap().len(), 4096);
}

pub async fn cpu_time_limit_is_reported_as_a_signal(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        cpu_ms: Some(100),
        ..ProcessLimits::default()
    };
    let told = limited(subject, subject.sh("while :; do :; done", &[]), limits).await;
    let exit = told.exit().unwrap();
    assert_eq!(exit.cause, ExitCause::Signal);
    // If soft and hard limit are equal, the kernel kills without `SIGXCPU`.
    assert!(
        matches!(exit.signal, Some("SIGXCPU" | "SIGKILL")),
        "{exit:?}"
    );
}

pub async fn limits_that_are_not_reached_have_no_effect(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let limits = ProcessLimits {
        wall_ms: Some(60_000),
        idle_ms: Some(60_000),
        cpu_ms: Some(60_000),
        memory_bytes: Some(1 << 30),
        open_files: Some(256),
        file_bytes: Some(1 << 20),
        processes: None,
    };
    let told = limited(subject, subject.sh("echo fine; exit 3", &[]), limits).await;
    assert_eq!((told.text().as_str(), told.code()), ("fine\n", 3));
    assert_eq!(told.exit().unwrap().cause, ExitCause::Exit);
}
