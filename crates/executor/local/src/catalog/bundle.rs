//! The files that discovery returns for one root, within its limits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use exec_wire::{discovery::CapabilityFile, limits, path_uri::PathUri};

use super::reader::{Read, Reader};

/// Takes files for one root, and remembers what was left out.
#[derive(Debug)]
pub(super) struct Bundle<'a> {
    reader: &'a Reader,
    allowance: Allowance,
    /// Bytes that this root may still take.
    left: usize,
    /// What was left out, for people.
    pub(super) warnings: Vec<String>,
}

/// What all roots of one answer may take together. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Allowance(Arc<AtomicUsize>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(limits::MAX_DISCOVERY_BYTES)))
    }
}

impl Allowance {
    /// Takes so many bytes, if there are as many left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }

    /// Gives back what an answer turned out not to hold.
    pub(super) fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl<'a> Bundle<'a> {
    pub(super) fn new(reader: &'a Reader, allowance: Allowance) -> Self {
        Self {
            reader,
            allowance,
            left: limits::MAX_DISCOVERY_ROOT_BYTES,
            warnings: Vec::new(),
        }
    }

    /// Takes a file if it is there, is text and fits. Why it was left out becomes a warning.
    pub(super) async fn take(&mut self, path: PathUri) -> Option<CapabilityFile> {
        let most = limits::MAX_DISCOVERY_FILE_BYTES;
        let contents = match self.reader.text(&path, most).await {
            Read::Text(contents) => contents,
            Read::Missing => return None,
            Read::Refused(why) => {
                self.warnings.push(why);
                return None;
            }
        };
        let Some(left) = self.left.checked_sub(contents.len()) else {
            let most = limits::MAX_DISCOVERY_ROOT_BYTES;
            let why = format!("`{path}` is left out: the root's files exceed {most} bytes");
            self.warnings.push(why);
            return None;
        };
        if !self.allowance.take(in_answer(&contents)) {
            let most = limits::MAX_DISCOVERY_BYTES;
            let why = format!("`{path}` is left out: the files of all roots exceed {most} bytes");
            self.warnings.push(why);
            return None;
        }
        self.left = left;
        Some(CapabilityFile { path, contents })
    }
}

/// Bytes that a text takes in an answer: JSON escapes some of it.
pub(super) fn in_answer(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_counts_as_much_as_it_takes_in_an_answer() {
        let controls: String = (0..=0x80).map(char::from).collect();
        for text in ["", "plain", "caf\u{e9} \u{1f600}", &controls] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(in_answer(text), json.len() - 2, "{text:?}");
        }
    }
}
