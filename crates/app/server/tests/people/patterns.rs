//! The scripts of `examples`: each does what its page says.

use std::{fs, path::Path};

use crate::cast::{Ended, OutputSoon, Person, product};

/// Runs a script of `examples` as the person would.
async fn example(person: &Person, name: &str) -> Ended {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let mut script = person.program(&examples.join(name), [person.work()]);
    script.env("EXEC_SERVER", product()).output_soon().await
}

#[tokio::test]
async fn one_server_serves_many_steps() {
    let person = Person::new();
    let shown = example(&person, "one-server-many-steps").await.well();
    let expected = "\
== prepare
== lint
lint: ok
== build
build: ok
== package
package: ok
tests: ok
== done
";
    assert_eq!(shown, expected);
    let artifact = fs::read_to_string(person.work().join("artifact")).unwrap();
    assert!(artifact.starts_with("PREPARED\nBUILT\n"), "{artifact}");
}

#[tokio::test]
async fn an_agent_and_a_person_share_an_environment() {
    let person = Person::new();
    let shown = example(&person, "shared-environment").await.well();
    for text in ["1 test passed\n", "fn main() {}\n", "reviewed()"] {
        assert!(shown.contains(text), "{text:?} in {shown}");
    }
    let listed = shown.lines().find(|line| line.starts_with("tests"));
    assert!(listed.is_some(), "{shown}");
}

#[tokio::test]
async fn a_laptop_that_slept_shows_what_it_missed() {
    let person = Person::new();
    let ended = example(&person, "sleeping-laptop").await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let followed: Vec<&str> = lines
        .iter()
        .filter(|line| line.contains(": line "))
        .copied()
        .collect();
    let expected = [
        "before: line 1",
        "before: line 2",
        "before: line 3",
        "after: line 4",
        "after: line 5",
        "after: line 6",
    ];
    assert_eq!(followed, expected, "{ended:?}");
}
