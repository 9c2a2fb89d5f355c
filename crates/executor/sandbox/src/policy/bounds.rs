//! How much a policy may ask for. Each request with a policy is resolved anew, so all of it is
//! bounded.

/// Entries of a policy. The largest that clients send have some dozens.
pub(super) const MAX_ENTRIES: usize = 4096;
/// Workspace roots. Each entry for project roots, and each of their globs, is there once per root.
pub(super) const MAX_WORKSPACE_ROOTS: usize = 256;
/// Paths and globs that the entries name, after project roots were put in: as many as entries, so
/// that no more files are looked at than the client wrote down.
pub(super) const MAX_TARGETS: usize = MAX_ENTRIES;
/// Distinct globs. Each is compiled, which costs far more than a path.
pub(super) const MAX_GLOBS: usize = 256;
/// Files that globs match: as the stock server.
pub(super) const MAX_MATCHES: usize = 8192;
/// Names that all globs of a policy look at. A scan of this size takes about a second.
pub(super) const MAX_SCANNED: usize = 1_000_000;
/// Layers, and as many forbidden names: all matches and targets, and what their metadata adds. The
/// kernel allows 100 000 mounts in a namespace by default.
pub(super) const MAX_LAYERS: usize = 32_768;
/// Symbolic links on the way to one path: as the kernel.
pub(super) const MAX_LINKS: usize = 40;
/// A file of git's that names a directory: no path is longer than 4 KiB, and a little stands before
/// and after it.
pub(super) const MAX_GIT_FILE_BYTES: usize = 4096 + 64;
