//! Entry point of the fuzz target `proxy_request`: anything that a client or a server could send.
//!
//! The first byte selects the parser, the rest is its input. Not here: the invariants, which stand
//! beside the parsers; the target itself and its corpus (`fuzz/`).

use crate::{http, socks};

/// Parses one input in the way that its first byte selects.
///
/// # Panics
/// When an invariant does not hold.
pub fn proxy_request(input: &[u8]) {
    let Some((&selector, input)) = input.split_first() else {
        return;
    };
    match selector % 4 {
        0 => http::fuzzing::check_request(input),
        1 => http::fuzzing::check_response(input),
        2 => http::fuzzing::check_chunks(input),
        _ => socks::fuzzing::check_messages(input),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn corpus_holds_every_invariant() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/proxy_request");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 12, "the corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            proxy_request(&fs::read(file.path()).unwrap());
        }
    }
}
