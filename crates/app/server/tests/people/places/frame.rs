//! What is around the commands: help, completions, the manual, measurements.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use tokio::process::Command;

use crate::cast::{OutputSoon, Person};

const COMMANDS: [&str; 25] = [
    "run",
    "shell",
    "ps",
    "logs",
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
    "env",
    "mcp",
    "bench",
    "completions",
    "man",
    "doctor",
    "forward",
    "hub",
];

#[tokio::test]
async fn shells_take_the_completions() {
    let person = Person::new();
    for shell in ["bash", "zsh"] {
        let script = person.run(["completions", shell]).await.well();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        let file = person.keep("completions", &script);
        let mut check = Command::new(shell);
        let checked = check.arg("-n").arg(&file).stdin(Stdio::null());
        let checked = checked.output_soon().await;
        assert_eq!(checked.well(), "", "{shell}");
    }
    let fish = person.run(["completions", "fish"]).await.well();
    for command in COMMANDS {
        assert!(fish.contains(&format!("-a \"{command}\"")), "{command}");
    }
    let unknown = person.run(["completions", "tcsh"]).await;
    assert_eq!(unknown.status, Some(2), "{unknown:?}");
}

#[tokio::test]
async fn bash_completes_options_of_commands() {
    let person = Person::new();
    let script = person.run(["completions", "bash"]).await.well();
    let file = person.keep("completions", &script);
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
        let completed = completed.output_soon().await.well();
        assert_eq!(completed.trim(), expected, "{line}");
    }
}

#[tokio::test]
async fn tab_completes_environments_and_processes_and_no_flags_before_commands() {
    let person = Person::new();
    for name in ["box", "build"] {
        person
            .run(["env", "add", name, "ws://127.0.0.1:1"])
            .await
            .well();
    }
    let script = person.run(["completions", "bash"]).await.well();
    let file = person.keep("completions", &script);
    let complete = async |line: &str| {
        let typed = format!(
            "exec-server() {{ '{}' \"$@\"; }}; . '{}'; COMP_WORDS=(exec-server {line}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _exec_server_complete exec-server \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            crate::cast::product().display(),
            file.display()
        );
        let mut bash = person.program(Path::new("bash"), ["--norc", "-c", &typed]);
        bash.output_soon().await.well().trim_end().to_owned()
    };
    // No server is started to list processes of one.
    assert_eq!(complete("kill ''").await, "");
    assert_eq!(person.local_server(), None);
    for (name, seconds) in [("short", "0"), ("serve", "1000")] {
        let run = ["run", "-d", "--name", name, "sleep", seconds];
        person.run(run).await.well();
    }
    assert_eq!(person.run(["wait", "short"]).await.status, Some(0));
    for (line, expected) in [
        ("run -E b", "box build"),
        ("env rm bu", "build"),
        ("env default ''", "local box build"),
        ("logs s", "serve short"),
        ("kill s", "serve"),
        ("kill -E box s", ""),
        ("ps rm ''", "short"),
        ("wa", "wait watch"),
        ("run --sand", "--sandbox"),
    ] {
        assert_eq!(complete(line).await, expected, "{line}");
    }
    let commands = complete("''").await;
    assert!(commands.contains("run shell ps"), "{commands}");
    assert!(!commands.contains(" -"), "{commands}");
    // The functions of the other shells are there, and zsh's does what it should.
    let zsh = person.run(["completions", "zsh"]).await.well();
    for used in [
        ":NAME|URL:_exec_server_environments'",
        ":_exec_server_processes'",
    ] {
        assert!(zsh.contains(used), "{used}");
    }
    let functions = zsh.split("_exec-server() {").next().unwrap();
    let typed = format!(
        "exec-server() {{ '{}' \"$@\"; }}; compadd() {{ print -r -- $found; }}; \
         words=(exec-server kill ''); {functions}\n_exec_server_processes; _exec_server_environments",
        crate::cast::product().display(),
    );
    let mut shell = person.program(Path::new("zsh"), ["-f", "-c", &typed]);
    let said = shell.output_soon().await.well();
    assert_eq!(said, "serve\nlocal box build\n");
    let fish = person.run(["completions", "fish"]).await.well();
    assert!(fish.contains("-s E -l env"), "{fish}");
    assert!(fish.contains("(__exec_server_list environments)"), "{fish}");
    assert!(!fish.contains("__fish_complete_users"), "{fish}");
}

#[tokio::test]
async fn a_doctor_examines_the_machine_of_an_environment() {
    let person = Person::new();
    let server = person.server(&[]).await;
    let line = ["doctor", "--json", "-E", &server.url];
    let there = person.run(line).await;
    let here = person.run(["doctor", "--json"]).await;
    let report = |ended: &crate::cast::Ended| -> Value {
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let (there, here) = ((there.status, report(&there)), (here.status, report(&here)));
    assert_eq!(there.0, here.0);
    assert!(there.1["abilities"].is_object(), "{}", there.1);
    assert_eq!(there.1["abilities"], here.1["abilities"]);
    let unknown = person.run(["doctor", "--env", "nowhere"]).await;
    unknown.failed(78, &["nowhere"]);
}

#[tokio::test]
async fn the_manual_has_every_command() {
    let person = Person::new();
    let page = person.run(["man"]).await.well();
    assert!(page.contains(".TH exec-server 1"), "{page}");
    assert!(
        page.contains("EXIT STATUS") || page.contains("Exit status"),
        "{page}"
    );
    let directory = person.home().join("man1");
    let written = person
        .run(["man", "--dir", directory.to_str().unwrap()])
        .await;
    assert_eq!(written.well(), "");
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
async fn help_names_what_people_use_before_what_servers_do() {
    let person = Person::new();
    let help = person.run(["--help"]).await.well();
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
        let own = person.run([command, "--help"]).await.well();
        assert!(own.contains("Usage: exec-server"), "{own}");
    }
}

#[tokio::test]
async fn help_is_a_command_as_well() {
    let person = Person::new();
    let all = person.run(["help"]).await.well();
    assert_eq!(all, person.run(["--help"]).await.well());
    for line in [&["run"][..], &["env", "add"], &["hub"]] {
        let help = [&["help"][..], line].concat();
        let flag = [line, &["--help"]].concat();
        let (help, flag) = (
            person.run(&help).await.well(),
            person.run(&flag).await.well(),
        );
        assert_eq!(help, flag, "{line:?}");
    }
    let add = person.run(["help", "env", "add"]).await.well();
    assert!(add.contains("env add [OPTIONS] <NAME> <URL>\n"), "{add}");
    let wrong = person.run(["help", "nothing"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}

#[tokio::test]
async fn a_bench_measures_every_side_and_leaves_nothing() {
    let person = Person::new();
    let scratch = person.home().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let person = person.with("TMPDIR", scratch.to_str().unwrap());
    let said = person
        .run(["bench", "--seconds", "1", "--json"])
        .await
        .well();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["environment"], "local");
    let measured = said["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 6, "{said}");
    for one in measured {
        let count = one["p50Micros"].as_u64().or(one["bytesPerSecond"].as_u64());
        assert!(count.unwrap_or_default() > 0, "{one}");
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    let table = person.run(["bench", "--seconds", "1"]).await.well();
    assert_eq!(table.lines().count(), 8, "{table}");
    let wrong = person.run(["bench", "--seconds", "0"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}
