//! Promises that the exec-server of the stock Codex CLI keeps in another way, or not at all.

use crate::subject::{Capabilities, Ids, REMOTE, Refusals};

/// A promise of the traits that a subject keeps in another way. The cases assert what it does instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// There is no `process/closeStdin`: nobody can end the input of a process.
    NoCloseStdin,
    /// There is no `process/resize`.
    NoResize,
    /// Terminals have 24 rows and 80 columns.
    OneTerminalSize,
    /// `interrupt` is the only signal.
    OnlyInterrupt,
    /// A process can only be killed.
    NoGracefulEnd,
    /// A process has no limits.
    NoLimits,
    /// An exit is told by its code alone: no signal, no cause, no usage.
    BareExits,
    /// Death by a signal on a terminal is code 1.
    TerminalsHideSignals,
    /// A write just after an end may still be taken.
    LateWritesAreTaken,
    /// What has left the process group is not ended.
    DescendantsSurvive,
    /// What an exited process left is not ended.
    LeftoversSurvive,
    /// A terminal's process starts at home if its directory is missing.
    TerminalsStartAnywhere,
    /// `arg0` is what is run on a terminal.
    TerminalsRunArg0,
    /// A process that is given a terminal under a policy does not get one that it controls.
    SandboxedTerminalsAreNotControlling,
    /// What a command left in its sandbox is killed when it exits.
    SandboxesEndWithTheirCommand,
    /// One request is handled after the other: one that waits holds up all others.
    SerialRequests,
    /// A process has no flow control of its own: it is paused once all buffers of its connection
    /// are full.
    SharedWindow,
    /// Errors do not name what they are about; those of terminals may.
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
    /// Writing to a pipe that nobody reads waits.
    PipesAreWaitedFor,
    /// The time of creation is not told.
    NoCreationTime,
    /// A file that is copied onto itself, or onto another name of its own, is emptied.
    CopiesEmptyThemselves,
    /// Walks pass over names that are not text of one line.
    WalksKnowOnlyText,
    /// What is installed is looked for only once, while the server starts: whatever comes then may or
    /// may not be listed.
    InventoryOfTheStart,
    /// There is no `http/request/cancel`: a request that was given up goes on.
    NoHttpCancel,
    /// Missing metadata directories are seen in a sandbox, empty and read-only; and its temporary
    /// directory holds marks of them.
    MetadataIsSeen,
    /// A single file cannot be made writable in a sandbox.
    NoWritableFiles,
    /// Policies that cannot be enforced are not refused as such: some are taken, others fail when they
    /// are put into force.
    FewerRefusals,
    /// A file that does not fit into one message of a relay cannot be read at once.
    AnswersAreBounded,
    /// An answer that does not fit into one message of a relay never comes.
    LongAnswersAreLost,
}

/// An executor of ours behind a hub.
pub const RELAYED: Capabilities = Capabilities {
    on_the_way: &[Difference::AnswersAreBounded],
    ..REMOTE
};

/// An executor of the stock Codex CLI behind a hub.
pub const STOCK_RELAYED: Capabilities = Capabilities {
    on_the_way: &[Difference::LongAnswersAreLost],
    ..STOCK
};

/// The exec-server of the stock Codex CLI.
pub const STOCK: Capabilities = Capabilities {
    refusals: Refusals::Rpc,
    ids: Ids::Unique,
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
        Difference::NoHttpCancel,
        Difference::MetadataIsSeen,
        Difference::NoWritableFiles,
        Difference::FewerRefusals,
    ],
    on_the_way: &[],
};

impl Capabilities {
    /// Tells whether a promise is kept in another way, which the case then asserts. It is said, so that
    /// such cases can be counted.
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
