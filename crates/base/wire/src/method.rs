//! Method table: the list from which router, client and PROTOCOL.md are derived.

use serde::{Serialize, de::DeserializeOwned};

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

macro_rules! methods {
    ($($variant:ident = $name:literal, $family:literal, $ordering:ident, $summary:literal;)+) => {
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
        }
    };
}

methods! {
    Initialize = "initialize", "initialize", Control, "opens or resumes a session";
    EnvironmentInfo = "environment/info", "environment info", Control, "describes the host";
    EnvironmentStatus = "environment/status", "environment status", Control, "reports that the connection is ready";
    EnvironmentConfigRead = "environmentConfig/read", "environment config", Reads, "reads selected keys of the Codex configuration";
    CapabilityRootsDiscover = "capabilityRoots/discoverV1", "capability discovery", Reads, "reads plugins and skills below given directories";
    CapabilitiesDiscover = "capabilities/discoverV2", "capability discovery", Reads, "lists installed plugins and skills";
    HttpRequest = "http/request", "http", Reads, "makes an HTTP request from the host";
    HttpRequestCancel = "http/request/cancel", "http", Control, "cancels a request or its streamed body";
    ProcessStart = "process/start", "exec", Starts, "starts a process";
    ProcessRead = "process/read", "exec", Reads, "returns retained output, or waits for more";
    ProcessWrite = "process/write", "exec", Changes, "queues bytes for stdin";
    ProcessCloseStdin = "process/closeStdin", "exec", Changes, "closes stdin after all earlier writes";
    ProcessResize = "process/resize", "exec", Control, "resizes a terminal";
    ProcessSignal = "process/signal", "exec", Control, "signals the process group";
    ProcessTerminate = "process/terminate", "exec", Control, "ends a process and its tree";
    ProcessWait = "process/wait", "exec", Reads, "waits for the exit or the close of a process";
    ProcessSnapshot = "process/snapshot", "exec", Reads, "returns head and tail of the output";
    ProcessAttach = "process/attach", "exec", Reads, "follows a detached process, or takes one over";
    ProcessRelease = "process/release", "exec", Reads, "stops following a process, or forgets a finished one";
    ProcessList = "process/list", "exec", Reads, "lists processes";
    FsReadFile = "fs/readFile", "filesystem", Reads, "reads a whole file";
    FsWriteFile = "fs/writeFile", "filesystem", Files, "creates or replaces a file";
    FsCreateDirectory = "fs/createDirectory", "filesystem", Files, "creates a directory";
    FsGetMetadata = "fs/getMetadata", "filesystem", Reads, "returns type, size and times of a path";
    FsCanonicalize = "fs/canonicalize", "filesystem", Reads, "resolves every link of a path";
    FsReadDirectory = "fs/readDirectory", "filesystem", Reads, "lists a directory";
    FsWalk = "fs/walk", "filesystem", Reads, "lists a tree";
    FsRemove = "fs/remove", "filesystem", Files, "removes a file, a link or a tree";
    FsCopy = "fs/copy", "filesystem", Files, "copies a file, a link or a tree";
    FsRename = "fs/rename", "filesystem", Files, "renames atomically";
    FsOpen = "fs/open", "filesystem", Changes, "opens a file for access by blocks";
    FsReadBlock = "fs/readBlock", "filesystem", Reads, "reads a block of an open file";
    FsWriteBlock = "fs/writeBlock", "filesystem", Files, "writes a block of an open file";
    FsClose = "fs/close", "filesystem", Control, "closes an open file";
    FsWatchMissing = "fs/watchMissing", "filesystem", Changes, "notifies once when a missing path appears";
    FsWatch = "fs/watch", "filesystem", Changes, "reports changes of a file or a tree";
    FsUnwatch = "fs/unwatch", "filesystem", Changes, "ends a watch";
    FsSearch = "fs/search", "filesystem", Reads, "finds lines in files";
    FsFind = "fs/find", "filesystem", Reads, "finds files and directories by name";
    CommandExec = "command/exec", "exec", Starts, "starts a process, in the first dialect";
    CommandExecWrite = "command/exec/write", "exec", Changes, "writes to it";
    CommandExecTerminate = "command/exec/terminate", "exec", Control, "ends it";
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

/// Request from server to client: may a process connect to a host?
pub const NETWORK_POLICY_REQUEST: &str = "network/policyRequest";

/// Notification from client to server: the response to `initialize` was received.
pub const INITIALIZED: &str = "initialized";

/// Notification from client to server: events of a process were received (extension `acknowledge`).
pub const PROCESS_ACKNOWLEDGE: &str = "process/acknowledge";

/// Notifications from server to client.
pub mod notification {
    /// Output of a process.
    pub const PROCESS_OUTPUT: &str = "process/output";
    /// A process was reaped.
    pub const PROCESS_EXITED: &str = "process/exited";
    /// The output of a process ended. This is its last notification.
    pub const PROCESS_CLOSED: &str = "process/closed";
    /// A process was started (extension `lifecycle`).
    pub const PROCESS_STARTED: &str = "process/started";
    /// A process failed to start (extension `lifecycle`).
    pub const PROCESS_FAILED: &str = "process/failed";
    /// Watched files changed.
    pub const FS_CHANGED: &str = "fs/changed";
    /// A missing path may have appeared.
    pub const FS_MISSING_CHANGED: &str = "fs/missingChanged";
    /// Part of a streamed body of `http/request`.
    pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
    /// Policy decision about a connection of a process.
    pub const NETWORK_POLICY_DECISION: &str = "network/policyDecision";
    /// Output, for `command/exec`.
    pub const COMMAND_OUTPUT: &str = "command/exec/outputDelta";
    /// Exit, for `command/exec`.
    pub const COMMAND_EXITED: &str = "command/exec/exited";

    /// All notifications in the order of the documentation.
    pub const ALL: &[&str] = &[
        PROCESS_OUTPUT,
        PROCESS_EXITED,
        PROCESS_CLOSED,
        PROCESS_STARTED,
        PROCESS_FAILED,
        FS_CHANGED,
        FS_MISSING_CHANGED,
        HTTP_BODY_DELTA,
        NETWORK_POLICY_DECISION,
        COMMAND_OUTPUT,
        COMMAND_EXITED,
    ];
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
}
