//! Method table: the list from which router, client and PROTOCOL.md are derived. Each row has the
//! types of parameters and result, and the name of a process id among the parameters.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    discovery::{DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoots},
    environment::{
        EnvironmentConfig, EnvironmentInfo, EnvironmentStatus, ReadEnvironmentConfig,
        ReadEnvironmentInfo, ReadEnvironmentStatus,
    },
    fs::{
        BlockContent, CanonicalPath, CanonicalizePath, CloseFile, CopyPath, CreateDirectory,
        CreateSymlink, DirectoryListing, FileContent, FileMetadata, FindPaths, FoundPaths,
        GetMetadata, OpenFile, OpenedFile, ReadBlock, ReadDirectory, ReadFile, RemovePath,
        RenamePath, SearchResult, SearchText, SetMetadata, StartWatch, StopWatch, WalkResult,
        WalkTree, WatchMissing, WatchMissingResult, WatchResult, WriteBlock, WriteFile,
    },
    http::{CancelHttpRequest, HttpRequest, HttpResponse},
    id::{HandleId, ProcessId},
    initialize::{InitializeParams, InitializeResponse},
    message::{ParamsError, decode_params},
    process::{
        AttachProcess, AttachResult, CloseStdin, CommandStarted, CommandWritten, EmptyResult,
        ExecCommand, ListHistory, ListProcesses, OutputPage, ProcessList, ProcessSnapshot,
        PurgeHistory, PurgedHistory, ReadProcess, ReleaseProcess, ResizeProcess, SignalProcess,
        SnapshotProcess, StartProcess, StartResult, TerminateCommand, TerminateProcess,
        TerminateResult, WaitProcess, WaitResult, WriteCommand, WriteProcess, WriteResult,
    },
    server::{ReadServerStatus, ServerStatus, UpgradeServer, UpgradeStarted},
    tunnel::{ListPorts, ListenResult, ListenTunnel, OpenTunnel, PortList},
};

/// Method of the protocol. Its type is the type of its parameters.
pub trait Method: DeserializeOwned + Serialize {
    /// Wire name.
    const NAME: MethodName;
    /// Type of a successful result.
    type Result: DeserializeOwned + Serialize;
}

/// Ordering of a request relative to others of its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OrderingClass {
    /// Sees every earlier change. Runs concurrently with other reads.
    Reads,
    /// Starts after all earlier requests have completed.
    Changes,
    /// Starts a process. Runs concurrently with other starts.
    Starts,
    /// Changes files. Runs in order after earlier requests of its kind.
    Files,
    /// Never queued.
    Control,
}

impl OrderingClass {
    /// Returns the name of the class in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Changes => "changes",
            Self::Starts => "starts",
            Self::Files => "files",
            Self::Control => "control",
        }
    }
}

macro_rules! methods {
    ($(
        $variant:ident($params:ident $(: $process_id:ident)?) -> $result:ty =
            $name:literal, $family:literal, $ordering:ident, $summary:literal;
    )+) => {
        /// Method that a client may call.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum MethodName {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }

        impl MethodName {
            /// All methods in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Parses the wire name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }

            /// Returns the wire name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the method family that gate errors name.
            pub const fn family(self) -> &'static str {
                match self { $(Self::$variant => $family,)+ }
            }

            /// Returns what the method does, for the method table in the documentation.
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $summary,)+ }
            }

            /// Returns the ordering of the method.
            pub const fn ordering(self) -> OrderingClass {
                match self { $(Self::$variant => OrderingClass::$ordering,)+ }
            }

            /// Returns the schemas of parameters and result.
            #[cfg(feature = "schema")]
            pub(crate) fn schemas(
                self,
                generator: &mut schemars::SchemaGenerator,
            ) -> (schemars::Schema, schemars::Schema) {
                match self {
                    $(Self::$variant => (
                        generator.subschema_for::<$params>(),
                        generator.subschema_for::<$result>(),
                    ),)+
                }
            }

            /// Returns whether a result decodes.
            #[cfg(all(test, feature = "schema"))]
            pub(crate) fn decodes_result(self, text: &str) -> bool {
                match self {
                    $(Self::$variant => serde_json::from_str::<$result>(text).is_ok(),)+
                }
            }
        }

        /// A request of any method, with its decoded parameters.
        #[derive(Debug)]
        #[expect(clippy::large_enum_variant, reason = "callers box it")]
        pub enum MethodCall {
            $(#[doc = concat!("`", $name, "`")] $variant($params),)+
        }

        impl MethodCall {
            /// Decodes the parameters of a method.
            pub fn decode(
                method: MethodName,
                params: Option<&RawValue>,
            ) -> Result<Self, ParamsError> {
                Ok(match method {
                    $(MethodName::$variant => Self::$variant(decode_params(params)?),)+
                })
            }

            /// Returns the process id in the parameters.
            pub fn process_id(&self) -> Option<&ProcessId> {
                match self {
                    $(Self::$variant($params { $($process_id,)? .. }) => {
                        None $(.or(Some($process_id)))?
                    })+
                }
            }
        }

        $(impl Method for $params {
            const NAME: MethodName = MethodName::$variant;
            type Result = $result;
        })+
    };
}

