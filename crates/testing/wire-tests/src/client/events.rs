//! What a process told.

use serde_json::Value;

use super::decode_text;

/// What a process told from its start to its close.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) output: Vec<Value>,
    pub(crate) exited: Value,
    pub(crate) closed: Value,
}

impl Events {
    pub(super) fn check(&self) {
        let all = self.output.iter().chain([&self.exited, &self.closed]);
        let mut seqs: Vec<u64> = all
            .map(|event| event["seq"].as_u64().expect("seq"))
            .collect();
        seqs.sort_unstable();
        assert!(
            (1..).zip(&seqs).all(|(expected, seq)| expected == *seq),
            "{seqs:?}"
        );
        assert_eq!(
            self.closed["seq"].as_u64(),
            seqs.last().copied(),
            "closed comes last"
        );
    }

    /// Returns what was written to a stream.
    pub(crate) fn stream(&self, stream: &str) -> String {
        let chunks = self.output.iter().filter(|chunk| chunk["stream"] == stream);
        chunks.map(|chunk| decode_text(&chunk["chunk"])).collect()
    }

    /// Returns what was written to standard output.
    pub(crate) fn stdout(&self) -> String {
        self.stream("stdout")
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> i64 {
        self.exited["exitCode"].as_i64().expect("exitCode")
    }
}
