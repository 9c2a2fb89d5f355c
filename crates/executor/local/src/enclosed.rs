//! Commands under a policy: what encloses them becomes part of how they are launched.

use std::{ffi::OsString, path::Path};

use exec_env::backend::StartError;
use exec_process::Launch;
use exec_sandbox::{CommandRequest, ManagedRequest, Prepared, Sandboxes};
use exec_wire::sandbox::Sandbox;

/// Prepares what encloses a command.
pub(crate) async fn prepare(
    sandboxes: &Sandboxes,
    sandbox: &Sandbox,
    cwd: &Path,
    env: &[(OsString, OsString)],
    managed: Option<ManagedRequest>,
) -> Result<Prepared, StartError> {
    let request = CommandRequest {
        sandbox,
        cwd,
        env,
        managed,
    };
    let refused = |error: exec_sandbox::SandboxError| StartError::Refused {
        field: "sandbox",
        reason: error.to_string(),
    };
    sandboxes.prepare(request).await.map_err(refused)
}

/// Puts a command into what was prepared for it.
pub(crate) fn put_into(prepared: Prepared, command: Launch) -> Launch {
    let Some(wrapper) = prepared.wrapper else {
        return Launch {
            enclosure: prepared.enclosure,
            ..command
        };
    };
    let mut argv = vec![wrapper.program.clone().into_os_string()];
    argv.extend(wrapper.arguments);
    argv.push(command.program);
    argv.extend(command.argv.into_iter().skip(1));
    let mut extra = command.extra;
    extra.extend(wrapper.extra);
    Launch {
        program: wrapper.program.into_os_string(),
        argv,
        // The wrapper sets the command's environment, and has none itself.
        env: Vec::new(),
        cwd: "/".into(),
        extra,
        ..command
    }
}
