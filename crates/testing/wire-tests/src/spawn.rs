//! Initial state of a child: environment, descriptors, signals, terminal, session.

use serde_json::{Value, json};

use crate::{
    client::{Client, argv_params, script_params, with},
    over_every_transport,
    server::{PATH, Server, Transport, descriptors, until},
};

over_every_transport!(
    environment_is_exactly_the_given_one,
    env_policy_inherits_the_servers_environment,
    secrets_of_the_server_never_reach_a_child,
    credentials_of_the_server_are_not_inherited_but_can_be_set,
    metadata_is_exported,
    program_is_looked_up_in_the_childs_path,
    relative_program_is_resolved_from_the_working_directory,
    arg0_changes_only_the_name,
    child_leads_its_own_session,
    child_has_default_signals_and_three_descriptors,
    terminal_child_has_three_descriptors,
    finished_process_holds_no_descriptor,
    working_directory_may_have_any_name,
);

async fn output_of(client: &mut Client, id: &str, params: Value) -> String {
    client.start_with(params, json!({})).await;
    let events = client.finish(id).await;
    format!("{}{}", events.stdout(), events.stream("pty"))
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

async fn environment_is_exactly_the_given_one(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let params = with(
        argv_params("p", &["/usr/bin/env"]),
        json!({"env": {"A": "1", "B": "é ="}}),
    );
    assert_eq!(
        sorted(&output_of(&mut client, "p", params).await),
        ["A=1", "B=é ="]
    );
    let params = with(argv_params("q", &["/usr/bin/env"]), json!({"env": {}}));
    assert_eq!(output_of(&mut client, "q", params).await, "");
}

async fn env_policy_inherits_the_servers_environment(transport: Transport) {
    let script = "export MY_TOKEN=t AWS_X=a OTHER=o; exec \"$0\" \"$@\"";
    let mut server = Server::start_by(script, transport, &[]).await;
    let mut client = server.ready().await;
    let mut run = async |id: &str, policy: Value| {
        let mut all = json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []});
        crate::client::merge(&mut all, policy);
        let change = json!({"envPolicy": all, "env": {"LAID": "over"}});
        let text = output_of(
            &mut client,
            id,
            with(argv_params(id, &["/usr/bin/env"]), change),
        )
        .await;
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0.to_owned()))
            .collect();
        names.sort_unstable();
        names.retain(|name| {
            !["PWD", "OLDPWD", "_", "SHLVL", "EXEC_SERVER_HOME"].contains(&name.as_str())
        });
        names.join(" ")
    };
    assert_eq!(run("a", json!({})).await, "AWS_X HOME LAID OTHER PATH");
    assert_eq!(
        run("b", json!({"ignoreDefaultExcludes": true})).await,
        "AWS_X HOME LAID MY_TOKEN OTHER PATH"
    );
    assert_eq!(run("c", json!({"inherit": "core"})).await, "HOME LAID PATH");
    assert_eq!(run("d", json!({"inherit": "none"})).await, "LAID");
    let set = json!({"exclude": ["aws_*", "H?ME"], "set": {"AWS_Y": "1"}});
    assert_eq!(run("e", set).await, "AWS_Y LAID OTHER PATH");
    assert_eq!(
        run("f", json!({"includeOnly": ["o*", "p?th"]})).await,
        "LAID OTHER PATH"
    );
}

async fn secrets_of_the_server_never_reach_a_child(transport: Transport) {
    let names = [
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
        "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
        "openai_identity_token_file",
    ];
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let env: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), json!("secret")))
        .collect();
    let params = with(argv_params("p", &["/usr/bin/env"]), json!({"env": env}));
    assert_eq!(output_of(&mut client, "p", params).await, "");
}

async fn credentials_of_the_server_are_not_inherited_but_can_be_set(transport: Transport) {
    let names = [
        "CODEX_API_KEY",
        "CODEX_ACCESS_TOKEN",
        "EXEC_SERVER_TOKEN",
        "EXEC_SERVER_REMOTE_TOKEN",
        "EXEC_SERVER_HUB_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    ];
    let exports = names.map(|name| format!("export {name}=theirs; ")).concat();
    let script = format!("{exports} export OTHER_KEY=o; exec \"$0\" \"$@\"");
    let mut server = Server::start_by(&script, transport, &[]).await;
    let mut client = server.ready().await;
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [],
        "set": {"CODEX_API_KEY": "set"}, "includeOnly": []});
    let change = json!({"envPolicy": policy, "env": {"AWS_SECRET_ACCESS_KEY": "laid over"}});
    let params = with(argv_params("p", &["/usr/bin/env"]), change);
    let text = output_of(&mut client, "p", params).await;
    let mut found = sorted(&text);
    found.retain(|line| line.contains("_KEY") || line.contains("_TOKEN"));
    assert_eq!(
        found,
        [
            "AWS_SECRET_ACCESS_KEY=laid over",
            "CODEX_API_KEY=set",
            "OTHER_KEY=o"
        ]
    );
}

async fn metadata_is_exported(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let thread = "0b0c2d9e-6f1a-4b43-9a57-3c1f6f0e2a11";
    let metadata = json!({"metadata": {"threadId": thread, "toolCallId": "call 1"}, "env": {}});
    let text = output_of(
        &mut client,
        "p",
        with(argv_params("p", &["/usr/bin/env"]), metadata),
    )
    .await;
    assert_eq!(
        sorted(&text),
        [
            format!("CODEX_THREAD_ID={thread}").as_str(),
            "CODEX_TOOL_CALL_ID=call 1"
        ]
    );
}

