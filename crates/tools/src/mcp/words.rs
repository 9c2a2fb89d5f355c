//! The last line that each running command has said, for those who wait.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use exec_env::process::ProcessNumber;

use crate::unified::{CallId, EventSink, ExecEvent};

/// Longest line that is kept, in bytes: it is a message beside a progress bar.
const MAX_LINE: usize = 200;

/// Remembers last lines. A command is forgotten when it ends; how many run is bounded elsewhere.
#[derive(Debug, Default)]
pub(super) struct LastWords(Mutex<BTreeMap<String, Words>>);

/// Whose words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Speaker {
    /// The command that this call started.
    Call(CallId),
    /// The command with this number.
    Number(ProcessNumber),
}

#[derive(Debug)]
struct Words {
    number: ProcessNumber,
    /// The last line that is not blank.
    line: Vec<u8>,
    /// The next output begins a line.
    ended: bool,
}

impl LastWords {
    /// Returns the last line of a command that runs and has said something.
    pub(super) fn of(&self, speaker: &Speaker) -> Option<String> {
        let words = self.lock();
        let words = match speaker {
            Speaker::Call(call) => words.get(&call.0)?,
            Speaker::Number(number) => words.values().find(|words| words.number == *number)?,
        };
        let line: String = String::from_utf8_lossy(&words.line)
            .chars()
            .filter(|character| !character.is_control())
            .collect();
        let line = line.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Words>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for LastWords {
    fn handle_event(&self, event: ExecEvent) {
        match event {
            ExecEvent::ExecCommandBegin {
                call_id, number, ..
            } => {
                let words = Words {
                    number,
                    line: Vec::new(),
                    ended: true,
                };
                self.lock().insert(call_id.0, words);
            }
            ExecEvent::ExecCommandOutputDelta { call_id, chunk, .. } => {
                if let Some(words) = self.lock().get_mut(&call_id.0) {
                    words.add(&chunk);
                }
            }
            ExecEvent::TerminalInteraction { .. } => {}
            ExecEvent::ExecCommandEnd { call_id, .. } => {
                self.lock().remove(&call_id.0);
            }
        }
    }
}

impl Words {
    fn add(&mut self, chunk: &[u8]) {
        // Earlier lines of a large chunk are of no interest.
        let tail = &chunk[chunk.len().saturating_sub(MAX_LINE * 4)..];
        for part in tail.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let text = part.trim_ascii();
            if self.ended && !text.is_empty() {
                self.line.clear();
            }
            let room = MAX_LINE.saturating_sub(self.line.len());
            if !self.ended || !text.is_empty() {
                self.line.extend_from_slice(&text[..text.len().min(room)]);
                self.ended = part.ends_with(b"\n") || part.ends_with(b"\r");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_wire::{path_uri::PathUri, process::OutputStream};

    use super::*;

    fn call() -> CallId {
        CallId("c".to_owned())
    }

    fn heard(chunks: &[&str]) -> Option<String> {
        let words = LastWords::default();
        words.handle_event(ExecEvent::ExecCommandBegin {
            call_id: call(),
            number: ProcessNumber(7),
            argv: Vec::new(),
            cwd: PathUri::parse("file:///").unwrap(),
        });
        for chunk in chunks {
            words.handle_event(ExecEvent::ExecCommandOutputDelta {
                call_id: call(),
                stream: OutputStream::Stdout,
                chunk: chunk.as_bytes().to_vec().into(),
            });
        }
        let by_call = words.of(&Speaker::Call(call()));
        assert_eq!(by_call, words.of(&Speaker::Number(ProcessNumber(7))));
        assert_eq!(words.of(&Speaker::Number(ProcessNumber(8))), None);
        by_call
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_remembered() {
        assert_eq!(heard(&[]), None);
        assert_eq!(heard(&["\n\n"]), None);
        assert_eq!(heard(&["one\ntwo\n\n"]).as_deref(), Some("two"));
        assert_eq!(heard(&["one\ntw", "o"]).as_deref(), Some("two"));
        assert_eq!(heard(&["10%\r", "20%\r"]).as_deref(), Some("20%"));
    }

    #[test]
    fn a_long_line_is_cut() {
        let line = "x".repeat(100_000);
        assert_eq!(heard(&[&line]).unwrap().len(), MAX_LINE);
        let parts = vec!["x"; 1000];
        assert_eq!(heard(&parts).unwrap().len(), MAX_LINE);
    }
}
