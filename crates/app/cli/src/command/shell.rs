//! `exec-server shell`.

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Args;

use super::{
    failure::Failure,
    launch::{self, LEAVE_KEYS, Launch, Surroundings},
    place::{Place, Where},
    stream::{DetachKeys, Terminal},
    terminal::Standard,
};

/// Opens a shell.
///
/// On this machine it is $SHELL; elsewhere it is the login shell of the account that the server runs
/// under. It has a terminal of the size of ours. If our input is not a terminal, the shell reads its commands from it, without one.
///
/// While the connection is out, three times Ctrl-C give up.
#[derive(Args, Clone, Debug)]
pub struct Shell {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    #[command(flatten)]
    #[doc(hidden)]
    pub surroundings: Surroundings,

    /// Keys that leave the shell running; `attach` returns to it.
    #[arg(long, value_name = "KEYS", default_value = LEAVE_KEYS)]
    pub detach_keys: DetachKeys,
}

impl Shell {
    /// Opens a shell.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let shell = match place.here {
            true => chosen_shell(std::env::var_os("SHELL")),
            false => None,
        };
        let shell = shell.unwrap_or_else(|| place.info.shell.path.clone());
        launch::run(Launch {
            place: &place,
            surroundings: &self.surroundings,
            id: launch::new_id(),
            argv: vec![shell, "-l".to_owned()],
            terminal: match Standard::Input.is_terminal() {
                true => Terminal::Theirs,
                false => Terminal::None,
            },
            limit: None,
            keys: Some(self.detach_keys),
        })
        .await
    }
}

/// Returns the shell that the person chose, if it can be one.
fn chosen_shell(shell: Option<OsString>) -> Option<String> {
    let shell = shell?.into_string().ok()?;
    let path = Path::new(&shell);
    (path.is_absolute() && path.is_file()).then_some(shell)
}
