//! Removes ended records that are too old or use too much space.

use std::{
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, Dir, Stat, statat, unlinkat},
    io::Errno,
    time::{ClockId, clock_gettime},
};

use crate::{
    journal_head::JournalHead,
    limits::{JournalLimits, MAX_RECORD_FILES},
    private_file::{length, open_directory},
    record_id::RecordId,
    segment_writer::modified_ms,
    state_layout::StateLayout,
};

/// Prefix of the directory of a record that is being removed.
const REMOVED_PREFIX: &str = "removed-";

/// Size of a state directory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StateUsage {
    /// Bytes of all records.
    pub bytes: u64,
    /// Number of records.
    pub records: usize,
}

/// Result of a cleanup.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CleanupOutcome {
    /// Records that were removed because of their age.
    pub expired: Vec<RecordId>,
    /// Records that were removed to make space.
    pub evicted: Vec<RecordId>,
    /// Records that could not be removed.
    pub failed: usize,
    /// Usage after the cleanup.
    pub usage: StateUsage,
}

/// Size and age of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordUsage {
    pub(crate) bytes: u64,
    /// Time of the last write, in milliseconds since the Unix epoch.
    modified_ms: u64,
}

/// Clocks of this host at one time.
#[derive(Clone, Debug)]
pub(crate) struct HostTime {
    pub(crate) unix_ms: u64,
    pub(crate) since_boot: Duration,
    pub(crate) boot_id: String,
}

impl HostTime {
    /// Reads the clocks.
    pub(crate) fn now(boot_id: &str) -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        Self {
            unix_ms: now_ms(),
            since_boot: Duration::from_secs(u64::try_from(boot.tv_sec).unwrap_or_default()),
            boot_id: boot_id.to_owned(),
        }
    }
}

/// Returns the time in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since_epoch.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Cleanup of the ended records that exceed the limits.
#[derive(Debug)]
pub(crate) struct RecordCleanup<'a> {
    pub(crate) layout: &'a StateLayout,
    pub(crate) limits: &'a JournalLimits,
    pub(crate) now: &'a HostTime,
}

impl RecordCleanup<'_> {
    /// Removes old records, and then the oldest ones until the rest is within the limits.
    pub(crate) fn run(&self, is_live: impl Fn(RecordId) -> bool) -> CleanupOutcome {
        let mut outcome = CleanupOutcome::default();
        let mut ended = Vec::new();
        for id in self.layout.records().unwrap_or_default() {
            let usage = record_usage(self.layout, id).unwrap_or_default();
            let is_ended = !is_live(id);
            if is_ended && self.age(id, &usage) > self.limits.max_age {
                if remove(self.layout, id).is_ok() {
                    outcome.expired.push(id);
                    continue;
                }
                outcome.failed += 1;
            } else if is_ended {
                ended.push((id, usage));
            }
            outcome.usage.records += 1;
            outcome.usage.bytes += usage.bytes;
        }
        // In the order of creation, which does not change when the clock is set.
        for (id, usage) in ended {
            if outcome.usage.bytes <= self.limits.total_bytes {
                break;
            }
            if remove(self.layout, id).is_ok() {
                outcome.usage.records -= 1;
                outcome.usage.bytes -= usage.bytes;
                outcome.evicted.push(id);
            } else {
                outcome.failed += 1;
            }
        }
        outcome
    }

    /// Returns the age of a record. A record of this boot is not older than the boot, even if the
    /// clock was set meanwhile.
    fn age(&self, id: RecordId, usage: &RecordUsage) -> Duration {
        let age = Duration::from_millis(self.now.unix_ms.saturating_sub(usage.modified_ms));
        let is_this_boot = || {
            let directory = self.layout.record(id).ok();
            let head = directory.and_then(|directory| JournalHead::load(directory).ok());
            head.is_some_and(|head| head.boot_id == self.now.boot_id)
        };
        if age > self.now.since_boot && is_this_boot() {
            self.now.since_boot
        } else {
            age
        }
    }
}

/// Adds up the files of a record.
pub(crate) fn record_usage(layout: &StateLayout, id: RecordId) -> io::Result<RecordUsage> {
    let directory = open_directory(&layout.processes, &id.to_string())?;
    let mut usage = RecordUsage::default();
    for entry in Dir::read_from(&directory)?.take(MAX_RECORD_FILES) {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        match statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                usage.bytes = usage.bytes.saturating_add(disk_bytes(&stat));
                usage.modified_ms = usage.modified_ms.max(modified_ms(&stat));
            }
            // Evicted meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(usage)
}

/// Removes a record in such a way that a part of it never looks like a record.
pub(crate) fn remove(layout: &StateLayout, id: RecordId) -> io::Result<()> {
    let removed = format!("{REMOVED_PREFIX}{id}");
    let processes = &layout.processes;
    match rustix::fs::renameat(processes, id.to_string(), processes, &removed) {
        Ok(()) => remove_directory(layout, &removed),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Finishes removals that were interrupted. What fails is tried again at the next start.
pub(crate) fn finish_removals(layout: &StateLayout, names: &[String]) {
    for name in names.iter().filter(|name| name.starts_with(REMOVED_PREFIX)) {
        remove_directory(layout, name).ok();
    }
}

fn remove_directory(layout: &StateLayout, name: &str) -> io::Result<()> {
    let directory = open_directory(&layout.processes, name)?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(&directory, entry.file_name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(unlinkat(&layout.processes, name, AtFlags::REMOVEDIR)?)
}

/// Returns what a file uses: its length, or less if it has holes.
fn disk_bytes(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
    length(stat).min(blocks.saturating_mul(512).max(4096))
}