methods! {
    Initialize(InitializeParams) -> InitializeResponse = "initialize", "initialize", Control, "opens or resumes a session";
    EnvironmentInfo(ReadEnvironmentInfo) -> EnvironmentInfo = "environment/info", "environment info", Control, "describes the host";
    EnvironmentStatus(ReadEnvironmentStatus) -> EnvironmentStatus = "environment/status", "environment status", Control, "reports that the connection is ready";
    EnvironmentConfigRead(ReadEnvironmentConfig) -> EnvironmentConfig = "environmentConfig/read", "environment config", Reads, "reads selected keys of the Codex configuration";
    CapabilityRootsDiscover(DiscoverRoots) -> DiscoveredRoots = "capabilityRoots/discoverV1", "capability discovery", Reads, "reads plugins and skills below given directories";
    CapabilitiesDiscover(DiscoverCapabilities) -> DiscoveredCapabilities = "capabilities/discoverV2", "capability discovery", Reads, "lists installed plugins and skills";
    HttpRequest(HttpRequest) -> HttpResponse = "http/request", "http", Reads, "makes an HTTP request from the host";
    HttpRequestCancel(CancelHttpRequest) -> EmptyResult = "http/request/cancel", "http", Control, "cancels a request or its streamed body";
    ProcessStart(StartProcess: process_id) -> StartResult = "process/start", "exec", Starts, "starts a process";
    ProcessRead(ReadProcess: process_id) -> OutputPage = "process/read", "exec", Reads, "returns retained output, or waits for more";
    ProcessWrite(WriteProcess: process_id) -> WriteResult = "process/write", "exec", Changes, "queues bytes for stdin";
    ProcessCloseStdin(CloseStdin: process_id) -> WriteResult = "process/closeStdin", "exec", Changes, "closes stdin after all earlier writes";
    ProcessResize(ResizeProcess: process_id) -> EmptyResult = "process/resize", "exec", Control, "resizes a terminal";
    ProcessSignal(SignalProcess: process_id) -> EmptyResult = "process/signal", "exec", Control, "signals the process group";
    ProcessTerminate(TerminateProcess: process_id) -> TerminateResult = "process/terminate", "exec", Control, "ends a process and its tree";
    ProcessWait(WaitProcess: process_id) -> WaitResult = "process/wait", "exec", Reads, "waits for the exit or the close of a process";
    ProcessSnapshot(SnapshotProcess: process_id) -> ProcessSnapshot = "process/snapshot", "exec", Reads, "returns head and tail of the output";
    ProcessAttach(AttachProcess: process_id) -> AttachResult = "process/attach", "exec", Reads, "follows a detached process, or takes one over";
    ProcessRelease(ReleaseProcess: process_id) -> EmptyResult = "process/release", "exec", Reads, "stops following a process, or forgets a finished one";
    ProcessList(ListProcesses) -> ProcessList = "process/list", "exec", Reads, "lists processes";
    HistoryList(ListHistory) -> ProcessList = "history/list", "exec", Reads, "lists recorded processes, running and ended";
    HistoryPurge(PurgeHistory) -> PurgedHistory = "history/purge", "exec", Changes, "removes recorded processes that have ended";
    FsReadFile(ReadFile) -> FileContent = "fs/readFile", "filesystem", Reads, "reads a whole file";
    FsWriteFile(WriteFile) -> EmptyResult = "fs/writeFile", "filesystem", Files, "creates or replaces a file";
    FsCreateDirectory(CreateDirectory) -> EmptyResult = "fs/createDirectory", "filesystem", Files, "creates a directory";
    FsGetMetadata(GetMetadata) -> FileMetadata = "fs/getMetadata", "filesystem", Reads, "returns type, size and times of a path";
    FsSetMetadata(SetMetadata) -> EmptyResult = "fs/setMetadata", "filesystem", Files, "sets mode and modification time of a path";
    FsCanonicalize(CanonicalizePath) -> CanonicalPath = "fs/canonicalize", "filesystem", Reads, "resolves every link of a path";
    FsReadDirectory(ReadDirectory) -> DirectoryListing = "fs/readDirectory", "filesystem", Reads, "lists a directory";
    FsWalk(WalkTree) -> WalkResult = "fs/walk", "filesystem", Reads, "lists a tree";
    FsRemove(RemovePath) -> EmptyResult = "fs/remove", "filesystem", Files, "removes a file, a link or a tree";
    FsCopy(CopyPath) -> EmptyResult = "fs/copy", "filesystem", Files, "copies a file, a link or a tree";
    FsRename(RenamePath) -> EmptyResult = "fs/rename", "filesystem", Files, "renames atomically";
    FsCreateSymlink(CreateSymlink) -> EmptyResult = "fs/createSymlink", "filesystem", Files, "creates a symbolic link";
    FsOpen(OpenFile) -> OpenedFile = "fs/open", "filesystem", Changes, "opens a file for access by blocks";
    FsReadBlock(ReadBlock) -> BlockContent = "fs/readBlock", "filesystem", Reads, "reads a block of an open file";
    FsWriteBlock(WriteBlock) -> EmptyResult = "fs/writeBlock", "filesystem", Files, "writes a block of an open file";
    FsClose(CloseFile) -> EmptyResult = "fs/close", "filesystem", Control, "closes an open file";
    FsWatchMissing(WatchMissing) -> WatchMissingResult = "fs/watchMissing", "filesystem", Changes, "notifies once when a missing path appears";
    FsWatch(StartWatch) -> WatchResult = "fs/watch", "filesystem", Changes, "reports changes of a file or a tree";
    FsUnwatch(StopWatch) -> EmptyResult = "fs/unwatch", "filesystem", Changes, "ends a watch";
    FsSearch(SearchText) -> SearchResult = "fs/search", "filesystem", Reads, "finds lines in files";
    FsFind(FindPaths) -> FoundPaths = "fs/find", "filesystem", Reads, "finds files and directories by name";
    TunnelOpen(OpenTunnel) -> EmptyResult = "tunnel/open", "tunnel", Reads, "connects to a port in the network of the host or of a process";
    TunnelListen(ListenTunnel) -> ListenResult = "tunnel/listen", "tunnel", Reads, "accepts connections on a port of the host";
    PortsList(ListPorts) -> PortList = "ports/list", "tunnel", Reads, "lists the TCP ports that listen";
    ServerStatus(ReadServerStatus) -> ServerStatus = "server/status", "server", Control, "describes the server process";
    ServerUpgrade(UpgradeServer) -> UpgradeStarted = "server/upgrade", "server", Control, "replaces the server, which keeps listener, sessions and durable processes";
    CommandExec(ExecCommand: process_id) -> CommandStarted = "command/exec", "exec", Starts, "starts a process, in the first dialect";
    CommandExecWrite(WriteCommand: process_id) -> CommandWritten = "command/exec/write", "exec", Changes, "writes to it";
    CommandExecTerminate(TerminateCommand: process_id) -> TerminateResult = "command/exec/terminate", "exec", Control, "ends it";
}

