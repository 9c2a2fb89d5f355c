//! Everything that the doctor has to say.

use std::time::Duration;

use exec_process::spawner::Spawner;
use exec_sandbox::{
    Settings,
    abilities::{Abilities, Outlook, Thoroughness, outlook, probe},
};
use serde::Serialize;
use tokio::time::timeout;

use super::{
    advice::{Advice, advice},
    server::LocalServer,
};

/// How long finding out may take. The tries themselves give up earlier, and say which one hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// What this machine can enforce. As JSON its members are stable: some may be added, none changes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The server's version.
    pub version: String,
    /// Every kind of policy can be enforced.
    pub enforceable: bool,
    /// What works.
    pub abilities: Abilities,
    /// What would enforce each kind of policy.
    pub outlook: Vec<Outlook>,
    /// What blocks the rest, and how to unblock it.
    pub advice: Vec<Advice>,
    /// The server of the commands for people, if it was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_server: Option<LocalServer>,
}

impl Report {
    /// Draws the conclusions from what works, for a server with these settings.
    pub fn new(abilities: Abilities, settings: Settings) -> Self {
        Self::with_outlook(
            outlook(&abilities, settings.mechanism, settings.processes),
            abilities,
        )
    }

    pub(super) fn with_outlook(outlook: Vec<Outlook>, abilities: Abilities) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            enforceable: outlook.iter().all(|outlook| outlook.mechanism.is_some()),
            advice: advice(&abilities),
            outlook,
            abilities,
            local_server: None,
        }
    }
}

/// Tries what works here. Nothing is left running.
///
/// # Errors
/// When the machine does not answer in time.
pub async fn examine(settings: Settings) -> Result<Report, ExamineError> {
    let spawner = Spawner::default();
    let found = timeout(PATIENCE, probe(&spawner, Thoroughness::All)).await;
    let abilities = found.map_err(|_| ExamineError)?;
    Ok(Report {
        local_server: Some(LocalServer::look(&|name| std::env::var_os(name))),
        ..Report::new(abilities, settings)
    })
}

/// Host: something hangs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("this machine did not answer within {} seconds", PATIENCE.as_secs())]
pub struct ExamineError;
