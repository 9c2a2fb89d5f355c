//! How much a driver does before it is somebody else's turn.

/// What waits in a socket at most, about: a keystroke does not wait behind more.
pub(super) const SOCKET_BYTES: usize = 256 << 10;
/// What one of several streams may put there before others have their turn: a record.
pub(super) const TURN_BYTES: usize = 60 << 10;
/// Messages that are read in a row before other tasks have their turn.
pub(super) const READ_AT_ONCE: usize = 64;
/// Times that a socket is filled and emptied before other tasks have their turn.
pub(super) const FLUSHES_AT_ONCE: usize = 16;