impl MethodName {
    /// Returns whether the request has a data member, which may be sent as raw bytes.
    pub const fn takes_data(self) -> bool {
        matches!(
            self,
            Self::ProcessWrite | Self::FsWriteFile | Self::FsWriteBlock | Self::HttpRequest
        )
    }
}

impl MethodCall {
    /// Returns the id of the process that the request starts.
    pub fn started_process(&self) -> Option<&ProcessId> {
        if let Self::ProcessStart(_) | Self::CommandExec(_) = self {
            self.process_id()
        } else {
            None
        }
    }

    /// Returns the file handle that the request reads, writes or closes.
    pub fn file_handle(&self) -> Option<&HandleId> {
        if let Self::FsReadBlock(ReadBlock { handle_id, .. })
        | Self::FsWriteBlock(WriteBlock { handle_id, .. })
        | Self::FsClose(CloseFile { handle_id }) = self
        {
            Some(handle_id)
        } else {
            None
        }
    }

    /// Returns the file handle id that the request opens or closes, which changes its meaning for
    /// later requests.
    pub fn changed_handle(&self) -> Option<&HandleId> {
        if let Self::FsOpen(OpenFile { handle_id, .. }) | Self::FsClose(CloseFile { handle_id }) =
            self
        {
            Some(handle_id)
        } else {
            None
        }
    }
}

/// Request from server to client: may a process connect to a host?
pub const NETWORK_POLICY_REQUEST: &str = "network/policyRequest";

/// Notification of the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotificationEntry {
    /// Wire name.
    pub name: &'static str,
    /// End that sends it.
    pub sender: MessageSender,
    /// When it is sent, for the documentation.
    pub summary: &'static str,
}

/// End of a connection that sends a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessageSender {
    /// Client.
    Client,
    /// Server.
    Server,
    /// Either end.
    Both,
}

