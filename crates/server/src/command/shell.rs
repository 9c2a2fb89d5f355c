//! `exec-server shell`.

use std::process::ExitCode;

use clap::Args;

use super::{
    failure::Failure,
    launch::{self, Launch, Surroundings},
    place::{Place, Where},
    stream::Terminal,
    terminal::Standard,
};

/// Opens a shell.
///
/// It is the login shell of the account that the server runs under, on a terminal of the size of ours.
/// If our input is no terminal, the shell reads its commands from it, without one.
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
}

impl Shell {
    /// Opens a shell.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let shell = place.info.shell.path.clone();
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
        })
        .await
    }
}
