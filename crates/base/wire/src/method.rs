//! The method table: the one list that router, client and PROTOCOL.md derive from.

use serde::{Serialize, de::DeserializeOwned};

/// A request type is its method: its parameters are its fields.
pub trait Method: DeserializeOwned + Serialize {
    /// The name on the wire.
    const NAME: MethodName;
    /// What a success answers.
    type Result: DeserializeOwned + Serialize;
}

/// How a request is ordered among the others of its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ordering {
    /// Sees every earlier change; runs beside other reads.
    Reads,
    /// Starts when all earlier requests are done.
    Changes,
    /// Starts a process: a change that does not disturb other starts.
    Starts,
    /// Changes files: a change that runs after earlier ones of its kind, in one line with them.
    Files,
    /// Never queues.
    Control,
}

macro_rules! methods {
    ($($variant:ident = $name:literal, $family:literal, $ordering:ident;)+) => {
        /// A request that a client may send.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum MethodName {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }

        impl MethodName {
            /// Every method, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Finds a method by its name on the wire.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }

            /// Returns the name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the family that gate errors name.
            pub const fn family(self) -> &'static str {
                match self { $(Self::$variant => $family,)+ }
            }

            /// Returns how the method is ordered among others.
            pub const fn ordering(self) -> Ordering {
                match self { $(Self::$variant => Ordering::$ordering,)+ }
            }
        }
    };
}

methods! {
    Initialize = "initialize", "initialize", Control;
    EnvironmentInfo = "environment/info", "environment info", Control;
    EnvironmentStatus = "environment/status", "environment status", Control;
    EnvironmentConfigRead = "environmentConfig/read", "environment config", Reads;
    CapabilityRootsDiscover = "capabilityRoots/discoverV1", "capability discovery", Reads;
    CapabilitiesDiscover = "capabilities/discoverV2", "capability discovery", Reads;
    HttpRequest = "http/request", "http", Reads;
    HttpRequestCancel = "http/request/cancel", "http", Control;
    ProcessStart = "process/start", "exec", Starts;
    ProcessRead = "process/read", "exec", Reads;
    ProcessWrite = "process/write", "exec", Changes;
    ProcessCloseStdin = "process/closeStdin", "exec", Changes;
    ProcessResize = "process/resize", "exec", Control;
    ProcessSignal = "process/signal", "exec", Control;
    ProcessTerminate = "process/terminate", "exec", Control;
    ProcessWait = "process/wait", "exec", Reads;
    ProcessSnapshot = "process/snapshot", "exec", Reads;
    ProcessAttach = "process/attach", "exec", Reads;
    ProcessRelease = "process/release", "exec", Reads;
    ProcessList = "process/list", "exec", Reads;
    FsReadFile = "fs/readFile", "filesystem", Reads;
    FsWriteFile = "fs/writeFile", "filesystem", Files;
    FsCreateDirectory = "fs/createDirectory", "filesystem", Files;
    FsGetMetadata = "fs/getMetadata", "filesystem", Reads;
    FsCanonicalize = "fs/canonicalize", "filesystem", Reads;
    FsReadDirectory = "fs/readDirectory", "filesystem", Reads;
    FsWalk = "fs/walk", "filesystem", Reads;
    FsRemove = "fs/remove", "filesystem", Files;
    FsCopy = "fs/copy", "filesystem", Files;
    FsRename = "fs/rename", "filesystem", Files;
    FsOpen = "fs/open", "filesystem", Changes;
    FsReadBlock = "fs/readBlock", "filesystem", Reads;
    FsWriteBlock = "fs/writeBlock", "filesystem", Files;
    FsClose = "fs/close", "filesystem", Control;
    FsWatchMissing = "fs/watchMissing", "filesystem", Changes;
    FsWatch = "fs/watch", "filesystem", Changes;
    FsUnwatch = "fs/unwatch", "filesystem", Changes;
    FsSearch = "fs/search", "filesystem", Reads;
    FsFind = "fs/find", "filesystem", Reads;
    CommandExec = "command/exec", "exec", Starts;
    CommandExecWrite = "command/exec/write", "exec", Changes;
    CommandExecTerminate = "command/exec/terminate", "exec", Control;
}

impl MethodName {
    /// Tells whether the request has a data member, which may travel raw.
    pub const fn takes_data(self) -> bool {
        matches!(
            self,
            Self::ProcessWrite | Self::FsWriteFile | Self::FsWriteBlock | Self::HttpRequest
        )
    }
}

/// What the server asks a client: whether a process may reach a host.
pub const NETWORK_POLICY_REQUEST: &str = "network/policyRequest";

/// What a client tells once: that it has read the answer to `initialize`.
pub const INITIALIZED: &str = "initialized";

/// What a client tells of a process's events that it has taken (grant `acknowledge`).
pub const PROCESS_ACKNOWLEDGE: &str = "process/acknowledge";

/// What the server tells.
pub mod notification {
    /// Output of a process.
    pub const PROCESS_OUTPUT: &str = "process/output";
    /// A process was reaped.
    pub const PROCESS_EXITED: &str = "process/exited";
    /// The output of a process ended; nothing follows.
    pub const PROCESS_CLOSED: &str = "process/closed";
    /// A process was started (grant `lifecycle`).
    pub const PROCESS_STARTED: &str = "process/started";
    /// A process was not started (grant `lifecycle`).
    pub const PROCESS_FAILED: &str = "process/failed";
    /// Watched files have changed.
    pub const FS_CHANGED: &str = "fs/changed";
    /// A missing path has appeared, or so it seems.
    pub const FS_MISSING_CHANGED: &str = "fs/missingChanged";
    /// A part of a streamed body of `http/request`.
    pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
    /// What was decided about a connection of a process.
    pub const NETWORK_POLICY_DECISION: &str = "network/policyDecision";
    /// Output, in the first dialect.
    pub const COMMAND_OUTPUT: &str = "command/exec/outputDelta";
    /// Exit, in the first dialect.
    pub const COMMAND_EXITED: &str = "command/exec/exited";

    /// Every notification, in the order of the documentation.
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
