//! Reported results of sandboxed commands, and their side effects.

use std::fs;

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};

as_every_user!(
    exit_codes_are_passed_through,
    signal_deaths_are_reported,
    sandbox_denials_are_reported,
    programs_that_cannot_run_fail_to_start,
    workspace_is_unchanged_after_the_command,
    many_commands_run_concurrently,
    streams_and_terminals_work,
    everyday_commands_behave_as_without_a_sandbox,
    many_files_can_be_created_concurrently,
    policies_without_restrictions_restrict_nothing,
);

fn script(fixture: &mut SandboxFixture, policy: &SandboxPolicy, script: &str) -> serde_json::Value {
    let mut params = fixture.params(Some(policy), &[]);
    params["argv"] = json!(["sh", "-c", script]);
    params
}

async fn exit_codes_are_passed_through(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for code in [0, 1, 3, 101, 126, 127, 255] {
            for tty in [false, true] {
                let mut params = script(fixture, &policy, &format!("exit {code}"));
                params["tty"] = json!(tty);
                let events = fixture.finish(params).await;
                if events.code() != code || events.exited["sandboxDenied"] != false {
                    let exited = &events.exited;
                    fixture.record_fault(format!("{}: {code} tty {tty}: {exited}", policy.name));
                }
            }
        }
    }
}

async fn signal_deaths_are_reported(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for (signal, name, code) in [
            ("KILL", "SIGKILL", 137),
            ("TERM", "SIGTERM", 143),
            ("SEGV", "SIGSEGV", 139),
            ("SYS", "SIGSYS", 159),
        ] {
            let params = script(fixture, &policy, &format!("kill -{signal} $$"));
            let events = fixture.finish(params).await;
            let (exited, denied) = (&events.exited, signal == "SYS");
            if events.code() != code
                || exited["signal"] != name
                || exited["sandboxDenied"] != denied
            {
                fixture.record_fault(format!("{}: {signal}: {exited}", policy.name));
            }
        }
    }
}

async fn sandbox_denials_are_reported(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for (text, denied) in [
            ("echo x > ../out/file", true),
            ("echo 'it is a READ-ONLY file SYSTEM' >&2; exit 2", true),
            ("echo Operation not permitted; exit 127", true),
            ("echo Permission denied; exit 0", false),
            ("echo no such thing; exit 1", false),
            ("exit 1", false),
            ("true", false),
        ] {
            let params = script(fixture, &policy, text);
            let events = fixture.finish(params).await;
            // A missing file is not a denial.
            let hidden = policy.kind == FilePolicy::Narrow && text.contains("../out");
            if events.exited["sandboxDenied"] != (denied && !hidden) {
                let (name, exited) = (&policy.name, &events.exited);
                let err = events.stream("stderr");
                fixture.record_fault(format!("{name}: {text}: {exited} {err}"));
            }
        }
    }
    // Without a sandbox the same text is not a denial.
    let mut params = fixture.params(None, &[]);
    params["argv"] = json!(["sh", "-c", "echo Operation not permitted; exit 1"]);
    let events = fixture.finish(params).await;
    assert_eq!(events.exited["sandboxDenied"], false);
}

async fn programs_that_cannot_run_fail_to_start(fixture: &mut SandboxFixture) {
    fs::write(fixture.path("work/plain"), "x").unwrap();
    for policy in SandboxPolicy::all(fixture) {
        for (change, words) in [
            (json!({"argv": ["/nothing-of-this-name"]}), "No such file"),
            (json!({"argv": ["nothing-of-this-name"]}), "No such file"),
            (
                json!({"argv": [fixture.text("work/plain")]}),
                "Permission denied",
            ),
            (
                json!({"cwd": "file:///nothing-of-this-name"}),
                "No such file",
            ),
        ] {
            let mut params = script(fixture, &policy, "true");
            crate::client::merge(&mut params, change.clone());
            let id = fixture.client.request("process/start", params).await;
            let answer = fixture.client.answer(id).await;
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            if answer["error"]["code"] != -32603 || !message.contains(words) {
                fixture.record_fault(format!("{}: {change}: {answer}", policy.name));
            }
        }
    }
    // A hidden path cannot be the working directory.
    let narrow = SandboxPolicy::new(fixture, FilePolicy::Narrow, NetworkPolicy::Restricted);
    let mut params = script(fixture, &narrow, "true");
    params["cwd"] = json!(fixture.uri("out"));
    fixture
        .client
        .expect_error(-32603, "process/start", params)
        .await;
}

