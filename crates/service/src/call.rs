//! A request, decoded into its method's own type.

use bytes::Bytes;
use exec_wire::{
    bytes::Base64,
    command::{ExecCommand, TerminateCommand, WriteCommand},
    environment::{ReadEnvironmentInfo, ReadEnvironmentStatus},
    error::{ErrorCode, RpcError},
    id::ProcessId,
    initialize::InitializeParams,
    message::{Request, decode_params},
    method::MethodName,
    process::{
        AttachProcess, CloseStdin, ListProcesses, ReadProcess, ReleaseProcess, ResizeProcess,
        SignalProcess, SnapshotProcess, StartProcess, TerminateProcess, WaitProcess, WriteProcess,
    },
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// What a client asks for.
#[derive(Debug)]
pub(crate) enum Call {
    Initialize(InitializeParams),
    EnvironmentInfo,
    EnvironmentStatus,
    Start(Box<StartProcess>),
    Read(ReadProcess),
    Write(WriteProcess, Bytes),
    CloseStdin(CloseStdin),
    Resize(ResizeProcess),
    Signal(SignalProcess),
    Terminate(TerminateProcess),
    Wait(WaitProcess),
    Snapshot(SnapshotProcess),
    Attach(AttachProcess),
    Release(ReleaseProcess),
    List,
    Exec(Box<ExecCommand>),
    ExecWrite(WriteCommand),
    ExecTerminate(TerminateCommand),
}

impl Call {
    /// Returns the process that the request starts.
    pub(crate) fn starts(&self) -> Option<&ProcessId> {
        if let Self::Start(params) = self {
            return Some(&params.process_id);
        }
        if let Self::Exec(params) = self {
            Some(&params.process_id)
        } else {
            None
        }
    }

    /// Decodes a request: the method must exist, then its parameters must fit.
    pub(crate) fn decode(request: &mut Request<'_>) -> Result<(MethodName, Self), RpcError> {
        let Some(method) = MethodName::parse(&request.method) else {
            let message = format!("exec-server does not implement `{}`", request.method);
            return Err(RpcError::new(ErrorCode::METHOD_NOT_FOUND, message));
        };
        let data = request.data.take();
        if data.is_some() && method != MethodName::ProcessWrite {
            let message = format!("`{}` takes no raw data", request.method);
            return Err(RpcError::invalid_params(message));
        }
        let params = request.params;
        let call = match method {
            MethodName::Initialize => Self::Initialize(decode(params)?),
            MethodName::EnvironmentInfo => {
                decode::<ReadEnvironmentInfo>(params)?;
                Self::EnvironmentInfo
            }
            MethodName::EnvironmentStatus => {
                decode::<ReadEnvironmentStatus>(params)?;
                Self::EnvironmentStatus
            }
            MethodName::ProcessStart => Self::Start(decode(params)?),
            MethodName::ProcessRead => Self::Read(decode(params)?),
            MethodName::ProcessWrite => {
                let mut write: WriteProcess = decode(params)?;
                let data = data_member(write.chunk.take(), data)?;
                Self::Write(write, data)
            }
            MethodName::ProcessCloseStdin => Self::CloseStdin(decode(params)?),
            MethodName::ProcessResize => Self::Resize(decode(params)?),
            MethodName::ProcessSignal => Self::Signal(decode(params)?),
            MethodName::ProcessTerminate => Self::Terminate(decode(params)?),
            MethodName::ProcessWait => Self::Wait(decode(params)?),
            MethodName::ProcessSnapshot => Self::Snapshot(decode(params)?),
            MethodName::ProcessAttach => Self::Attach(decode(params)?),
            MethodName::ProcessRelease => Self::Release(decode(params)?),
            MethodName::ProcessList => {
                decode::<ListProcesses>(params)?;
                Self::List
            }
            MethodName::CommandExec => Self::Exec(decode(params)?),
            MethodName::CommandExecWrite => Self::ExecWrite(decode(params)?),
            MethodName::CommandExecTerminate => Self::ExecTerminate(decode(params)?),
        };
        Ok((method, call))
    }
}

fn decode<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, RpcError> {
    decode_params(params).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// The data member, from inside the message or from beside it.
fn data_member(inside: Option<Base64>, beside: Option<Bytes>) -> Result<Bytes, RpcError> {
    match (inside, beside) {
        (Some(inside), None) => Ok(inside.0),
        (None, Some(beside)) => Ok(beside),
        (None, None) => Err(RpcError::invalid_params("missing field `chunk`")),
        (Some(_), Some(_)) => Err(RpcError::invalid_params(
            "chunk: expected either base64 or raw data, not both",
        )),
    }
}