fn write_program(server: &Server, name: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = server.path(name);
    std::fs::write(&path, "#!/bin/sh\necho mine\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

async fn program_is_looked_up_in_the_childs_path(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    write_program(&server, "my-program");
    let program_dir = server.dir.path().display().to_string();
    for (id, tty) in [("p", false), ("q", true)] {
        let change = json!({"env": {"PATH": format!("/nowhere:{program_dir}:{PATH}")}, "tty": tty});
        let params = with(argv_params(id, &["my-program"]), change);
        assert_eq!(output_of(&mut client, id, params).await.trim(), "mine");
    }
    client
        .expect_error(-32603, "process/start", argv_params("x", &["my-program"]))
        .await;
    let bare = with(
        argv_params("y", &["sh", "-c", "echo found"]),
        json!({"env": {}}),
    );
    assert_eq!(
        output_of(&mut client, "y", bare).await,
        "found\n",
        "no default PATH"
    );
}

async fn relative_program_is_resolved_from_the_working_directory(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    std::fs::create_dir(server.path("sub")).unwrap();
    write_program(&server, "sub/my-program");
    let cwd = json!({"cwd": format!("file://{}", server.dir.path().display())});
    let params = with(argv_params("p", &["sub/my-program"]), cwd);
    assert_eq!(output_of(&mut client, "p", params).await, "mine\n");
    client
        .expect_error(
            -32603,
            "process/start",
            argv_params("q", &["sub/my-program"]),
        )
        .await;
}

async fn arg0_changes_only_the_name(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, tty) in [("p", false), ("q", true)] {
        let params = with(
            script_params(id, "cat /proc/$$/cmdline"),
            json!({"arg0": "renamed", "tty": tty}),
        );
        let text = output_of(&mut client, id, params).await;
        assert!(text.starts_with("renamed\0-c\0"), "{text:?}");
    }
}

async fn child_leads_its_own_session(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, tty) in [("p", false), ("q", true)] {
        let params = with(
            script_params(id, "echo $$; cat /proc/$$/stat"),
            json!({"tty": tty}),
        );
        let text = output_of(&mut client, id, params).await;
        let (pid, stat) = text.split_once('\n').unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        assert_eq!(
            (fields[2], fields[3]),
            (pid.trim(), pid.trim()),
            "wrong process group or session"
        );
        assert_eq!(fields[4] != "0", tty, "controlling terminal");
    }
}

const FDS: &str = r#"for fd in /proc/$$/fd/*; do [ -e "$fd" ] && echo "${fd##*/}"; done
    grep -E 'Sig(Ign|Blk)' /proc/self/status"#;

fn check_fresh(text: &str) {
    let (fds, signals): (Vec<&str>, Vec<&str>) = text
        .lines()
        .map(str::trim)
        .partition(|line| !line.contains(':'));
    assert_eq!(fds, ["0", "1", "2"], "{text}");
    assert_eq!(signals.len(), 2, "{text}");
    assert!(
        signals
            .iter()
            .all(|line| line.ends_with("\t0000000000000000")),
        "{text}"
    );
}

/// Launcher that ignores signals, blocks none, and leaves descriptors open.
const UNUSUAL_LAUNCHER: &str = "trap '' INT QUIT HUP PIPE USR1 TERM CHLD; exec 3</dev/null 5>/dev/null 9</; exec \"$0\" \"$@\"";

async fn child_has_default_signals_and_three_descriptors(transport: Transport) {
    let mut server = Server::start_by(UNUSUAL_LAUNCHER, transport, &[]).await;
    let mut client = server.ready().await;
    for (id, stdin) in [("p", false), ("q", true)] {
        let params = with(script_params(id, FDS), json!({"pipeStdin": stdin}));
        check_fresh(&output_of(&mut client, id, params).await);
    }
    client.start("i", "exec sleep 1000").await;
    client
        .call(
            "process/signal",
            json!({"processId": "i", "signal": "interrupt"}),
        )
        .await;
    assert_eq!(client.finish("i").await.code(), 130);
}

async fn terminal_child_has_three_descriptors(transport: Transport) {
    let mut server = Server::start_by(UNUSUAL_LAUNCHER, transport, &[]).await;
    let mut client = server.ready().await;
    let params = with(script_params("p", FDS), json!({"tty": true}));
    check_fresh(&output_of(&mut client, "p", params).await);
}

async fn finished_process_holds_no_descriptor(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let pid = server.pid();
    client.start("warm-up", "true").await;
    client.finish("warm-up").await;
    let before = descriptors(pid);
    for number in 0..60 {
        let id = format!("p{number}");
        let change = json!({"tty": number % 3 == 0, "pipeStdin": number % 3 == 1});
        client
            .start_with(script_params(&id, "echo x"), change)
            .await;
        client.finish(&id).await;
    }
    for number in 0..5 {
        let id = format!("fail{number}");
        client
            .expect_error(
                -32603,
                "process/start",
                argv_params(&id, &["no-such-program"]),
            )
            .await;
    }
    until("descriptors are given back", || descriptors(pid) <= before).await;
}

async fn working_directory_may_have_any_name(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    std::fs::create_dir(server.path("a b%#?é")).unwrap();
    let base = server.dir.path().canonicalize().unwrap();
    let cwd = format!("file://{}/a%20b%25%23%3F%C3%A9", base.display());
    let params = with(argv_params("p", &["pwd"]), json!({"cwd": cwd}));
    assert_eq!(
        output_of(&mut client, "p", params).await,
        format!("{}/a b%#?é\n", base.display())
    );
}
