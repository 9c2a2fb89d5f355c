//! Whether what a process wrote tells that a sandbox refused it something.
//!
//! All texts are looked for at once, in one pass over the chunks and without joining them: an
//! automaton whose states are the beginnings of the texts. A text may be spread over chunks of one
//! stream, or over chunks of both as they came.

use bytes::Bytes;
use exec_wire::process::OutputStream;

/// What programs, and sandboxes themselves, say when something is refused. Either case counts.
const DENIAL_TEXTS: [&[u8]; 7] = [
    b"operation not permitted",
    b"permission denied",
    b"read-only file system",
    b"seccomp",
    b"sandbox",
    b"landlock",
    b"failed to write file",
];

/// The end of a process that the kernel killed for a forbidden system call: 128 + SIGSYS.
const FORBIDDEN_CALL: i32 = 159;

/// Judges the end of a sandboxed process by its code and what it wrote.
pub(super) fn is_denial<'a>(
    code: i32,
    chunks: impl IntoIterator<Item = (OutputStream, &'a Bytes)>,
) -> bool {
    code != 0 && (mentions_denial(chunks) || code == FORBIDDEN_CALL)
}

fn mentions_denial<'a>(chunks: impl IntoIterator<Item = (OutputStream, &'a Bytes)>) -> bool {
    let (mut all, mut streams) = (START, [START; 3]);
    for (stream, chunk) in chunks {
        let alone = &mut streams[stream as usize];
        for &byte in chunk {
            let together = all == *alone;
            all = next(all, byte);
            // Once both have read the same for long enough, they stay the same.
            *alone = if together { all } else { next(*alone, byte) };
            if all == FOUND || *alone == FOUND {
                return true;
            }
        }
    }
    false
}

fn next(state: u8, byte: u8) -> u8 {
    AUTOMATON[state as usize][CLASSES[byte as usize] as usize]
}

/// Nothing of any text was read.
const START: u8 = 0;
/// A whole text was read.
const FOUND: u8 = u8::MAX;
/// One for each letter of the texts, and the start.
const STATES: usize = 1 + total_length();
/// Letters in either case, the space, the hyphen, and everything else.
const CLASS_COUNT: usize = 29;
const OTHER: u8 = 28;

type TransitionTable = [[u8; CLASS_COUNT]; STATES];

static CLASSES: [u8; 256] = classes();
static AUTOMATON: TransitionTable = automaton();

const fn total_length() -> usize {
    let (mut total, mut text) = (0, 0);
    while text < DENIAL_TEXTS.len() {
        total += DENIAL_TEXTS[text].len();
        text += 1;
    }
    total
}

#[expect(clippy::cast_possible_truncation, reason = "an index below 256")]
const fn classes() -> [u8; 256] {
    let mut classes = [OTHER; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            letter @ b'a'..=b'z' => letter - b'a',
            letter @ b'A'..=b'Z' => letter - b'A',
            b' ' => 26,
            b'-' => 27,
            _ => OTHER,
        };
        byte += 1;
    }
    classes
}

/// Builds the automaton of Aho and Corasick: first the tree of the texts, then, breadth first, where
/// each state goes on when a letter does not continue its own text.
const fn automaton() -> TransitionTable {
    // Where nothing leads yet is the start, which nothing in the tree leads to.
    let mut table: TransitionTable = [[START; CLASS_COUNT]; STATES];
    let classes = classes();
    let mut states: u8 = 1;
    let mut text = 0;
    while text < DENIAL_TEXTS.len() {
        let (mut state, mut index) = (0, 0);
        while index < DENIAL_TEXTS[text].len() {
            let class = classes[DENIAL_TEXTS[text][index] as usize] as usize;
            if index + 1 == DENIAL_TEXTS[text].len() {
                table[state][class] = FOUND;
            } else if table[state][class] == START {
                table[state][class] = states;
                states += 1;
            }
            state = table[state][class] as usize;
            index += 1;
        }
        text += 1;
    }
    // The state of the longest text that ends where a state's does, and begins later.
    let mut shorter = [START; STATES];
    let mut queue = [START; STATES];
    let (mut head, mut tail) = (0, 0);
    let mut class = 0;
    while class < CLASS_COUNT {
        if table[0][class] != START {
            queue[tail] = table[0][class];
            tail += 1;
        }
        class += 1;
    }
    while head < tail {
        let state = queue[head] as usize;
        head += 1;
        let mut class = 0;
        while class < CLASS_COUNT {
            let fallback = table[shorter[state] as usize][class];
            let child = table[state][class];
            if child == START || fallback == FOUND {
                table[state][class] = fallback;
            } else if child != FOUND {
                shorter[child as usize] = fallback;
                queue[tail] = child;
                tail += 1;
            }
            class += 1;
        }
    }
    table
}

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
    fn every_text_is_found_in_either_case_and_anywhere() {
        for text in DENIAL_TEXTS {
            let text = str::from_utf8(text).unwrap();
            for text in [text.to_owned(), text.to_uppercase()] {
                assert!(is_denied(&[(Stderr, &text)]), "{text}");
                assert!(is_denied(&[(Stdout, &format!("sh: {text}!\n"))]), "{text}");
                // Its own beginning before it leads nowhere.
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
    fn a_text_may_be_cut_anywhere() {
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
    fn other_texts_are_none() {
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
        // The rest of a text counts on its own stream, or directly behind.
        assert!(!is_denied(&[
            (Stderr, "sand"),
            (Stdout, "x"),
            (Stdout, "box")
        ]));
    }

    #[test]
    fn the_automaton_agrees_with_a_plain_search() {
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
        // Every sequence of three pieces: texts, beginnings of texts, and what follows them.
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
    fn success_is_no_denial_and_a_forbidden_call_is_one() {
        let data = Bytes::from_static(b"permission denied");
        assert!(!is_denial(0, [(Stderr, &data)]));
        for code in [1, 2, 126, 127, 137, -1] {
            assert!(is_denial(code, [(Stderr, &data)]), "{code}");
            assert!(!is_denial(code, []), "{code}");
        }
        assert!(is_denial(159, []));
    }
}
