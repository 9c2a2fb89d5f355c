//! Tests of help, completions, the manual and `bench`.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use tokio::process::Command;

use crate::{
    processes::terminal_window::TerminalWindow,
    test_user::{OutputSoon, TestUser},
};

const COMMANDS: &[&str] = &[
    "run",
    "shell",
    "ps",
    "logs",
    "replay",
    "history",
    "attach",
    "kill",
    "wait",
    "cp",
    "ls",
    "mkdir",
    "rm",
    "mv",
    "cat",
    "edit",
    "find",
    "grep",
    "watch",
    "use",
    "tunnel",
    "ports",
    "env",
    "connect",
    "dist",
    "mcp",
    "bench",
    "conformance",
    "completions",
    "man",
    "schema",
    "doctor",
    "forward",
    "join",
    "hub",
];

#[tokio::test]
async fn shells_accept_the_completion_scripts() {
    let user = TestUser::new();
    for shell in ["bash", "zsh"] {
        let script = user.run(["completions", shell]).await.expect_success();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        let file = user.keep("completions", &script);
        let mut check = Command::new(shell);
        let checked = check.arg("-n").arg(&file).stdin(Stdio::null());
        let checked = checked.output_soon().await;
        assert_eq!(checked.expect_success(), "", "{shell}");
    }
    let fish = user.run(["completions", "fish"]).await.expect_success();
    for command in COMMANDS {
        assert!(fish.contains(&format!("-a \"{command}\"")), "{command}");
    }
    let unknown = user.run(["completions", "tcsh"]).await;
    assert_eq!(unknown.status, Some(2), "{unknown:?}");
}

