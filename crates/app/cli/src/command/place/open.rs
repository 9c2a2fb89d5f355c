//! An environment that somebody is connected to.

use std::ffi::OsStr;

use crate::terminal_detection::Terminal;
use exec_client::client::ExecServerClient;
use exec_env::environment::Environment;
use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};

use super::{
    launch,
    parting::part_from,
    refusal,
    route::{Route, Way},
    typed,
    wanted::Where,
};
use crate::{
    command::{
        amount::Span,
        failure::{Failure, FailureKind},
    },
    environments::Reach,
};

/// An environment that somebody is connected to.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What people call it.
    pub(crate) name: String,
    /// How it was asked for, if it was.
    asked: Option<String>,
    /// The connection.
    pub(crate) client: ExecServerClient,
    /// The host of the server.
    pub(crate) info: EnvironmentInfo,
    /// How it was reached.
    route: Route,
    /// Whether it is this machine: commands then begin in this directory, with these variables.
    pub(crate) here: bool,
}

impl Place {
    /// Connects to the environment that was asked for. This machine's own server is started if nobody
    /// listens.
    pub(crate) async fn open(wanted: &Where) -> Result<Self, Failure> {
        let place = Self::reach(Route::find(wanted, &|name| std::env::var_os(name))?).await?;
        if let Some(Span(limit)) = wanted.reconnect_timeout {
            place.client.set_reconnect_timeout(limit);
        }
        let asked = wanted.env.clone();
        Ok(Self { asked, ..place })
    }

    /// Connects once more to the same environment, in a session of its own.
    pub(crate) async fn open_again(&self) -> Result<Self, Failure> {
        let place = Self::reach(self.route.clone()).await?;
        let asked = self.asked.clone();
        Ok(Self { asked, ..place })
    }

    /// Connects to the environment at the end of a way.
    pub(crate) async fn reach(route: Route) -> Result<Self, Failure> {
        let Route { name, way } = route.clone();
        let (client, here) = match way {
            Way::Here(socket) => (launch::connect(&socket, &client_name()).await?, true),
            Way::Named(reach) => (connect(&name, reach, refusal::Asked::Named).await?, false),
            Way::Typed(url) => {
                let reach = Reach::Url(url);
                (connect(&name, reach, refusal::Asked::Typed).await?, false)
            }
        };
        let info = client.info().await.map_err(Failure::from)?;
        Ok(Self {
            name,
            asked: None,
            client,
            info,
            route,
            here,
        })
    }

    /// Returns a line that a person may type next, for this environment.
    pub(crate) fn line(&self, command: &str, arguments: &[&str]) -> String {
        let mut line = format!("exec-server {command}");
        for word in self.asked.iter().flat_map(|asked| ["-E", asked]) {
            line.push(' ');
            line.push_str(&quoted(word));
        }
        for word in arguments {
            line.push(' ');
            line.push_str(&quoted(word));
        }
        line
    }

    /// Returns the environment.
    pub(crate) fn environment(&self) -> Environment {
        self.client.environment()
    }

    /// Reads a path as it was typed: a `file:` URI, absolute, below the home (`~/x`), or relative to
    /// this directory if the environment is this machine, else to the server's. Bytes that are no
    /// text are kept; a `..` behind a link is what the host makes of it.
    pub(crate) async fn path(&self, typed: impl AsRef<OsStr>) -> Result<PathUri, Failure> {
        let base = match self.here {
            true => Some(std::env::current_dir().map_err(|error| {
                let what = format!("cannot find the working directory: {error}");
                Failure::new(FailureKind::Failed, what)
            })?),
            false => None,
        };
        let files = self.environment().files;
        typed::read(typed.as_ref(), base, &self.info, &*files).await
    }
}

/// Returns a word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_./:=@%+,".contains(sign);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

async fn connect(
    name: &str,
    reach: Reach,
    asked: refusal::Asked,
) -> Result<ExecServerClient, Failure> {
    let connecting = reach.clone().connect(&client_name()).await;
    let client = connecting.map_err(|error| refusal::explain(name, &reach, asked, error))?;
    if matches!(reach, Reach::Relay(_)) {
        part_from(&client);
    }
    Ok(client)
}

/// Returns how servers know this program in their logs.
pub(super) fn client_name() -> String {
    let terminal = Terminal::detect(&|name| std::env::var_os(name));
    let version = env!("CARGO_PKG_VERSION");
    format!("exec-server/{version} ({})", terminal.token())
}
