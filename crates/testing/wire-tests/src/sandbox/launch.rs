//! What is told of a command in a sandbox, and what it leaves behind.

use std::fs;

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};

as_every_user!(
    exit_codes_are_the_commands_own,
    signals_are_told,
    denials_are_told,
    programs_that_cannot_run_are_errors,
    the_workspace_is_left_as_it_was,
    many_commands_run_at_once,
    streams_and_terminals_work,
    everyday_work_goes_on_as_usual,
    many_files_are_made_at_once,
    policies_without_restrictions_restrict_nothing,
);

fn script(ground: &mut Ground, policy: &Policy, script: &str) -> serde_json::Value {
    let mut params = ground.params(Some(policy), &[]);
    params["argv"] = json!(["sh", "-c", script]);
    params
}

async fn exit_codes_are_the_commands_own(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for code in [0, 1, 3, 101, 126, 127, 255] {
            for tty in [false, true] {
                let mut params = script(ground, &policy, &format!("exit {code}"));
                params["tty"] = json!(tty);
                let events = ground.finish(params).await;
                if events.code() != code || events.exited["sandboxDenied"] != false {
                    let exited = &events.exited;
                    ground.fault(format!("{}: {code} tty {tty}: {exited}", policy.name));
                }
            }
        }
    }
}

async fn signals_are_told(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for (signal, name, code) in [
            ("KILL", "SIGKILL", 137),
            ("TERM", "SIGTERM", 143),
            ("SEGV", "SIGSEGV", 139),
            ("SYS", "SIGSYS", 159),
        ] {
            let params = script(ground, &policy, &format!("kill -{signal} $$"));
            let events = ground.finish(params).await;
            let (exited, denied) = (&events.exited, signal == "SYS");
            if events.code() != code
                || exited["signal"] != name
                || exited["sandboxDenied"] != denied
            {
                ground.fault(format!("{}: {signal}: {exited}", policy.name));
            }
        }
    }
}

async fn denials_are_told(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for (text, denied) in [
            ("echo x > ../out/file", true),
            ("echo 'it is a READ-ONLY file SYSTEM' >&2; exit 2", true),
            ("echo Operation not permitted; exit 127", true),
            ("echo Permission denied; exit 0", false),
            ("echo no such thing; exit 1", false),
            ("exit 1", false),
            ("true", false),
        ] {
            let params = script(ground, &policy, text);
            let events = ground.finish(params).await;
            // A file that is not there is no denial in words.
            let hidden = policy.kind == Kind::Narrow && text.contains("../out");
            if events.exited["sandboxDenied"] != (denied && !hidden) {
                let (name, exited) = (&policy.name, &events.exited);
                let err = events.stream("stderr");
                ground.fault(format!("{name}: {text}: {exited} {err}"));
            }
        }
    }
    // Outside, the same words mean nothing.
    let mut params = ground.params(None, &[]);
    params["argv"] = json!(["sh", "-c", "echo Operation not permitted; exit 1"]);
    let events = ground.finish(params).await;
    assert_eq!(events.exited["sandboxDenied"], false);
}

async fn programs_that_cannot_run_are_errors(ground: &mut Ground) {
    fs::write(ground.path("work/plain"), "x").unwrap();
    for policy in Policy::all(ground) {
        for (change, words) in [
            (json!({"argv": ["/nothing-of-this-name"]}), "No such file"),
            (json!({"argv": ["nothing-of-this-name"]}), "No such file"),
            (
                json!({"argv": [ground.text("work/plain")]}),
                "Permission denied",
            ),
            (
                json!({"cwd": "file:///nothing-of-this-name"}),
                "No such file",
            ),
        ] {
            let mut params = script(ground, &policy, "true");
            crate::client::merge(&mut params, change.clone());
            let id = ground.client.request("process/start", params).await;
            let answer = ground.client.answer(id).await;
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            if answer["error"]["code"] != -32603 || !message.contains(words) {
                ground.fault(format!("{}: {change}: {answer}", policy.name));
            }
        }
    }
    // What the view does not show cannot be the working directory.
    let narrow = Policy::new(ground, Kind::Narrow, Network::Restricted);
    let mut params = script(ground, &narrow, "true");
    params["cwd"] = json!(ground.uri("out"));
    ground
        .client
        .expect_error(-32603, "process/start", params)
        .await;
}

