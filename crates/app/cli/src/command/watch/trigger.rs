//! Decides whether changes cause another run. Pure.
//!
//! A command may write into a watched directory. Paths that change in three runs in a row are
//! attributed to the command for as long as every run changes them; the same holds for new names in
//! a directory where three runs in a row created some. Everything else may be an edit and causes
//! another run.
//!
//! Invariant: a command's own writes do not cause endless reruns.

use std::collections::BTreeMap;

use exec_wire::{
    fs::{PathChange, PathChangeKind},
    path_uri::PathUri,
};

/// Runs in a row that must change a path before it is attributed to the command.
const MIN_OWN_RUNS: u32 = 3;
/// Maximum runs without a pause.
const MAX_IN_A_ROW: u32 = 10;
/// Maximum remembered paths of one run. More count as lost events.
const MAX_REMEMBERED: usize = 16_384;

/// Remembers what the command itself writes.
#[derive(Debug, Default)]
pub(super) struct RerunTrigger {
    /// Paths changed by the last run, and by how many runs in a row.
    paths: BTreeMap<PathUri, u32>,
    /// Directories in which the last run created or removed names.
    directories: BTreeMap<PathUri, u32>,
    /// Number of runs in a row with lost events.
    lost: u32,
    in_a_row: u32,
}

/// Decision after changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TriggerDecision {
    /// Run the command.
    Run,
    /// Wait for changes.
    Wait,
    /// Wait for changes: every run causes new ones, and this would not end.
    Stop,
}

impl RerunTrigger {
    /// Handles changes while nothing runs.
    pub(super) fn handle_idle(
        &mut self,
        changed: &[PathChange],
        lost: EventLoss,
    ) -> TriggerDecision {
        if changed.is_empty() && lost == EventLoss::None {
            return TriggerDecision::Wait;
        }
        self.in_a_row = 0;
        TriggerDecision::Run
    }

    /// Handles changes during a run.
    pub(super) fn handle_run(
        &mut self,
        changed: &[PathChange],
        lost: EventLoss,
    ) -> TriggerDecision {
        let lost = match changed.len() > MAX_REMEMBERED {
            true => EventLoss::Some,
            false => lost,
        };
        self.lost = match lost {
            EventLoss::Some => self.lost + 1,
            EventLoss::None => 0,
        };
        let (mut paths, mut directories) = (BTreeMap::new(), BTreeMap::new());
        let mut has_news = (1..MIN_OWN_RUNS).contains(&self.lost);
        for change in changed.iter().take(MAX_REMEMBERED) {
            let runs = self.paths.get(&change.path).unwrap_or(&0) + 1;
            let is_new = runs < MIN_OWN_RUNS && !paths.contains_key(&change.path);
            let is_name = match change.kind {
                PathChangeKind::Modified => false,
                PathChangeKind::Created
                | PathChangeKind::Removed
                | PathChangeKind::Renamed
                | PathChangeKind::Unknown => true,
            };
            has_news |= is_new && !(is_name && self.is_own_directory(&change.path));
            if let Some(directory) = change.path.parent().filter(|_| is_name) {
                let runs = self.directories.get(&directory).unwrap_or(&0) + 1;
                directories.insert(directory, runs);
            }
            paths.insert(change.path.clone(), runs);
        }
        (self.paths, self.directories) = (paths, directories);
        self.in_a_row += 1;
        match has_news {
            true if self.in_a_row < MAX_IN_A_ROW => TriggerDecision::Run,
            true => TriggerDecision::Stop,
            false => TriggerDecision::Wait,
        }
    }

    /// Returns whether the last runs created names in an ancestor of this path.
    fn is_own_directory(&self, path: &PathUri) -> bool {
        let mut above = path.parent();
        while let Some(directory) = above {
            // Counts this run.
            if self
                .directories
                .get(&directory)
                .is_some_and(|&runs| runs + 1 >= MIN_OWN_RUNS)
            {
                return true;
            }
            above = directory.parent();
        }
        false
    }
}

/// Whether events were lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EventLoss {
    /// None were lost.
    None,
    /// Some were lost.
    Some,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, kind: PathChangeKind) -> PathChange {
        let path = PathUri::parse(&format!("file:///tree/{name}")).unwrap();
        PathChange { path, kind }
    }

    fn modified(names: &[&str]) -> Vec<PathChange> {
        let change = |name: &&str| change(name, PathChangeKind::Modified);
        names.iter().map(change).collect()
    }

    #[test]
    fn change_while_idle_causes_a_run() {
        let mut trigger = RerunTrigger::default();
        assert_eq!(
            trigger.handle_idle(&[], EventLoss::None),
            TriggerDecision::Wait
        );
        assert_eq!(
            trigger.handle_idle(&modified(&["a"]), EventLoss::None),
            TriggerDecision::Run
        );
        assert_eq!(
            trigger.handle_idle(&[], EventLoss::Some),
            TriggerDecision::Run
        );
    }

    #[test]
    fn path_changed_by_three_runs_is_attributed_to_the_command() {
        let mut trigger = RerunTrigger::default();
        let mut run = |names: &[&str]| trigger.handle_run(&modified(names), EventLoss::None);
        assert_eq!(run(&["out"]), TriggerDecision::Run);
        assert_eq!(run(&["out"]), TriggerDecision::Run);
        assert_eq!(run(&["out"]), TriggerDecision::Wait);
        assert_eq!(run(&["out"]), TriggerDecision::Wait);
        assert_eq!(run(&["out", "edited"]), TriggerDecision::Run);
        assert_eq!(run(&["out"]), TriggerDecision::Wait);
        assert_eq!(run(&["edited"]), TriggerDecision::Run);
        assert_eq!(run(&["out"]), TriggerDecision::Run);
    }

    #[test]
    fn new_names_in_one_directory_are_attributed_to_the_command_after_three_runs() {
        let mut trigger = RerunTrigger::default();
        let mut run = |name: &str| {
            let change = change(name, PathChangeKind::Created);
            trigger.handle_run(&[change], EventLoss::None)
        };
        assert_eq!(run("temporary-1"), TriggerDecision::Run);
        assert_eq!(run("temporary-2"), TriggerDecision::Run);
        assert_eq!(run("temporary-3"), TriggerDecision::Wait);
        assert_eq!(run("temporary-4/below"), TriggerDecision::Wait);
    }

    #[test]
    fn reruns_stop_even_if_every_run_writes_other_files() {
        let mut trigger = RerunTrigger::default();
        let runs = |trigger: &mut RerunTrigger| {
            let next = (0..100).map(|number| {
                let name = format!("rotated-{}", number % 50);
                trigger.handle_run(&modified(&[&name]), EventLoss::None)
            });
            next.take_while(|next| *next == TriggerDecision::Run)
                .count()
        };
        assert_eq!(runs(&mut trigger), MAX_IN_A_ROW as usize - 1);
        assert_eq!(
            trigger.handle_idle(&modified(&["src"]), EventLoss::None),
            TriggerDecision::Run
        );
        assert_eq!(runs(&mut trigger), MAX_IN_A_ROW as usize - 1);
    }

    #[test]
    fn lost_events_in_every_run_stop_reruns() {
        let mut trigger = RerunTrigger::default();
        let mut run = || trigger.handle_run(&[], EventLoss::Some);
        assert_eq!(
            [run(), run(), run()],
            [
                TriggerDecision::Run,
                TriggerDecision::Run,
                TriggerDecision::Wait
            ]
        );
    }
}
