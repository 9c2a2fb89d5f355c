//! Versions of plugins: which of two is the better one.

use std::cmp::Ordering;

/// Tells whether a directory's name can be a version.
pub(super) fn is_one(name: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'_' | b'-');
    !matches!(name, "" | "." | "..") && name.bytes().all(is_part)
}

/// Orders versions. A local one is the best; of two semantic ones the higher; else the later text.
pub(super) fn compare(one: &str, other: &str) -> Ordering {
    let is_local = |name: &str| name == "local";
    is_local(one).cmp(&is_local(other)).then_with(|| {
        match (Semantic::parse(one), Semantic::parse(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            (Some(_), None) | (None, Some(_)) | (None, None) => one.cmp(other),
        }
    })
}

/// A semantic version. The order of members is the order of their weight.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Semantic<'a> {
    numbers: [u64; 3],
    stage: Stage<'a>,
    /// Semantic versions are the same whatever this is; one of them must count.
    build: &'a str,
}

/// What is before a release is less than it.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Stage<'a> {
    Before(Vec<Identifier<'a>>),
    Release,
}

/// Numbers are less than words.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Identifier<'a> {
    Number(u64),
    Word(&'a str),
}

impl<'a> Semantic<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (text, build) = match text.split_once('+') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (text, ""),
        };
        let (core, before) = match text.split_once('-') {
            Some((core, before)) => (core, Some(before)),
            None => (text, None),
        };
        let mut parts = core.split('.').map(number);
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        if parts.next().is_some() || !words(build) {
            return None;
        }
        let stage = match before {
            Some(before) if before.is_empty() || !words(before) => return None,
            Some(before) => {
                Stage::Before(before.split('.').map(identifier).collect::<Option<_>>()?)
            }
            None => Stage::Release,
        };
        Some(Self {
            numbers,
            stage,
            build,
        })
    }
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    is_plain.then(|| text.parse().ok()).flatten()
}

fn identifier(text: &str) -> Option<Identifier<'_>> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return number(text).map(Identifier::Number);
    }
    Some(Identifier::Word(text))
}

/// Tells whether dots part words of letters, digits and hyphens; or nothing is there at all.
fn words(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(is_part);
    text.is_empty() || text.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_version_counts() {
        // The better one is second.
        let pairs = [
            ("1.9.0", "1.10.0"),
            ("1.0.0-beta", "1.0.0"),
            ("1.0.0-rc.2", "1.0.0-rc.10"),
            ("9.0.0", "9.0.0+x"),
            ("9.0.0+x", "9.0.0+y"),
            ("01.0.0", "1.0.0"),
            ("1.0.0", "abc"),
            ("0abc", "1.0.0"),
            ("10", "2"),
            ("v1.10.0", "v1.9.0"),
            ("zzz", "local"),
            ("Local", "a"),
        ];
        for (worse, better) in pairs {
            assert_eq!(compare(worse, better), Ordering::Less, "{worse} {better}");
            assert_eq!(
                compare(better, worse),
                Ordering::Greater,
                "{worse} {better}"
            );
        }
    }

    #[test]
    fn a_version_is_one_plain_name() {
        for name in ["1.0.0", ".v", "v_1", "-1", "1..2", "1+2"] {
            assert!(is_one(name), "{name}");
        }
        for name in ["", ".", "..", "v~1", "1@2", "a b", "é", "a/b"] {
            assert!(!is_one(name), "{name}");
        }
    }
}