macro_rules! notifications {
    ($($constant:ident($params:ty) from $sender:ident = $name:literal, $summary:literal;)+) => {
        /// Notifications: the list from which dispatch and schema are derived.
        pub mod notification {
            use super::{MessageSender, NotificationEntry};

            $(#[doc = concat!("`", $name, "`: ", $summary, ".")] pub const $constant: &str = $name;)+

            /// All notifications in the order of the documentation.
            pub const ALL: &[NotificationEntry] = &[$(NotificationEntry {
                name: $name,
                sender: MessageSender::$sender,
                summary: $summary,
            },)+];
        }

        /// Returns the schemas of the parameters of all notifications, in their order.
        #[cfg(feature = "schema")]
        pub(crate) fn notification_schemas(
            generator: &mut schemars::SchemaGenerator,
        ) -> Vec<schemars::Schema> {
            vec![$(generator.subschema_for::<$params>(),)+]
        }

        /// Returns whether the parameters of a notification decode.
        #[cfg(all(test, feature = "schema"))]
        pub(crate) fn decodes_notification(name: &str, text: &str) -> bool {
            match name {
                $($name => serde_json::from_str::<$params>(text).is_ok(),)+
                _ => false,
            }
        }
    };
}

notifications! {
    INITIALIZED(serde_json::Value) from Client = "initialized", "the response to `initialize` was received";
    PROCESS_ACKNOWLEDGE(crate::process::AcknowledgeProcess) from Client = "process/acknowledge", "events of a process were received (extension `acknowledge`)";
    PROCESS_OUTPUT(crate::process::ProcessOutput) from Server = "process/output", "output of a process";
    PROCESS_EXITED(crate::process::ProcessExited) from Server = "process/exited", "a process was reaped";
    PROCESS_CLOSED(crate::process::ProcessClosed) from Server = "process/closed", "the output of a process ended; its last notification";
    PROCESS_STARTED(crate::process::ProcessStarted) from Server = "process/started", "a process was started (extension `lifecycle`)";
    PROCESS_FAILED(crate::process::ProcessFailed) from Server = "process/failed", "a process failed to start (extension `lifecycle`)";
    FS_CHANGED(crate::fs::WatchNotification) from Server = "fs/changed", "watched files changed";
    FS_MISSING_CHANGED(crate::fs::MissingPathNotification) from Server = "fs/missingChanged", "a missing path may have appeared";
    HTTP_BODY_DELTA(crate::http::HttpBodyDelta) from Server = "http/request/bodyDelta", "part of a streamed body of `http/request`";
    NETWORK_POLICY_DECISION(crate::network::PolicyDecision) from Server = "network/policyDecision", "policy decision about a connection of a process";
    COMMAND_OUTPUT(crate::process::CommandOutputDelta) from Server = "command/exec/outputDelta", "output, for `command/exec`";
    COMMAND_EXITED(crate::process::CommandExited) from Server = "command/exec/exited", "exit, for `command/exec`";
    TUNNEL_INCOMING(crate::tunnel::IncomingTunnel) from Server = "tunnel/incoming", "a listener accepted a connection (extension `tunnels`)";
    TUNNEL_DATA(crate::tunnel::TunnelData) from Both = "tunnel/data", "bytes of a tunnel";
    TUNNEL_ACKNOWLEDGE(crate::tunnel::TunnelCursor) from Both = "tunnel/acknowledge", "events of a tunnel were delivered";
    TUNNEL_SHUTDOWN(crate::tunnel::TunnelCursor) from Both = "tunnel/shutdown", "one direction of a tunnel has ended";
    TUNNEL_CLOSE(crate::tunnel::CloseTunnel) from Both = "tunnel/close", "a tunnel has ended";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_round_trip() {
        for &method in MethodName::ALL {
            assert_eq!(MethodName::parse(method.as_str()), Some(method));
        }
        assert_eq!(MethodName::parse("process/nope"), None);
    }

    fn decode(method: MethodName, params: &str) -> MethodCall {
        let params: &RawValue = serde_json::from_str(params).unwrap();
        MethodCall::decode(method, Some(params)).unwrap()
    }

    #[test]
    fn call_knows_its_process_and_its_file_handle() {
        let read = decode(MethodName::ProcessRead, r#"{"processId":"p"}"#);
        assert_eq!(read.process_id(), ProcessId::new("p").ok().as_ref());
        assert_eq!(read.started_process(), None);
        let list = decode(MethodName::ProcessList, "{}");
        assert_eq!(list.process_id(), None);
        let handle = HandleId::new("h");
        let close = decode(MethodName::FsClose, r#"{"handleId":"h"}"#);
        assert_eq!(close.file_handle(), Some(&handle));
        assert_eq!(close.changed_handle(), Some(&handle));
        let block = r#"{"handleId":"h","offset":0,"len":1}"#;
        let block = decode(MethodName::FsReadBlock, block);
        assert_eq!(block.file_handle(), Some(&handle));
        assert_eq!(block.changed_handle(), None);
    }
}
