//! Tests of invites: real hub, executors and harnesses.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};

use crate::test_user::{CommandResult, Hub, OutputSoon, TestUser, within_timeout};

/// Data directory of [`Hub`].
fn data(user: &TestUser) -> PathBuf {
    user.home().join("hub")
}

/// Creates an invite with these flags. Returns the line.
async fn invite(user: &TestUser, flags: &[&str]) -> String {
    let mut command = user.command(["hub", "invite", "--data-dir"]);
    let invited = command.arg(data(user)).args(flags).output_soon().await;
    assert_eq!(invited.status, Some(0), "{invited:?}");
    assert_eq!(invited.stderr.lines().count(), 1, "{invited:?}");
    let line = invited.stdout.trim_end().to_owned();
    assert!(!line.contains(char::is_whitespace), "{line}");
    line
}

/// Adds an environment.
async fn add(user: &TestUser, name: &str, line: &str) -> CommandResult {
    user.run(["env", "add", name, "--invite", line]).await
}

/// Starts `join` and waits until the executor is online.
async fn join(user: &TestUser, line: &str) -> Child {
    let mut command = user.command(["join", line]);
    command.env_remove("EXEC_SERVER_IDLE_EXIT");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let online = within_timeout(lines.next_line()).await.unwrap();
    assert_eq!(online.as_deref(), Some("online box-7"));
    child
}

