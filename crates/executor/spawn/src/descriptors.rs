//! The descriptors that this process was started with.

use crate::raw;

/// Keeps every descriptor but the standard ones from the programs that this process starts from now on, those
/// included that whoever started this process has left open. In this process they stay as they are.
///
/// A kernel that does not know how (before Linux 5.11) passes on what it would have passed on.
pub fn keep_descriptors_from_programs() {
    if let Err(error) = raw::close_range_on_exec(3, i32::MAX) {
        tracing::debug!(error, "descriptors are passed on to programs");
    }
}
