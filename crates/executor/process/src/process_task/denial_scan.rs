//! Scans the output of a process for signs that a sandbox denied something.
//!
//! An Aho-Corasick automaton finds all texts in one pass over the chunks, without joining them. A
//! text may span chunks of one stream, or chunks of both streams in arrival order.

use std::sync::LazyLock;

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    dfa::DFA,
};
use bytes::Bytes;
use exec_wire::process::OutputStream;

/// Texts that programs and sandboxes print when something is denied. Matched without regard to
/// case.
const DENIAL_TEXTS: [&[u8]; 7] = [
    b"operation not permitted",
    b"permission denied",
    b"read-only file system",
    b"seccomp",
    b"sandbox",
    b"landlock",
    b"failed to write file",
];

/// Exit code of a process that the kernel killed for a forbidden system call: 128 + SIGSYS.
const FORBIDDEN_CALL: i32 = 159;

/// Returns whether a sandboxed process seems to have failed because of a denial, judging by its
/// exit code and output.
pub(super) fn is_denial<'a>(
    code: i32,
    chunks: impl IntoIterator<Item = (OutputStream, &'a Bytes)>,
) -> bool {
    code != 0 && (mentions_denial(chunks) || code == FORBIDDEN_CALL)
}

fn mentions_denial<'a>(chunks: impl IntoIterator<Item = (OutputStream, &'a Bytes)>) -> bool {
    let (automaton, start) = &*AUTOMATON;
    let next = |state, byte| automaton.next_state(Anchored::No, state, byte);
    let (mut all, mut streams) = (*start, [*start; 3]);
    for (stream, chunk) in chunks {
        let alone = &mut streams[stream as usize];
        for &byte in chunk {
            let together = all == *alone;
            all = next(all, byte);
            // Once both states are equal, they stay equal for as long as one stream continues.
            *alone = if together { all } else { next(*alone, byte) };
            if automaton.is_match(all) || automaton.is_match(*alone) {
                return true;
            }
        }
    }
    false
}

/// The automaton and its start state.
#[expect(clippy::expect_used, reason = "the texts are few and short")]
static AUTOMATON: LazyLock<(DFA, StateID)> = LazyLock::new(|| {
    let mut builder = DFA::builder();
    let automaton = builder.ascii_case_insensitive(true).build(DENIAL_TEXTS);
    let automaton = automaton.expect("an automaton of a few texts is small");
    let start = automaton.start_state(Anchored::No);
    (automaton, start.expect("the default search is unanchored"))
});

#[cfg(test)]
mod tests {
    use super::*;

    use OutputStream::{Pty, Stderr, Stdout};

    fn is_denied(chunks: &[(OutputStream, &str)]) -> bool {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|(stream, text)| (*stream, Bytes::copy_from_slice(text.as_bytes())))
            .collect();
        is_denial(1, chunks.iter().map(|(stream, data)| (*stream, data)))
    }

    #[test]
    fn every_denial_text_is_found_in_any_case_and_position() {
        for text in DENIAL_TEXTS {
            let text = str::from_utf8(text).unwrap();
            for text in [text.to_owned(), text.to_uppercase()] {
                assert!(is_denied(&[(Stderr, &text)]), "{text}");
                assert!(is_denied(&[(Stdout, &format!("sh: {text}!\n"))]), "{text}");
                // A repeated prefix must not hide the match.
                let twice = format!("{}{text}", &text[..text.len() - 1]);
                assert!(is_denied(&[(Pty, &twice)]), "{twice}");
                assert!(
                    !is_denied(&[(Pty, &text[1..]), (Pty, &text[..text.len() - 1])]),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn denial_text_may_be_split_anywhere() {
        for text in DENIAL_TEXTS {
            let text = str::from_utf8(text).unwrap();
            for cut in 1..text.len() {
                let (head, rest) = text.split_at(cut);
                assert!(
                    is_denied(&[(Stdout, head), (Stdout, rest)]),
                    "{head}|{rest}"
                );
                assert!(
                    is_denied(&[(Stdout, head), (Stderr, rest)]),
                    "{head}|{rest}"
                );
                let apart = [(Stderr, head), (Stdout, "out\n"), (Stderr, rest)];
                assert!(is_denied(&apart), "{head}|{rest}");
            }
        }
        let letters: Vec<_> = "permission denied".chars().map(String::from).collect();
        let single: Vec<_> = letters
            .iter()
            .flat_map(|letter| [(Stderr, letter.as_str()), (Stdout, "."), (Stdout, "")])
            .collect();
        assert!(is_denied(&single));
    }

    #[test]
    fn other_texts_are_not_denials() {
        assert!(!is_denied(&[]));
        assert!(!is_denied(&[(Stderr, "No such file or directory\n")]));
        assert!(!is_denied(&[(
            Stderr,
            "permission  denied sand box read only file system"
        )]));
        assert!(!is_denied(&[
            (Stdout, "permission"),
            (Stderr, "-"),
            (Stdout, "denied")
        ]));
        // The rest of a text counts only on the same stream, or in the directly following chunk.
        assert!(!is_denied(&[
            (Stderr, "sand"),
            (Stdout, "x"),
            (Stdout, "box")
        ]));
    }

    #[test]
    fn automaton_agrees_with_plain_search() {
        let pieces = [
            "operation not ",
            "permitted",
            "permission ",
            "denied",
            "read-only ",
            "file",
            " system",
            "sec",
            "comp",
            "sand",
            "box",
            "land",
            "lock",
            "failed to write ",
            "x",
        ];
        // All sequences of three pieces: texts, prefixes of texts, and other continuations.
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    let text = [first, second, third].concat();
                    let plain = DENIAL_TEXTS
                        .iter()
                        .any(|known| text.contains(str::from_utf8(known).unwrap()));
                    assert_eq!(is_denied(&[(Stdout, &text)]), plain, "{text}");
                }
            }
        }
    }

    #[test]
    fn success_is_not_a_denial_but_sigsys_is() {
        let data = Bytes::from_static(b"permission denied");
        assert!(!is_denial(0, [(Stderr, &data)]));
        for code in [1, 2, 126, 127, 137, -1] {
            assert!(is_denial(code, [(Stderr, &data)]), "{code}");
            assert!(!is_denial(code, []), "{code}");
        }
        assert!(is_denial(159, []));
    }
}