async fn the_workspace_is_left_as_it_was(ground: &mut Ground) {
    for metadata in ["there", "missing"] {
        if metadata == "missing" {
            fs::remove_dir_all(ground.path("work/.git")).unwrap();
        }
        let before = (ground.snapshot("work"), ground.snapshot("out"));
        for policy in Policy::all(ground) {
            let params = ground.params(Some(&policy), &["wait"]);
            let id = ground.start(params).await;
            ground.client.output_until(&id, "ready\n").await;
            let name = policy.name.clone();
            ground.unchanged("work", &before.0, &format!("{name} {metadata}, meanwhile"));
            ground.unchanged("out", &before.1, &format!("{name} {metadata}, meanwhile"));
            let terminate = json!({"processId": id});
            ground.client.call("process/terminate", terminate).await;
            ground.end(&id).await;
            ground.unchanged("work", &before.0, &format!("{name} {metadata}, after"));
            ground.unchanged("out", &before.1, &format!("{name} {metadata}, after"));
        }
    }
    let above: Vec<String> = fs::read_dir(ground.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(above.len(), 3, "{above:?}");
}

async fn many_commands_run_at_once(ground: &mut Ground) {
    let policies = Policy::all(ground);
    let mut started = Vec::new();
    for round in 0..3 {
        for policy in &policies {
            let text = format!("read line; echo $line $$ {round}; exit 7");
            let mut params = script(ground, policy, &text);
            params["pipeStdin"] = json!(true);
            let id = params["processId"].as_str().unwrap().to_owned();
            let request = ground.client.request("process/start", params).await;
            started.push((request, id, round));
        }
    }
    for (request, id, _) in &started {
        let answer = ground.client.answer(*request).await;
        assert_eq!(answer["result"]["processId"], json!(id), "{answer}");
    }
    for (_, id, _) in &started {
        let chunk = crate::client::encode(format!("{id}\n").as_bytes());
        let write = json!({"processId": id, "chunk": chunk, "writeId": "1"});
        ground.client.call("process/write", write).await;
    }
    for (_, id, round) in &started {
        let events = ground.client.finish(id).await;
        let out = events.stdout();
        let mine = out.starts_with(&format!("{id} ")) && out.ends_with(&format!(" {round}\n"));
        if events.code() != 7 || !mine {
            ground.fault(format!("{id}: {} {out:?}", events.code()));
        }
    }
}

async fn streams_and_terminals_work(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        let params = script(ground, &policy, "echo out; echo err >&2; pwd");
        let events = ground.finish(params).await;
        let expected = format!("out\n{}\n", ground.text("work"));
        if (events.stdout(), events.stream("stderr")) != (expected, "err\n".to_owned()) {
            ground.fault(format!("{}: {events:?}", policy.name));
        }
        let mut params = script(
            ground,
            &policy,
            "test -t 0 && test -t 1 && stty size && echo hi > /dev/tty",
        );
        params["tty"] = json!(true);
        let events = ground.finish(params).await;
        let text = events.stream("pty");
        if events.code() != 0 || !text.ends_with("hi\r\n") {
            ground.fault(format!("{}: {} {text:?}", policy.name, events.code()));
        }
    }
}

/// What builds and scripts do all day says the same inside and outside.
async fn everyday_work_goes_on_as_usual(ground: &mut Ground) {
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
    let mut params = ground.params(None, &[]);
    params["argv"] = json!(["sh", "-c", text]);
    let outside = ground.finish(params).await;
    assert_eq!(outside.code(), 0, "{}", outside.stream("stderr"));
    for policy in Policy::all(ground) {
        if policy.kind == Kind::ReadOnly {
            continue;
        }
        ground.reset();
        let params = script(ground, &policy, text);
        let inside = ground.finish(params).await;
        let streams = |events: &crate::client::Events| {
            (events.code(), events.stdout(), events.stream("stderr"))
        };
        let (inside, outside) = (streams(&inside), streams(&outside));
        if inside != outside {
            ground.fault(format!("{}: {inside:?}, and not {outside:?}", policy.name));
        }
    }
}

async fn many_files_are_made_at_once(ground: &mut Ground) {
    let policy = Policy::new(ground, Kind::Workspace, Network::Restricted);
    let text = "for p in 1 2 3 4 5 6 7 8; do (mkdir d$p; cd d$p; i=0; while [ $i -lt 200 ]; do \
                echo $i > f$i; i=$((i+1)); done; cat f* | sort -n | md5sum) & done; wait; \
                find . -name 'f*' -path './d*' | wc -l";
    let params = script(ground, &policy, text);
    let events = ground.finish(params).await;
    let out = events.stdout();
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.pop(), Some("1600"), "{}", events.stream("stderr"));
    assert_eq!(lines.len(), 8, "{out}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{out}");
}

async fn policies_without_restrictions_restrict_nothing(ground: &mut Ground) {
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
        let policy = Policy::with(ground, name, permissions);
        ground.allowed(&policy, &["write", "@out/file"]).await;
        ground.allowed(&policy, &["create", "@work/.codex"]).await;
        ground.allowed(&policy, &["lo-self"]).await;
        ground.reset();
    }
}
