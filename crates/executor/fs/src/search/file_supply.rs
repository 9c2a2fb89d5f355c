//! Hands files to threads, and takes back what they found in them.
//!
//! Invariant: portions are handed out in order of path, and what is found in them is kept. So once
//! those that were handed out hold enough, nothing that is still to come belongs in the answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use exec_wire::{fs::EntryKind, limits};

use super::line_matches::Line;
use crate::{filtered_tree::Tree, find::PathGlob};

/// The files that are to be searched, for all threads.
#[derive(Debug)]
pub(super) struct Supply<'a> {
    glob: Option<&'a PathGlob>,
    max_matches: usize,
    state: Mutex<State<'a>>,
}

#[derive(Debug)]
struct State<'a> {
    tree: Tree<'a>,
    handed_out: usize,
    size: Size,
    taken_back: Vec<(usize, Portion)>,
    is_incomplete: bool,
}

/// Files that one thread searches, in order.
#[derive(Debug, Default)]
pub(super) struct Portion {
    /// Files that matched, or are still to be searched.
    pub(super) files: Vec<SearchedFile>,
    /// A file could not be searched to its end.
    pub(super) is_incomplete: bool,
}

/// A file, and what was found in it.
#[derive(Debug)]
pub(super) struct SearchedFile {
    /// Its path below the root.
    pub(super) below: Vec<u8>,
    pub(super) lines: Vec<Line>,
}

/// How much was found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    matches: usize,
    bytes: usize,
}

impl<'a> Supply<'a> {
    /// Supplies the files of a tree, until more than `max_matches` lines match.
    pub(super) fn new(tree: Tree<'a>, glob: Option<&'a PathGlob>, max_matches: usize) -> Self {
        Self {
            glob,
            max_matches,
            state: Mutex::new(State {
                tree,
                handed_out: 0,
                size: Size::default(),
                taken_back: Vec::new(),
                is_incomplete: false,
            }),
        }
    }

    /// Hands out the next files, with their number; none if there are none or enough was found.
    pub(super) fn hand_out(&self) -> Option<(usize, Portion)> {
        let mut state = self.lock();
        if self.is_enough(state.size) {
            return None;
        }
        let mut portion = Portion::default();
        while portion.files.len() < PORTION {
            let Some(found) = state.tree.next() else {
                break;
            };
            let is_wanted = self.glob.is_none_or(|glob| glob.is_match(&found.below));
            if found.kind == EntryKind::File && is_wanted {
                portion.files.push(SearchedFile {
                    below: found.below,
                    lines: Vec::new(),
                });
            }
        }
        if portion.files.is_empty() {
            return None;
        }
        state.handed_out += 1;
        Some((state.handed_out, portion))
    }

    /// Takes back files that were searched.
    pub(super) fn take_back(&self, number: usize, portion: Portion) {
        let mut state = self.lock();
        for file in &portion.files {
            state.size.add(&file.lines);
        }
        state.is_incomplete |= portion.is_incomplete;
        if !portion.files.is_empty() {
            state.taken_back.push((number, portion));
        }
    }

    /// Tells whether nothing that comes later can be in the answer.
    pub(super) fn is_enough(&self, size: Size) -> bool {
        size.matches > self.max_matches || size.bytes > limits::MAX_SEARCH_BYTES
    }

    /// Returns all files with matches, in order, and whether there may be more.
    pub(super) fn into_found(self) -> (impl Iterator<Item = SearchedFile>, bool) {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut portions = state.taken_back;
        portions.sort_by_key(|portion| portion.0);
        let files = portions.into_iter().flat_map(|portion| portion.1.files);
        (files, state.is_incomplete || state.tree.is_truncated())
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Size {
    /// Adds the lines of a file.
    pub(super) fn add(&mut self, lines: &[Line]) {
        self.matches += lines.len();
        self.bytes += lines.iter().map(Line::bytes).sum::<usize>();
    }
}

impl Portion {
    /// Tells whether there were files enough to fill it, so that there are likely more.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() == PORTION
    }
}

/// Files of one portion: few enough to spread, and enough not to wait for each other.
const PORTION: usize = 64;
