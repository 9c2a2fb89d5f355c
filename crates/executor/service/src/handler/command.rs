//! The first dialect: `command/exec*`.

use std::{path::Path, sync::Arc};

use exec_env::command::{Command, Io, Stdin};
use exec_wire::{
    command::{CommandStarted, CommandWritten, ExecCommand, WriteCommand},
    error::RpcError,
    id::ProcessId,
    message::RequestId,
    path_uri::PathUri,
    process::{TerminalSize, TerminateProcess, WriteStatus},
};

use super::{Begun, Handlers, control::process_error, done, settle, start::Plan};
use crate::notify::Dialect;

impl Handlers<'_> {
    pub(super) fn exec(&self, id: RequestId, params: ExecCommand) -> Begun {
        let cwd = match PathUri::from_native(Path::new(&params.cwd)) {
            Ok(cwd) => cwd,
            Err(error) => {
                let error = RpcError::invalid_params(format!("cwd: {error}"));
                return done(&id, Err::<CommandStarted, _>(error));
            }
        };
        if !self.shared.config.allow_direct_exec {
            let error = RpcError::invalid_request("this server allows no direct exec");
            return done(&id, Err::<CommandStarted, _>(error));
        }
        let io = if params.tty {
            Io::Terminal(TerminalSize::default())
        } else {
            Io::Pipes { stdin: Stdin::Null }
        };
        let command = Command {
            arg0: params.arg0,
            env: params.env,
            io,
            // A cap for both streams together is one for each of them, too.
            retained_bytes: params.output_bytes_cap,
            ..Command::new(params.process_id, params.argv, cwd)
        };
        let plan = Plan {
            command,
            dialect: Dialect::Command,
            detached: false,
            watcher: None,
        };
        self.launch(id, plan, |process_id, _| CommandStarted {
            process_id,
            running: true,
            exit_code: None,
            stdout: None,
            stderr: None,
        })
    }

    pub(super) fn exec_write(&self, id: RequestId, params: WriteCommand) -> Begun {
        let process = match self.known(&params.process_id) {
            Ok(process) => process,
            Err(error) => return done(&id, Err::<CommandWritten, _>(error)),
        };
        let process_id = params.process_id;
        let (meters, bytes) = (Arc::clone(&self.shared.meters), params.chunk.0.len());
        settle(
            id,
            process.handle.write(None, params.chunk.0),
            move |outcome| match outcome.map_err(process_error)? {
                WriteStatus::Accepted => {
                    meters.input_bytes.add_bytes(bytes);
                    Ok(CommandWritten { accepted: true })
                }
                WriteStatus::UnknownProcess | WriteStatus::StdinClosed | WriteStatus::Starting => {
                    let message = format!("process {process_id} has no writable stdin");
                    Err(RpcError::invalid_request(message))
                }
            },
        )
    }

    pub(super) fn exec_terminate(&self, id: RequestId, process_id: &ProcessId) -> Begun {
        self.terminate(
            id,
            &TerminateProcess {
                process_id: process_id.clone(),
                mode: None,
            },
        )
    }
}
