//! Differences of the stock Codex CLI's exec-server from the trait contract.

use crate::subject::{ProcessIdScope, REMOTE, StartErrorForm, SubjectCapabilities};

/// Part of the trait contract that a subject implements differently. The cases assert its actual
/// behaviour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// There is no `process/closeStdin`, so stdin cannot be closed.
    NoCloseStdin,
    /// There is no `process/resize`.
    NoResize,
    /// Terminals have 24 rows and 80 columns.
    OneTerminalSize,
    /// `interrupt` is the only signal.
    OnlyInterrupt,
    /// Processes can be killed, but not terminated gracefully.
    NoGracefulEnd,
    /// There are no resource limits.
    NoLimits,
    /// An exit carries only a code: no signal, cause or usage.
    BareExits,
    /// On a terminal, death by a signal is reported as code 1.
    TerminalsHideSignals,
    /// A write just after the exit may still be accepted.
    LateWritesAreTaken,
    /// Processes outside the process group survive a terminate.
    DescendantsSurvive,
    /// A forced end may drop output that the server has not read yet. Seen in about one of a
    /// hundred on a busy machine.
    ForcedEndsMayDropOutput,
    /// Descendants of an exited process survive.
    LeftoversSurvive,
    /// On a terminal, a missing working directory falls back to the home directory.
    TerminalsStartAnywhere,
    /// On a terminal, `arg0` is the program that runs.
    TerminalsRunArg0,
    /// A sandboxed process on a terminal has no controlling terminal.
    SandboxedTerminalsAreNotControlling,
    /// Descendants in a sandbox are killed when the command exits.
    SandboxesEndWithTheirCommand,
    /// Requests are handled serially: a blocked request blocks all later ones.
    SerialRequests,
    /// There is no flow control per process: a process pauses once all buffers of its connection
    /// are full.
    SharedWindow,
    /// Errors do not name the offending path or program, except sometimes on terminals.
    ErrorsNameNothing,
    /// There is no `fs/rename`.
    NoRename,
    /// There is no `fs/search`.
    NoSearch,
    /// There is no `fs/find`.
    NoFind,
    /// There is no `fs/watch`.
    NoWatch,
    /// `fs/open` has no `update`.
    NoUpdate,
    /// `fs/writeFile` has no `createParents`, `atomic` and `mode`.
    PlainWrites,
    /// Writing to a FIFO without a reader blocks.
    PipesAreWaitedFor,
    /// The creation time is not reported.
    NoCreationTime,
    /// Copying a file onto itself, or onto another hard link of it, truncates it.
    CopiesEmptyThemselves,
    /// Walks skip names that are not UTF-8 or contain a newline.
    WalksKnowOnlyText,
    /// Installed skills and plugins are scanned only once at start-up, so later ones may or may not
    /// be listed.
    InventoryOfTheStart,
    /// There are no tunnels and no list of ports.
    NoTunnels,
    /// There is no `http/request/cancel`, so a cancelled request continues.
    NoHttpCancel,
    /// In a sandbox, missing metadata directories appear as empty read-only directories, and the
    /// temporary directory holds markers for them.
    MetadataIsSeen,
    /// A single file cannot be made writable in a sandbox.
    NoWritableFiles,
    /// Unenforceable policies are not refused up front: some are accepted, others fail during
    /// enforcement.
    FewerRefusals,
    /// `fs/readFile` fails for files that do not fit into one relay message.
    AnswersAreBounded,
    /// Responses that do not fit into one relay message never arrive.
    LongAnswersAreLost,
}

/// SubjectCapabilities of our executor behind a hub.
pub const RELAYED: SubjectCapabilities = SubjectCapabilities {
    on_the_way: &[Difference::AnswersAreBounded],
    ..REMOTE
};

/// SubjectCapabilities of the stock Codex CLI's executor behind a hub.
pub const STOCK_RELAYED: SubjectCapabilities = SubjectCapabilities {
    on_the_way: &[Difference::LongAnswersAreLost],
    ..STOCK
};

/// SubjectCapabilities of the stock Codex CLI's exec-server.
pub const STOCK: SubjectCapabilities = SubjectCapabilities {
    refusals: StartErrorForm::Rpc,
    ids: ProcessIdScope::Unique,
    differences: &[
        Difference::NoCloseStdin,
        Difference::NoResize,
        Difference::OneTerminalSize,
        Difference::OnlyInterrupt,
        Difference::NoGracefulEnd,
        Difference::NoLimits,
        Difference::BareExits,
        Difference::TerminalsHideSignals,
        Difference::LateWritesAreTaken,
        Difference::DescendantsSurvive,
        Difference::ForcedEndsMayDropOutput,
        Difference::LeftoversSurvive,
        Difference::TerminalsStartAnywhere,
        Difference::TerminalsRunArg0,
        Difference::SandboxedTerminalsAreNotControlling,
        Difference::SandboxesEndWithTheirCommand,
        Difference::SerialRequests,
        Difference::SharedWindow,
        Difference::ErrorsNameNothing,
        Difference::NoRename,
        Difference::NoUpdate,
        Difference::NoSearch,
        Difference::NoFind,
        Difference::NoWatch,
        Difference::PlainWrites,
        Difference::PipesAreWaitedFor,
        Difference::NoCreationTime,
        Difference::CopiesEmptyThemselves,
        Difference::WalksKnowOnlyText,
        Difference::InventoryOfTheStart,
        Difference::NoTunnels,
        Difference::NoHttpCancel,
        Difference::MetadataIsSeen,
        Difference::NoWritableFiles,
        Difference::FewerRefusals,
    ],
    on_the_way: &[],
};

impl SubjectCapabilities {
    /// Returns whether the subject declares `difference`, and prints it so that such cases can be
    /// counted.
    #[expect(
        clippy::print_stdout,
        reason = "whoever runs the suite counts these lines"
    )]
    pub(crate) fn differs(&self, difference: Difference) -> bool {
        let mut known = self.differences.iter().chain(self.on_the_way);
        let declared = known.any(|known| *known == difference);
        if declared {
            println!("declared difference: {difference:?}");
        }
        declared
    }
}
