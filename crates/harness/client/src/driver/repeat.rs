//! What becomes of a call whose connection breaks before the answer.

use exec_wire::method::MethodName;

/// Whether a call can be made again without doing anything twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Repeat {
    /// It is: its effect is the same, however often it is asked.
    Always,
    /// It has no effect. It is made again if somebody still waits for the answer.
    IfAwaited,
    /// It is not: it could be done twice, or it names something that went with the connection.
    Never,
}

impl Repeat {
    /// What a method comes to if nothing else is said.
    pub(crate) const fn of(method: MethodName) -> Self {
        match method {
            // The server knows by the `writeId` what it has taken already.
            MethodName::ProcessWrite
            | MethodName::ProcessCloseStdin
            | MethodName::ProcessResize => Self::Always,
            MethodName::EnvironmentInfo
            | MethodName::EnvironmentStatus
            | MethodName::EnvironmentConfigRead
            | MethodName::CapabilityRootsDiscover
            | MethodName::CapabilitiesDiscover
            | MethodName::ProcessRead
            | MethodName::ProcessWait
            | MethodName::ProcessSnapshot
            | MethodName::ProcessList
            | MethodName::FsReadFile
            | MethodName::FsGetMetadata
            | MethodName::FsCanonicalize
            | MethodName::FsReadDirectory
            | MethodName::FsWalk
            | MethodName::FsSearch
            | MethodName::FsFind => Self::IfAwaited,
            MethodName::Initialize
            | MethodName::HttpRequest
            | MethodName::HttpRequestCancel
            | MethodName::ProcessStart
            | MethodName::ProcessSignal
            // One that lets a process end by itself is a signal, too.
            | MethodName::ProcessTerminate
            | MethodName::ProcessAttach
            | MethodName::ProcessRelease
            | MethodName::FsWriteFile
            | MethodName::FsCreateDirectory
            | MethodName::FsRemove
            | MethodName::FsCopy
            | MethodName::FsRename
            | MethodName::FsOpen
            | MethodName::FsReadBlock
            | MethodName::FsWriteBlock
            | MethodName::FsClose
            | MethodName::FsWatchMissing
            | MethodName::FsWatch
            | MethodName::FsUnwatch
            | MethodName::CommandExec
            | MethodName::CommandExecWrite
            | MethodName::CommandExecTerminate => Self::Never,
        }
    }
}
