//! Requests decoded into the parameter type of their method.

use bytes::Bytes;
use exec_wire::{
    discovery::{DiscoverCapabilities, DiscoverRoots},
    environment::{ReadEnvironmentConfig, ReadEnvironmentInfo, ReadEnvironmentStatus},
    error::RpcError,
    fs,
    http::{CancelHttpRequest, HttpRequest},
    id::{HandleId, ProcessId},
    initialize::InitializeParams,
    message::{RequestId, RpcMessage, RpcRequest, TraceContext, decode_params, split_binary},
    method::MethodName,
    process::{
        AttachProcess, CloseStdin, ExecCommand, ListProcesses, ReadProcess, ReleaseProcess,
        ResizeProcess, SignalProcess, SnapshotProcess, StartProcess, TerminateCommand,
        TerminateProcess, WaitProcess, WriteCommand, WriteProcess,
    },
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::handler::{FileData, PinnedFile};

/// A request of any method, with decoded parameters and raw data.
#[derive(Debug)]
pub(crate) enum MethodCall {
    Initialize(InitializeParams),
    EnvironmentInfo,
    EnvironmentStatus,
    ReadConfig(ReadEnvironmentConfig),
    DiscoverRoots(DiscoverRoots),
    Discover(DiscoverCapabilities),
    Http(Box<HttpRequest>, Option<Bytes>),
    CancelHttp(CancelHttpRequest),
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
    List(ListProcesses),
    ReadFile(fs::ReadFile),
    WriteFile(fs::WriteFile, FileData),
    CreateDirectory(fs::CreateDirectory),
    GetMetadata(fs::GetMetadata),
    Canonicalize(fs::CanonicalizePath),
    ReadDirectory(fs::ReadDirectory),
    Walk(fs::WalkTree),
    Remove(fs::RemovePath),
    Copy(fs::CopyPath),
    Rename(fs::RenamePath),
    OpenFile(fs::OpenFile),
    ReadBlock(fs::ReadBlock, PinnedFile),
    WriteBlock(fs::WriteBlock, Bytes, PinnedFile),
    CloseFile(fs::CloseFile),
    WatchMissing(fs::WatchMissing),
    Watch(fs::StartWatch),
    Unwatch(fs::StopWatch),
    Search(fs::SearchText),
    Find(fs::FindPaths),
    Exec(Box<ExecCommand>),
    ExecWrite(WriteCommand),
    ExecTerminate(TerminateCommand),
}

impl MethodCall {
    /// Returns the id of the process that the request starts.
    pub(crate) fn started_process(&self) -> Option<&ProcessId> {
        if let Self::Start(params) = self {
            return Some(&params.process_id);
        }
        if let Self::Exec(params) = self {
            Some(&params.process_id)
        } else {
            None
        }
    }

    /// Returns the file handle that the request reads, writes or closes.
    pub(crate) fn file_handle(&self) -> Option<&HandleId> {
        if let Self::ReadBlock(params, _) = self {
            return Some(&params.handle_id);
        }
        if let Self::WriteBlock(params, _, _) = self {
            return Some(&params.handle_id);
        }
        if let Self::CloseFile(params) = self {
            Some(&params.handle_id)
        } else {
            None
        }
    }

    /// Returns the file handle id that the request opens or closes, which changes its meaning for
    /// later requests.
    pub(crate) fn changed_handle(&self) -> Option<&HandleId> {
        if let Self::OpenFile(params) = self {
            return Some(&params.handle_id);
        }
        if let Self::CloseFile(params) = self {
            Some(&params.handle_id)
        } else {
            None
        }
    }

    /// Returns the process id in the parameters.
    pub(crate) fn process_id(&self) -> Option<&ProcessId> {
        match self {
            Self::Start(params) => Some(&params.process_id),
            Self::Read(params) => Some(&params.process_id),
            Self::Write(params, _) => Some(&params.process_id),
            Self::CloseStdin(params) => Some(&params.process_id),
            Self::Resize(params) => Some(&params.process_id),
            Self::Signal(params) => Some(&params.process_id),
            Self::Terminate(params) => Some(&params.process_id),
            Self::Wait(params) => Some(&params.process_id),
            Self::Snapshot(params) => Some(&params.process_id),
            Self::Attach(params) => Some(&params.process_id),
            Self::Release(params) => Some(&params.process_id),
            Self::Exec(params) => Some(&params.process_id),
            Self::ExecWrite(params) => Some(&params.process_id),
            Self::ExecTerminate(params) => Some(&params.process_id),
            Self::Initialize(_)
            | Self::EnvironmentInfo
            | Self::EnvironmentStatus
            | Self::ReadConfig(_)
            | Self::DiscoverRoots(_)
            | Self::Discover(_)
            | Self::Http(..)
            | Self::CancelHttp(_)
            | Self::List(_)
            | Self::ReadFile(_)
            | Self::WriteFile(..)
            | Self::CreateDirectory(_)
            | Self::GetMetadata(_)
            | Self::Canonicalize(_)
            | Self::ReadDirectory(_)
            | Self::Walk(_)
            | Self::Remove(_)
            | Self::Copy(_)
            | Self::Rename(_)
            | Self::OpenFile(_)
            | Self::ReadBlock(..)
            | Self::WriteBlock(..)
            | Self::CloseFile(_)
            | Self::WatchMissing(_)
            | Self::Watch(_)
            | Self::Unwatch(_)
            | Self::Search(_)
            | Self::Find(_) => None,
        }
    }

    /// Decodes the parameters and raw data of a request.
    pub(crate) fn decode(
        method: MethodName,
        request: &mut RpcRequest<'_>,
    ) -> Result<Self, RpcError> {
        let data = request.data.take();
        if data.is_some() && !method.takes_data() {
            let message = format!("`{}` does not accept raw data", request.method);
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
            MethodName::EnvironmentConfigRead => Self::ReadConfig(decode(params)?),
            MethodName::CapabilityRootsDiscover => Self::DiscoverRoots(decode(params)?),
            MethodName::CapabilitiesDiscover => Self::Discover(decode(params)?),
            MethodName::HttpRequest => {
                let mut request: HttpRequest = decode(params)?;
                let in_message = request.body_base64.take().map(|body| body.0);
                let body = match (in_message, data) {
                    (None, None) => None,
                    (in_message, raw) => Some(data_member("bodyBase64", in_message, raw)?),
                };
                Self::Http(Box::new(request), body)
            }
            MethodName::HttpRequestCancel => Self::CancelHttp(decode(params)?),
            MethodName::ProcessStart => Self::Start(decode(params)?),
            MethodName::ProcessRead => Self::Read(decode(params)?),
            MethodName::ProcessWrite => {
                let mut write: WriteProcess = decode(params)?;
                let in_message = write.chunk.take().map(|chunk| chunk.0);
                let data = data_member("chunk", in_message, data)?;
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
            MethodName::ProcessList => Self::List(decode(params)?),
            MethodName::FsReadFile => Self::ReadFile(decode(params)?),
            MethodName::FsWriteFile => {
                let mut write: fs::WriteFile = decode(params)?;
                let in_message = write.data_base64.take().map(|data| data.0);
                let data = data_member("dataBase64", in_message, data.map(Ok))?;
                Self::WriteFile(write, data)
            }
            MethodName::FsCreateDirectory => Self::CreateDirectory(decode(params)?),
            MethodName::FsGetMetadata => Self::GetMetadata(decode(params)?),
            MethodName::FsCanonicalize => Self::Canonicalize(decode(params)?),
            MethodName::FsReadDirectory => Self::ReadDirectory(decode(params)?),
            MethodName::FsWalk => Self::Walk(decode(params)?),
            MethodName::FsRemove => Self::Remove(decode(params)?),
            MethodName::FsCopy => Self::Copy(decode(params)?),
            MethodName::FsRename => Self::Rename(decode(params)?),
            MethodName::FsOpen => Self::OpenFile(decode(params)?),
            MethodName::FsReadBlock => Self::ReadBlock(decode(params)?, None),
            MethodName::FsWriteBlock => {
                let mut write: fs::WriteBlock = decode(params)?;
                let in_message = write.chunk.take().map(|chunk| chunk.0);
                let data = data_member("chunk", in_message, data)?;
                Self::WriteBlock(write, data, None)
            }
            MethodName::FsClose => Self::CloseFile(decode(params)?),
            MethodName::FsWatchMissing => Self::WatchMissing(decode(params)?),
            MethodName::FsWatch => Self::Watch(decode(params)?),
            MethodName::FsUnwatch => Self::Unwatch(decode(params)?),
            MethodName::FsSearch => Self::Search(decode(params)?),
            MethodName::FsFind => Self::Find(decode(params)?),
            MethodName::CommandExec => Self::Exec(decode(params)?),
            MethodName::CommandExecWrite => Self::ExecWrite(decode(params)?),
            MethodName::CommandExecTerminate => Self::ExecTerminate(decode(params)?),
        };
        Ok(call)
    }
}

fn decode<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, RpcError> {
    decode_params(params).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// Takes the data member from the JSON message or from the raw data beside it.
fn data_member<T>(name: &str, in_message: Option<T>, raw: Option<T>) -> Result<T, RpcError> {
    match (in_message, raw) {
        (Some(data), None) | (None, Some(data)) => Ok(data),
        (None, None) => Err(RpcError::invalid_params(format!("missing field `{name}`"))),
        (Some(_), Some(_)) => Err(RpcError::invalid_params(format!(
            "{name}: expected either base64 or raw data, not both"
        ))),
    }
}

/// Messages above this size are decoded on the blocking pool: decoding takes milliseconds and would
/// delay other connections.
pub(crate) const LARGE_MESSAGE_BYTES: usize = 256 << 10;

/// A request after decoding, before admission.
pub(crate) struct DecodedRequest {
    pub(crate) id: RequestId,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) has_data: bool,
    pub(crate) decoded: DecodedMethod,
    /// Size of the message.
    pub(crate) bytes: usize,
}

pub(crate) enum DecodedMethod {
    Known(MethodName, Result<MethodCall, RpcError>),
    Unknown(String),
}

/// Result of decoding a large message on the blocking pool.
pub(crate) enum LargeMessage {
    Request(DecodedRequest),
    /// Only the method name: no known notification has parameters this large.
    Notification(String),
    /// Only the id: no known response is this large.
    Response(RequestId),
    Malformed(String),
}

impl LargeMessage {
    pub(crate) fn decode(frame: Bytes) -> Self {
        let bytes = frame.len();
        let (text, data) = match split_binary(&frame) {
            None => (frame, None),
            Some(Ok((header, data))) => (header, Some(data)),
            Some(Err(error)) => return Self::Malformed(error.to_string()),
        };
        let has_data = data.is_some();
        match RpcMessage::decode_with(&text, data) {
            Ok(RpcMessage::Request(mut request)) => {
                let decoded = match MethodName::parse(&request.method) {
                    Some(method) => {
                        DecodedMethod::Known(method, MethodCall::decode(method, &mut request))
                    }
                    None => DecodedMethod::Unknown(request.method.into_owned()),
                };
                Self::Request(DecodedRequest {
                    id: request.id,
                    trace: request.trace,
                    has_data,
                    decoded,
                    bytes,
                })
            }
            Ok(RpcMessage::Notification(note)) => Self::Notification(note.method.into_owned()),
            Ok(RpcMessage::Response(response)) => Self::Response(response.id),
            Ok(RpcMessage::Error(response)) => Self::Response(response.id),
            Err(error) => Self::Malformed(error.to_string()),
        }
    }
}