/// Returns the files with tokens and claims.
fn token_files(user: &TestUser) -> Vec<PathBuf> {
    let entries = fs::read_dir(user.home().join("no-settings/tokens"));
    let entries = entries.into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn two_invites_connect_a_machine_and_a_user_through_a_hub() {
    let (operator, machine, person) = (TestUser::new(), TestUser::new(), TestUser::new());
    let mut hub = Hub::start(&operator).await;
    let machine_line = invite(&operator, &["--name", "box-7"]).await;
    let executor = join(&machine, &machine_line).await;
    let [token] = &token_files(&machine)[..] else {
        panic!("{:?}", token_files(&machine));
    };
    assert_eq!((mode(token), mode(token.parent().unwrap())), (0o600, 0o700));

    let line = invite(&operator, &["--name", "box-7", "--role", "harness"]).await;
    add(&person, "box", &line).await.expect_success();
    let [token] = &token_files(&person)[..] else {
        panic!("{:?}", token_files(&person));
    };
    assert_eq!(mode(token), 0o600);
    let file = fs::read_to_string(person.environments()).unwrap();
    assert!(file.contains("environment_id = \"box-7\""), "{file}");
    let said = person.run(["run", "-E", "box", "--", "echo", "hi"]).await;
    assert_eq!(said.expect_success(), "hi\n");

    // The hub refuses a used invite to others, and accepts it again from its claimant.
    let stranger = TestUser::new();
    let again = stranger.run(["join", &machine_line]).await;
    again.failed(77, &["has been used", "hub invite"]);
    let again = stranger.run(["env", "add", "box", "--invite", &line]).await;
    again.failed(77, &["has been used", "hub invite"]);
    assert_eq!(token_files(&stranger), Vec::<PathBuf>::new());
    assert!(!stranger.environments().exists());
    drop(executor);
    let executor = join(&machine, &machine_line).await;

    // Tokens survive a restart of the hub, and end when they are revoked.
    hub.restart(&operator).await;
    let said = person
        .run(["run", "-E", "box", "--", "echo", "again"])
        .await;
    assert_eq!(said.expect_success(), "again\n");
    let listed = ["hub", "token", "list", "--data-dir"];
    let mut list = operator.command(listed);
    let list = list.arg(data(&operator)).output_soon().await;
    let list = list.expect_success();
    let id = list
        .lines()
        .find(|row| row.contains("harness  "))
        .and_then(|row| row.split_whitespace().next());
    let mut revoke = operator.command(["hub", "token", "revoke", id.unwrap(), "--data-dir"]);
    let revoked = revoke.arg(data(&operator)).output_soon().await;
    assert_eq!(revoked.status, Some(0), "{revoked:?}");
    within_timeout(async {
        while person.run(["run", "-E", "box", "true"]).await.status != Some(77) {}
    })
    .await;
    drop(executor);
}

#[tokio::test]
async fn exactly_one_of_many_users_redeems_an_invite() {
    let operator = TestUser::new();
    let _hub = Hub::start(&operator).await;
    let line = invite(&operator, &["--name", "box-*", "--role", "harness"]).await;
    let persons: Vec<_> = (0..6).map(|_| TestUser::new()).collect();
    let added = persons.iter().map(|person| add(person, "box", &line));
    let added = futures_util::future::join_all(added).await;
    let (winners, others): (Vec<_>, Vec<_>) =
        added.iter().partition(|added| added.status == Some(0));
    assert_eq!(winners.len(), 1, "{added:?}");
    for other in others {
        other.failed(77, &["has been used"]);
    }
    let stored = persons.iter().map(|person| token_files(person).len());
    assert_eq!(stored.sum::<usize>(), 1);
}

#[tokio::test]
async fn invites_that_cannot_be_used_are_refused_with_the_next_step() {
    let (operator, person) = (TestUser::new(), TestUser::new());
    // The URL of a hub that never ran is unknown.
    let invite_flags = ["hub", "invite", "--name=box-7", "--data-dir"];
    let mut early = operator.command(invite_flags);
    let early = early.arg(data(&operator)).output_soon().await;
    early.failed(2, &["not known", "--public-url", "--url"]);
    let here = ["--name=box-7", "--url=http://127.0.0.1:1"];
    let down = invite(&operator, &here).await;
    let expired = invite(&operator, &["--name=old", "--url=http://127.0.0.1:1"]).await;
    let tokens = data(&operator).join("tokens.toml");
    let text = fs::read_to_string(&tokens).unwrap();
    let (first, last) = text.rsplit_once("invite_expires_at = ").unwrap();
    let rest = last.split_once('\n').map_or("", |(_, rest)| rest);
    let past = format!("{first}invite_expires_at = 2020-01-01T00:00:00Z\n{rest}");
    fs::write(&tokens, past).unwrap();
    let hub = Hub::start(&operator).await;

    let failed = person.run(["join", &down]).await;
    failed.failed(
        69,
        &[
            "cannot reach the hub at `http://127.0.0.1:1`",
            "stays valid",
        ],
    );
    let refused = |line: String| {
        let person = &person;
        async move { person.run(["join", &line]).await }
    };
    // The same invites, at the URL where the hub answers.
    let at_hub = |line: &str| {
        use exec_registry::{http::BaseUrl, invite::InviteLine};
        let mut line: InviteLine = line.parse().unwrap();
        line.hub = BaseUrl::parse(&hub.server.url).unwrap();
        line.expose()
    };
    refused(at_hub(&expired))
        .await
        .failed(77, &["has expired", "hub invite"]);
    refused(down[..down.len() - 1].to_owned())
        .await
        .failed(2, &["incomplete", "whole line"]);
    refused("exh_token".to_owned())
        .await
        .failed(2, &["not an invite", "hub invite"]);
    let role = person.run(["env", "add", "box", "--invite", &down]).await;
    role.failed(2, &["for the executor `box-7`", "exec-server join LINE"]);
    let harness = invite(&operator, &["--name=box-7", "--role=harness"]).await;
    refused(harness.clone())
        .await
        .failed(2, &["for the harness `box-7`", "env add"]);
    let other = TestUser::new();
    let _other_hub = Hub::start(&other).await;
    let theirs = invite(&other, &["--name=box-7"]).await;
    refused(at_hub(&theirs))
        .await
        .failed(77, &["does not know this invite", "another hub"]);
    let server = person.server(&[]).await;
    let mut elsewhere: exec_registry::invite::InviteLine = theirs.parse().unwrap();
    let url = server.url.replace("ws://", "http://");
    elsewhere.hub = exec_registry::http::BaseUrl::parse(&url).unwrap();
    refused(elsewhere.expose())
        .await
        .failed(69, &["no hub with invites answers there"]);
    let mut plain = operator.command(invite_flags);
    let plain = plain.arg(data(&operator)).arg("--url=http://192.0.2.1:1");
    plain
        .output_soon()
        .await
        .failed(2, &["unencrypted", "https://"]);
    assert_eq!(
        token_files(&person).len(),
        1,
        "the claim of the hub that is down"
    );

    // A name that exists is found before the invite is used up.
    let taken = ["env", "add", "box", "ws://127.0.0.1:1"];
    person.run(taken).await.expect_success();
    let taken = person
        .run(["env", "add", "box", "--invite", &harness])
        .await;
    taken.failed(1, &["already exists"]);
    add(&person, "other", &harness).await.expect_success();
}

/// A directory with a `systemctl` that records its arguments and exits with this status.
fn recording_systemctl(user: &TestUser, status: i32) -> (PathBuf, PathBuf) {
    let directory = user.home().join("bin");
    fs::create_dir_all(&directory).unwrap();
    let (program, log) = (directory.join("systemctl"), user.home().join("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> '{}'\necho 'Failed to connect to bus' >&2\nexit {status}\n",
        log.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (directory, log)
}

#[tokio::test]
async fn join_installs_a_user_service_and_never_replaces_a_foreign_one() {
    let (operator, machine) = (TestUser::new(), TestUser::new());
    let _hub = Hub::start(&operator).await;
    let line = invite(&operator, &["--name=box-7"]).await;
    let unit = machine
        .home()
        .join(".config/systemd/user/exec-server-box-7.service");
    let install = async |path: &Path| {
        let mut command = machine.command(["join", &line, "--service"]);
        command.env("PATH", path).env_remove("XDG_CONFIG_HOME");
        command.output_soon().await
    };
    let (directory, log) = recording_systemctl(&machine, 0);
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    fs::write(&unit, "[Unit]\n").unwrap();
    let foreign = install(&directory).await;
    foreign.failed(1, &["exists and is not from `join`", "without --service"]);
    assert_eq!(
        token_files(&machine),
        Vec::<PathBuf>::new(),
        "nothing was redeemed"
    );
    fs::remove_file(&unit).unwrap();

    let installed = install(&directory).await;
    assert_eq!(installed.status, Some(0), "{installed:?}");
    assert!(installed.stderr.contains("enable-linger"), "{installed:?}");
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!(
        calls,
        "--user daemon-reload\n--user enable exec-server-box-7.service\n\
         --user restart exec-server-box-7.service\n"
    );
    let text = fs::read_to_string(&unit).unwrap();
    let token = token_files(&machine)[0].display().to_string();
    assert!(text.contains(&token), "{text}");

    // Without a service manager the unit stays, and the message says what to do.
    recording_systemctl(&machine, 1);
    let failed = install(&directory).await;
    failed.failed(
        1,
        &[
            "Failed to connect to bus",
            "systemctl --user enable --now",
            "--remote",
        ],
    );
    let absent = install(Path::new("/nonexistent")).await;
    absent.failed(
        1,
        &["cannot run systemctl", "systemctl --user enable --now"],
    );
    assert_eq!(fs::read_to_string(&unit).unwrap(), text);
}
