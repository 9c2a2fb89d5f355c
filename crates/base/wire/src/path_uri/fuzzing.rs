//! Entry point of the fuzz target `path_resolve`: any text as a path, and what is done with it.
//!
//! Invariants checked: canonical text is canonical, a native path comes back as itself, and lexical
//! operations agree with each other. Not here: the target itself and its corpus (`fuzz/`).

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use super::PathUri;

/// Parses text as a path URI, and joins the text after its first line to it.
///
/// # Panics
/// When an invariant does not hold.
pub fn path_resolve(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == b'\n');
    let (uri, name) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let Ok(text) = std::str::from_utf8(uri) else {
        return;
    };
    match PathUri::parse(text) {
        Ok(uri) => check_uri(&uri, name),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal has a reason"),
    }
}

fn check_uri(uri: &PathUri, name: &[u8]) {
    let again = PathUri::parse(uri.as_str());
    assert_eq!(again.as_ref().map(PathUri::as_str), Ok(uri.as_str()));
    // With an ambiguous segment containment fails closed.
    let parent = uri.parent().unwrap_or_else(|| uri.clone());
    assert!(
        parent.contains(uri) || has_separator(uri),
        "{uri} is below {parent}"
    );
    if let Ok(text) = std::str::from_utf8(name)
        && let Ok(joined) = uri.join(text)
    {
        let again = PathUri::parse(joined.as_str());
        assert_eq!(again.as_ref().map(PathUri::as_str), Ok(joined.as_str()));
    }
    if let Ok(native) = uri.to_native() {
        assert!(native.is_absolute());
        let Ok(back) = PathUri::from_native(&native) else {
            panic!("{native:?} is absolute");
        };
        assert_eq!(back.to_native().as_ref(), Ok(&native));
        let one_name =
            !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
        if let (true, Some(child)) = (one_name, back.child(OsStr::from_bytes(name))) {
            assert_eq!(child.to_native(), Ok(native.join(OsStr::from_bytes(name))));
            assert_eq!(
                PathUri::from_native(&native.join(OsStr::from_bytes(name))),
                Ok(child)
            );
        }
    }
}

/// Tells whether a segment may decode to several names.
fn has_separator(uri: &PathUri) -> bool {
    let text = uri.as_str().to_ascii_lowercase();
    text.contains("%2f") || text.contains("%5c")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_corpus_is_replayed() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/path_resolve");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 20, "the corpus is there");
        for file in files {
            println!("{}", file.path().display());
            path_resolve(&fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn random_text_breaks_nothing() {
        // Pieces that matter to the parser, put together by a counter: the target without a fuzzer.
        const PIECES: &[&str] = &[
            "file:",
            "/",
            "//",
            "\\",
            ".",
            "..",
            "%2e",
            "%2F",
            "%00",
            "C:",
            "c|",
            "%3A",
            "a",
            "é",
            " ",
            "\n",
            "?",
            "#",
            "%",
            "localhost",
            "server",
            "%00/bad/path/L0M6L2QvZg",
            "\t",
            "%FF",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..50_000 {
            let mut text = String::from("file:");
            loop {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let pick = usize::try_from(state >> 33).unwrap();
                text.push_str(PIECES[pick % PIECES.len()]);
                if pick.is_multiple_of(11) {
                    break;
                }
            }
            path_resolve(text.as_bytes());
        }
    }
}
