//! A snapshot as the wire has it, as one of the environment's.

use exec_core::log::{HeadTail, Snapshot};
use exec_wire::process::{OutputStream, ProcessSnapshot};

/// The wire tells only how much is omitted altogether. What came of a stream and is not in the
/// snapshot is omitted from it: that is exact once everything has come.
pub(crate) fn split_omitted(snapshot: ProcessSnapshot, written: [u64; 3]) -> Snapshot {
    let mut left = snapshot.omitted_bytes;
    let [stdout, stderr, terminal] = [
        (snapshot.stdout, OutputStream::Stdout),
        (snapshot.stderr, OutputStream::Stderr),
        (snapshot.terminal, OutputStream::Pty),
    ]
    .map(|(data, stream)| {
        let data = Vec::from(data.0);
        let omitted = written[stream as usize]
            .saturating_sub(data.len() as u64)
            .min(left);
        left -= omitted;
        HeadTail { data, omitted }
    });
    let mut snapshot = Snapshot {
        stdout,
        stderr,
        terminal,
    };
    // Output that has not come yet: a stream that has more than it showed so far.
    let latest = if snapshot.terminal.data.is_empty() {
        &mut snapshot.stdout
    } else {
        &mut snapshot.terminal
    };
    latest.omitted += left;
    snapshot
}