#[tokio::test]
async fn bash_completes_options_of_commands() {
    let user = TestUser::new();
    let script = user.run(["completions", "bash"]).await.expect_success();
    let file = user.keep("completions", &script);
    for (line, expected) in [
        ("run --sand", "--sandbox"),
        ("run --sandbox read", "read-only"),
        ("env add --token-f", "--token-file"),
    ] {
        let typed = format!(
            ". '{}'; COMP_WORDS=(exec-server {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _exec__server exec-server \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let mut bash = Command::new("bash");
        let completed = bash.args(["--norc", "-c", &typed]).stdin(Stdio::null());
        let completed = completed.output_soon().await.expect_success();
        assert_eq!(completed.trim(), expected, "{line}");
    }
}

#[tokio::test]
async fn tab_completes_environments_and_processes_but_no_flags_first() {
    let user = TestUser::new();
    for name in ["box", "build"] {
        user.run(["env", "add", name, "ws://127.0.0.1:1"])
            .await
            .expect_success();
    }
    let script = user.run(["completions", "bash"]).await.expect_success();
    let file = user.keep("completions", &script);
    let complete = async |line: &str| {
        let words = line.replace("''", "");
        let typed = format!(
            "exec-server() {{ '{}' \"$@\"; }}; . '{}'; COMP_WORDS=(exec-server {line}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             COMP_LINE='exec-server {words}'; COMP_POINT=${{#COMP_LINE}}; \
             _exec_server_complete exec-server \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            crate::test_user::product().display(),
            file.display()
        );
        let mut bash = user.program(Path::new("bash"), ["--norc", "-c", &typed]);
        bash.output_soon()
            .await
            .expect_success()
            .trim_end()
            .to_owned()
    };
    // Listing processes starts no server.
    assert_eq!(complete("kill ''").await, "");
    assert_eq!(user.local_server(), None);
    for (name, seconds) in [("short", "0"), ("serve", "1000")] {
        let run = ["run", "-d", "--name", name, "sleep", seconds];
        user.run(run).await.expect_success();
    }
    assert_eq!(user.run(["wait", "short"]).await.status, Some(0));
    for (line, expected) in [
        ("run -E b", "box build"),
        ("env rm bu", "build"),
        ("env default ''", "local box build"),
        ("logs s", "serve short"),
        ("kill s", "serve"),
        ("kill -E box s", ""),
        ("run -E", ""),
        (
            "run -E ''",
            "local box build ssh: docker: podman: k8s: exec:",
        ),
        ("run --env=bu", "build"),
        ("use b", "box build"),
        ("connect ''", "ssh: docker: podman: k8s: exec:"),
        ("env add far s", "ssh:"),
        ("env add b", ""),
        ("tunnel --process s", "serve"),
        ("ps rm ''", "short"),
        ("wa", "wait watch"),
        ("run --sand", "--sandbox"),
    ] {
        assert_eq!(complete(line).await, expected, "{line}");
    }
    let commands = complete("''").await;
    assert!(commands.contains("run shell ps"), "{commands}");
    assert!(!commands.contains(" -"), "{commands}");
    // The functions of the other shells exist, and zsh's works.
    let zsh = user.run(["completions", "zsh"]).await.expect_success();
    for used in [
        ":NAME|URL|TARGET:_exec_server_environments_or_targets'",
        ":_exec_server_environments'",
        ":_exec_server_targets'",
        ":_exec_server_processes'",
    ] {
        assert!(zsh.contains(used), "{used}");
    }
    let functions = zsh.split("_exec-server() {").next().unwrap();
    let typed = format!(
        "exec-server() {{ '{}' \"$@\"; }}; \
         compadd() {{ local names=(${{(P)@[-1]}}); (( $#names )) && print -r -- $names; }}; \
         words=(exec-server kill '' after); CURRENT=3; {functions}\n\
         _exec_server_processes; _exec_server_environments; _exec_server_environments_or_targets",
        crate::test_user::product().display(),
    );
    let mut shell = user.program(Path::new("zsh"), ["-f", "-c", &typed]);
    let output = shell.output_soon().await.expect_success();
    assert_eq!(
        output,
        "serve\nlocal box build\nlocal box build\nssh: docker: podman: k8s: exec:\n"
    );
    let fish = user.run(["completions", "fish"]).await.expect_success();
    assert!(fish.contains("-s E -l env"), "{fish}");
    assert!(fish.contains("(__exec_server_list environments)"), "{fish}");
    let targets = "(__exec_server_list environments-or-targets)";
    assert!(fish.contains(targets), "{fish}");
    assert!(!fish.contains("__fish_complete_users"), "{fish}");
}

#[tokio::test]
async fn tab_completes_targets_in_bash_which_breaks_words_at_colons() {
    let user = TestUser::new();
    let script = user.run(["completions", "bash"]).await.expect_success();
    let file = user.keep("completions", &script);
    std::fs::create_dir(user.home().join(".ssh")).unwrap();
    std::fs::write(
        user.home().join(".ssh/config"),
        "Host box build\nHost *.x\n",
    )
    .unwrap();
    let startup = format!(
        "exec-server() {{\n\
         \x20   case $1 in completions) '{}' \"$@\" ;; *) echo \"typed: $*\" ;; esac\n}}\n\
         . '{}'\nPS1='ready> '\n",
        crate::test_user::product().display(),
        file.display()
    );
    let startup = user.keep("startup", &startup);
    let user = user
        .with("TERM", "dumb")
        .with("EXEC_SERVER_DOCKER", "echo web; true");
    let line = ["--noprofile", "--rcfile", startup.to_str().unwrap(), "-i"];
    let command = user.program(Path::new("/bin/bash"), line);
    let mut window = TerminalWindow::open(&command, (24, 200));
    window.shows("ready> ").await;
    // Each Tab completes what is unambiguous; a space follows what is complete.
    window.types("exec-server run -E do\tw\t-E ssh:me@bu\t--env=ssh:bo\t--\r");
    let typed = "typed: run -E docker:web -E ssh:me@build --env=ssh:box --\r\n";
    window.shows(typed).await;
    window.types("exit\r");
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn tab_does_not_connect_to_targets() {
    let user = TestUser::new();
    let marker = user.home().join("connected");
    let touch = format!("touch {}; false", marker.display());
    let target = format!("exec:{touch}");
    for (name, way) in [
        ("far", &[target.as_str()][..]),
        ("program", &["--command", "sh", "-c", &touch]),
    ] {
        let add = [&["env", "add", name][..], way].concat();
        user.run(add).await.expect_success();
    }
    for env in [target.as_str(), "far", "program"] {
        let list = ["completions", "--list", "processes", "--", "exec-server"];
        let line = [&list[..], &["kill", "-E", env, ""]].concat();
        assert_eq!(user.run(line).await.expect_success(), "", "{env}");
        assert!(!marker.exists(), "{env}");
    }
}

#[tokio::test]
async fn doctor_examines_a_remote_machine() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let line = ["doctor", "--json", "-E", &server.url];
    let there = user.run(line).await;
    let here = user.run(["doctor", "--json"]).await;
    let report = |ended: &crate::test_user::CommandResult| -> Value {
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let (there, here) = ((there.status, report(&there)), (here.status, report(&here)));
    assert_eq!(there.0, here.0);
    assert!(there.1["abilities"].is_object(), "{}", there.1);
    assert_eq!(there.1["abilities"], here.1["abilities"]);
    let unknown = user.run(["doctor", "--env", "nowhere"]).await;
    unknown.failed(78, &["nowhere"]);
}

#[tokio::test]
async fn schema_of_the_protocol_is_printed() {
    let user = TestUser::new();
    let schema = user.run(["schema"]).await.expect_success();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let start = &schema["x-requests"]["process/start"];
    assert_eq!(start["params"]["$ref"], "#/$defs/StartProcess");
    assert!(schema["$defs"]["StartProcess"].is_object());
    let openrpc = user.run(["schema", "--openrpc"]).await.expect_success();
    let openrpc: Value = serde_json::from_str(&openrpc).unwrap();
    assert_eq!(openrpc["openrpc"], "1.3.2");
    assert_eq!(openrpc["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn manual_lists_every_command() {
    let user = TestUser::new();
    let page = user.run(["man"]).await.expect_success();
    assert!(page.contains(".TH exec-server 1"), "{page}");
    assert!(
        page.contains("EXIT STATUS") || page.contains("Exit status"),
        "{page}"
    );
    let directory = user.home().join("man1");
    let written = user
        .run(["man", "--dir", directory.to_str().unwrap()])
        .await;
    assert_eq!(written.expect_success(), "");
    for command in COMMANDS {
        assert!(
            page.contains(&format!("exec\\-server\\-{command}(1)")),
            "{command}"
        );
        let own = std::fs::read_to_string(directory.join(format!("exec-server-{command}.1")));
        assert!(own.unwrap().contains(".SH SYNOPSIS"), "{command}");
    }
    assert!(directory.join("exec-server-env-add.1").exists());
}

#[tokio::test]
async fn help_lists_user_examples_before_server_examples() {
    let user = TestUser::new();
    let help = user.run(["--help"]).await.expect_success();
    let at = |text: &str| {
        help.find(text)
            .unwrap_or_else(|| panic!("{text} in {help}"))
    };
    assert!(at("  run ") < at("  env ") && at("  env ") < at("  doctor "));
    assert!(
        at("exec-server run") < at("127  command not found"),
        "{help}"
    );
    for command in COMMANDS {
        let own = user.run([command, "--help"]).await.expect_success();
        assert!(own.contains("Usage: exec-server"), "{own}");
    }
}

#[tokio::test]
async fn help_is_also_a_command() {
    let user = TestUser::new();
    let all = user.run(["help"]).await.expect_success();
    assert_eq!(all, user.run(["--help"]).await.expect_success());
    for line in [&["run"][..], &["env", "add"], &["hub"]] {
        let help = [&["help"][..], line].concat();
        let flag = [line, &["--help"]].concat();
        let (help, flag) = (
            user.run(&help).await.expect_success(),
            user.run(&flag).await.expect_success(),
        );
        assert_eq!(help, flag, "{line:?}");
    }
    let add = user.run(["help", "env", "add"]).await.expect_success();
    assert!(add.contains("env add [OPTIONS] <NAME> <URL>\n"), "{add}");
    assert!(add.contains("env add [OPTIONS] <NAME> <TARGET>\n"), "{add}");
    assert!(add.contains("env add dev ssh:"), "{add}");
    let wrong = user.run(["help", "nothing"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn bench_measures_everything_and_leaves_nothing() {
    let user = TestUser::new();
    let scratch = user.home().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let user = user.with("TMPDIR", scratch.to_str().unwrap());
    let output = user
        .run(["bench", "--seconds", "1", "--json"])
        .await
        .expect_success();
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output["environment"], "local");
    let measured = output["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 6, "{output}");
    for one in measured {
        let count = one["p50Micros"].as_u64().or(one["bytesPerSecond"].as_u64());
        assert!(count.unwrap_or_default() > 0, "{one}");
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    let table = user.run(["bench", "--seconds", "1"]).await.expect_success();
    assert_eq!(table.lines().count(), 8, "{table}");
    let wrong = user.run(["bench", "--seconds", "0"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}