async fn workspace_is_unchanged_after_the_command(fixture: &mut SandboxFixture) {
    for metadata in ["there", "missing"] {
        if metadata == "missing" {
            fs::remove_dir_all(fixture.path("work/.git")).unwrap();
        }
        let before = (fixture.snapshot("work"), fixture.snapshot("out"));
        for policy in SandboxPolicy::all(fixture) {
            let params = fixture.params(Some(&policy), &["wait"]);
            let id = fixture.start(params).await;
            fixture.client.output_until(&id, "ready\n").await;
            let name = policy.name.clone();
            fixture.unchanged("work", &before.0, &format!("{name} {metadata}, meanwhile"));
            fixture.unchanged("out", &before.1, &format!("{name} {metadata}, meanwhile"));
            let terminate = json!({"processId": id});
            fixture.client.call("process/terminate", terminate).await;
            fixture.end(&id).await;
            fixture.unchanged("work", &before.0, &format!("{name} {metadata}, after"));
            fixture.unchanged("out", &before.1, &format!("{name} {metadata}, after"));
        }
    }
    let above: Vec<String> = fs::read_dir(fixture.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(above.len(), 3, "{above:?}");
}

async fn many_commands_run_concurrently(fixture: &mut SandboxFixture) {
    let policies = SandboxPolicy::all(fixture);
    let mut started = Vec::new();
    for round in 0..3 {
        for policy in &policies {
            let text = format!("read line; echo $line $$ {round}; exit 7");
            let mut params = script(fixture, policy, &text);
            params["pipeStdin"] = json!(true);
            let id = params["processId"].as_str().unwrap().to_owned();
            let request = fixture.client.request("process/start", params).await;
            started.push((request, id, round));
        }
    }
    for (request, id, _) in &started {
        let answer = fixture.client.answer(*request).await;
        assert_eq!(answer["result"]["processId"], json!(id), "{answer}");
    }
    for (_, id, _) in &started {
        let chunk = crate::client::encode(format!("{id}\n").as_bytes());
        let write = json!({"processId": id, "chunk": chunk, "writeId": "1"});
        fixture.client.call("process/write", write).await;
    }
    for (_, id, round) in &started {
        let events = fixture.client.finish(id).await;
        let out = events.stdout();
        let is_own_output =
            out.starts_with(&format!("{id} ")) && out.ends_with(&format!(" {round}\n"));
        if events.code() != 7 || !is_own_output {
            fixture.record_fault(format!("{id}: {} {out:?}", events.code()));
        }
    }
}

async fn streams_and_terminals_work(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        let params = script(fixture, &policy, "echo out; echo err >&2; pwd");
        let events = fixture.finish(params).await;
        let expected = format!("out\n{}\n", fixture.text("work"));
        if (events.stdout(), events.stream("stderr")) != (expected, "err\n".to_owned()) {
            fixture.record_fault(format!("{}: {events:?}", policy.name));
        }
        let mut params = script(
            fixture,
            &policy,
            "test -t 0 && test -t 1 && stty size && echo hi > /dev/tty",
        );
        params["tty"] = json!(true);
        let events = fixture.finish(params).await;
        let text = events.stream("pty");
        if events.code() != 0 || !text.ends_with("hi\r\n") {
            fixture.record_fault(format!("{}: {} {text:?}", policy.name, events.code()));
        }
    }
}

/// Typical build and script commands print the same inside and outside.
async fn everyday_commands_behave_as_without_a_sandbox(fixture: &mut SandboxFixture) {
    let text = "set -e; umask 027
        echo out > /dev/stdout; echo err > /dev/stderr; echo fd > /dev/fd/1
        echo self > /proc/self/fd/1; echo x | tee /dev/stderr > /dev/null
        mkdir -p a/b/c; echo 1 > a/b/c/f; echo 2 >> a/b/c/f; cp -r a a2; mv a2 a3; cat a3/b/c/f
        ln -s a/b link; ls link/; ln a/b/c/f hard; stat -c '%h %a %F' hard a link
        mv -f hard a/b/over; rm -r a3; mkfifo pipe; (echo p > pipe &); cat pipe
        t=$(mktemp -p .); echo tmp > $t; cat $t; rm $t; touch -d @5 old; stat -c %Y old
        echo new > over; echo newer > over2; mv over2 over; cat over; (cd a/b; echo rel > rel); cat a/b/rel
        cd /; echo abs > $OLDPWD/abs; cat $OLDPWD/abs; cd $OLDPWD; rmdir empty 2>/dev/null || echo none
        echo x > missing/x 2>/dev/null || echo nodir; mkdir a 2>/dev/null || echo exists
        echo 7 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj
        echo renamed > /proc/self/comm; cat /proc/$$/comm
        sh -c 'exec 3> three; echo 3 >&3'; cat three; find . -newer old -type d | sort";
    let mut params = fixture.params(None, &[]);
    params["argv"] = json!(["sh", "-c", text]);
    let outside = fixture.finish(params).await;
    assert_eq!(outside.code(), 0, "{}", outside.stream("stderr"));
    for policy in SandboxPolicy::all(fixture) {
        if policy.kind == FilePolicy::ReadOnly {
            continue;
        }
        fixture.reset();
        let params = script(fixture, &policy, text);
        let inside = fixture.finish(params).await;
        let streams = |events: &crate::client::Events| {
            (events.code(), events.stdout(), events.stream("stderr"))
        };
        let (inside, outside) = (streams(&inside), streams(&outside));
        if inside != outside {
            fixture.record_fault(format!("{}: {inside:?}, and not {outside:?}", policy.name));
        }
    }
}

async fn many_files_can_be_created_concurrently(fixture: &mut SandboxFixture) {
    let policy = SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
    let text = "for p in 1 2 3 4 5 6 7 8; do (mkdir d$p; cd d$p; i=0; while [ $i -lt 200 ]; do \
                echo $i > f$i; i=$((i+1)); done; cat f* | sort -n | md5sum) & done; wait; \
                find . -name 'f*' -path './d*' | wc -l";
    let params = script(fixture, &policy, text);
    let events = fixture.finish(params).await;
    let out = events.stdout();
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.pop(), Some("1600"), "{}", events.stream("stderr"));
    assert_eq!(lines.len(), 8, "{out}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{out}");
}

async fn policies_without_restrictions_restrict_nothing(fixture: &mut SandboxFixture) {
    let open = json!({"type": "unrestricted"});
    for (name, permissions) in [
        ("disabled", json!({"type": "disabled"})),
        (
            "external",
            json!({"type": "external", "network": "enabled"}),
        ),
        (
            "unrestricted",
            json!({"type": "managed", "file_system": open, "network": "enabled"}),
        ),
    ] {
        let policy = SandboxPolicy::with(fixture, name, permissions);
        fixture.allowed(&policy, &["write", "@out/file"]).await;
        fixture.allowed(&policy, &["create", "@work/.codex"]).await;
        fixture.allowed(&policy, &["lo-self"]).await;
        fixture.reset();
    }
}
