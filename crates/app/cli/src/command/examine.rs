//! `exec-server doctor --env`: the server's own program examines its machine, as a command there.

use std::{process::ExitCode, time::Duration};

use super::{
    amount::Span,
    failure::Failure,
    launch::{self, Launch, Surroundings},
    place::{Place, Where},
    stream::Terminal,
};

/// The parent of a command is its supervisor, which is the server's program.
const SCRIPT: &str = r#"
program=/proc/$PPID/exe
case $("$program" --version 2>/dev/null) in
"exec-server "*) exec "$program" doctor "$@" ;;
esac
echo "error: the server there cannot examine its machine; run \`exec-server doctor\` there" >&2
exit 69
"#;

/// How long it may take: longer than the probes do.
const PATIENCE: Span = Span(Duration::from_secs(60));

/// Tells what the machine of an environment can enforce.
pub async fn examine(wanted: &Where, options: &[&str]) -> Result<ExitCode, Failure> {
    let place = Place::open(wanted).await?;
    let argv = ["/bin/sh", "-c", SCRIPT, "doctor"];
    let argv = argv.iter().chain(options);
    let outcome = launch::run_without_input(Launch {
        place: &place,
        surroundings: &Surroundings::default(),
        id: launch::new_id(),
        argv: argv.map(|&word| word.to_owned()).collect(),
        terminal: Terminal::None,
        limit: Some(PATIENCE),
        keys: None,
    })
    .await?;
    Ok(outcome.status)
}
