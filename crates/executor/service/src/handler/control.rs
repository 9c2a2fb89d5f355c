//! Writing to processes, signalling and ending them.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::process::ProcessError;
use exec_wire::{
    error::RpcError,
    message::RequestId,
    process::{
        CloseStdin, Empty, ResizeProcess, SignalProcess, TerminalSize, TerminateProcess,
        Terminated, WriteProcess, WriteResult, WriteStatus,
    },
};

use super::{Begun, Handlers, done, settle};
use crate::session::Found;

impl Handlers<'_> {
    pub(super) fn write(&self, id: RequestId, params: WriteProcess, data: Bytes) -> Begun {
        let process = match self.find(&params.process_id) {
            Found::Unknown => return status(&id, WriteStatus::UnknownProcess),
            Found::Starting(_) => return status(&id, WriteStatus::Starting),
            Found::Started(process) => process,
        };
        let (meters, bytes) = (Arc::clone(&self.shared.meters), data.len());
        let writing = process.handle.write(Some(params.write_id), data);
        settle(id, writing, move |outcome| {
            if matches!(outcome, Ok(WriteStatus::Accepted)) {
                meters.input_bytes.add_bytes(bytes);
            }
            written(outcome)
        })
    }

    pub(super) fn close_stdin(&self, id: RequestId, params: CloseStdin) -> Begun {
        let process = match self.find(&params.process_id) {
            Found::Unknown => return status(&id, WriteStatus::UnknownProcess),
            Found::Starting(_) => return status(&id, WriteStatus::Starting),
            Found::Started(process) => process,
        };
        settle(id, process.handle.close_stdin(params.write_id), written)
    }

    pub(super) fn resize(&self, id: RequestId, params: &ResizeProcess) -> Begun {
        let process = match self.known(&params.process_id) {
            Ok(process) => process,
            Err(error) => return done(&id, Err::<Empty, _>(error)),
        };
        let size = TerminalSize {
            rows: params.rows,
            cols: params.cols,
        };
        settle(id, process.handle.resize(size), |outcome| {
            outcome.map(|()| Empty {}).map_err(process_error)
        })
    }

    pub(super) fn signal(&self, id: RequestId, params: &SignalProcess) -> Begun {
        match self.find(&params.process_id) {
            Found::Started(process) => {
                settle(id, process.handle.signal(params.signal), |outcome| {
                    outcome.map(|()| Empty {}).map_err(process_error)
                })
            }
            Found::Unknown | Found::Starting(_) => done(&id, Ok(Empty {})),
        }
    }

    pub(super) fn terminate(&self, id: RequestId, params: &TerminateProcess) -> Begun {
        match self.find(&params.process_id) {
            Found::Unknown => done(&id, Ok(Terminated { running: false })),
            Found::Starting(cancel) => {
                cancel.notify_one();
                done(&id, Ok(Terminated { running: true }))
            }
            // As the stock server does it: what a command left running when it ended stays. A client
            // that names a mode means the whole tree.
            Found::Started(process)
                if params.mode.is_none() && process.handle.status().exit.is_some() =>
            {
                done(&id, Ok(Terminated { running: false }))
            }
            Found::Started(process) => {
                let mode = params.mode.unwrap_or_default();
                settle(id, process.handle.terminate(mode), |outcome| {
                    outcome
                        .map(|running| Terminated { running })
                        .map_err(process_error)
                })
            }
        }
    }
}

fn status(id: &RequestId, status: WriteStatus) -> Begun {
    done(id, Ok(WriteResult { status }))
}

fn written(outcome: Result<WriteStatus, ProcessError>) -> Result<WriteResult, RpcError> {
    outcome
        .map(|status| WriteResult { status })
        .map_err(process_error)
}

/// The code of each way in which a process can refuse.
pub(super) fn process_error(error: ProcessError) -> RpcError {
    match error {
        ProcessError::Remote(error) => error,
        ProcessError::NoTerminal(_) => RpcError::invalid_request(error.to_string()),
        ProcessError::EmptySize => RpcError::invalid_params(error.to_string()),
        ProcessError::Terminated | ProcessError::StdinFull | ProcessError::Disconnected(_) => {
            RpcError::internal(error.to_string())
        }
        other => RpcError::internal(other.to_string()),
    }
}
