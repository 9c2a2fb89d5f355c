//! One environment, as it is shown.

use exec_environments::manager::EnvironmentId;
use exec_transport::connect::Address;
use serde::Serialize;

use crate::{
    command::place::Socket,
    environments::{Reach, Selection},
    settings_source::Lookup,
};

/// One environment, as it is shown. Nothing in it is secret.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// How it is reached.
    pub(super) kind: Kind,
    /// Where it is.
    pub(super) place: String,
    /// Whether it is used when none is named.
    pub(super) default: bool,
}

/// How an environment is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// It is this machine.
    Local,
    /// A server listens.
    Url,
    /// A hub leads to it.
    Hub,
    /// A program is started.
    Command,
}

impl Kind {
    /// Returns its name.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Url => "url",
            Self::Hub => "hub",
            Self::Command => "command",
        }
    }
}

/// Lists what is selected, this machine first.
pub(super) fn rows(selection: &Selection, lookup: Lookup<'_>) -> Vec<Row> {
    let row = |id: &EnvironmentId, kind, place| Row {
        name: id.to_string(),
        kind,
        place,
        default: selection.default.as_ref() == Some(id),
    };
    let mut rows = Vec::new();
    if selection.local {
        let socket = Socket::find(lookup);
        let place = format!("unix://{}", socket.path().display());
        rows.push(row(&EnvironmentId::local(), Kind::Local, place));
    }
    for remote in &selection.remotes {
        let (kind, place) = place(&remote.reach);
        rows.push(row(&remote.id, kind, place));
    }
    rows
}

fn place(reach: &Reach) -> (Kind, String) {
    match reach {
        // Path and query may be secret, which the address leaves out.
        Reach::Url(url) => {
            let address = url.url.parse::<Address>();
            let shown = address.map_or_else(|error| error.to_string(), |url| url.to_string());
            (Kind::Url, shown)
        }
        Reach::Relay(relay) => {
            let (hub, id) = (&relay.registry_url, &relay.environment_id);
            (Kind::Hub, format!("{id} at {hub}"))
        }
        Reach::Program(reach) => {
            let program = &reach.program;
            let words = [&program.program].into_iter().chain(&program.args);
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            (Kind::Command, words.join(" "))
        }
    }
}
