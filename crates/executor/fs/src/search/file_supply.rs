//! Distributes files to the search threads, and collects their matches.
//!
//! Invariant: batches are issued in path order, and all their matches are kept. So once the issued
//! batches contain enough matches, no later file belongs in the answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use exec_wire::{fs::EntryKind, limits};

use super::MatchedLine;
use crate::{filtered_tree::FilteredTree, find::PathGlob};

/// The files to search, shared by all threads.
#[derive(Debug)]
pub(super) struct FileSupply<'a> {
    glob: Option<&'a PathGlob>,
    max_matches: usize,
    state: Mutex<State<'a>>,
}

#[derive(Debug)]
struct State<'a> {
    tree: FilteredTree<'a>,
    batches_issued: usize,
    size: MatchSize,
    finished_batches: Vec<(usize, FileBatch)>,
    is_incomplete: bool,
}

/// Files that one thread searches, in order.
#[derive(Debug, Default)]
pub(super) struct FileBatch {
    /// Files that matched, or are still to be searched.
    pub(super) files: Vec<SearchedFile>,
    /// Whether a file could not be searched to its end.
    pub(super) is_incomplete: bool,
}

/// A file and its matches.
#[derive(Debug)]
pub(super) struct SearchedFile {
    /// Path relative to the root.
    pub(super) below: Vec<u8>,
    pub(super) lines: Vec<MatchedLine>,
}

/// The number and size of matches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MatchSize {
    matches: usize,
    bytes: usize,
}

impl<'a> FileSupply<'a> {
    /// Supplies the files of a tree until more than `max_matches` lines match.
    pub(super) fn new(
        tree: FilteredTree<'a>,
        glob: Option<&'a PathGlob>,
        max_matches: usize,
    ) -> Self {
        Self {
            glob,
            max_matches,
            state: Mutex::new(State {
                tree,
                batches_issued: 0,
                size: MatchSize::default(),
                finished_batches: Vec::new(),
                is_incomplete: false,
            }),
        }
    }

    /// Issues the next batch with its number. `None`: no file is left, or enough was found.
    pub(super) fn next_batch(&self) -> Option<(usize, FileBatch)> {
        let mut state = self.lock();
        if self.is_enough(state.size) {
            return None;
        }
        let mut batch = FileBatch::default();
        while batch.files.len() < BATCH_FILES {
            let Some(entry) = state.tree.next() else {
                break;
            };
            let matches_glob = self.glob.is_none_or(|glob| glob.is_match(&entry.below));
            if entry.kind == EntryKind::File && matches_glob {
                batch.files.push(SearchedFile {
                    below: entry.below,
                    lines: Vec::new(),
                });
            }
        }
        if batch.files.is_empty() {
            return None;
        }
        state.batches_issued += 1;
        Some((state.batches_issued, batch))
    }

    /// Collects a batch that was searched.
    pub(super) fn submit(&self, number: usize, batch: FileBatch) {
        let mut state = self.lock();
        for file in &batch.files {
            state.size.add(&file.lines);
        }
        state.is_incomplete |= batch.is_incomplete;
        if !batch.files.is_empty() {
            state.finished_batches.push((number, batch));
        }
    }

    /// Returns whether later files cannot be part of the answer.
    pub(super) fn is_enough(&self, size: MatchSize) -> bool {
        size.matches > self.max_matches || size.bytes > limits::MAX_SEARCH_BYTES
    }

    /// Returns all files with matches, in order, and whether there may be more.
    pub(super) fn into_matches(self) -> (impl Iterator<Item = SearchedFile>, bool) {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut batches = state.finished_batches;
        batches.sort_by_key(|batch| batch.0);
        let files = batches.into_iter().flat_map(|batch| batch.1.files);
        (files, state.is_incomplete || state.tree.is_truncated())
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MatchSize {
    /// Adds the lines of a file.
    pub(super) fn add(&mut self, lines: &[MatchedLine]) {
        self.matches += lines.len();
        self.bytes += lines.iter().map(MatchedLine::bytes).sum::<usize>();
    }
}

impl FileBatch {
    /// Returns whether the batch is full, so that more files are likely.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() == BATCH_FILES
    }
}

/// Files in a batch: few enough to share the work, enough to avoid contention.
const BATCH_FILES: usize = 64;
