//! Entry points of the fuzz targets: `websocket_frame` takes bytes that follow a handshake,
//! `http_handshake` takes a handshake.
//!
//! Elsewhere: the targets and their corpora (`fuzz/`).

pub use crate::{http::http_handshake, websocket::websocket_frame};

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn replay(target: &str, run: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        let files = fs::read_dir(corpus.join(target))
            .unwrap()
            .map(Result::unwrap);
        let files: Vec<_> = files.collect();
        assert!(files.len() > 12, "the corpus is missing");
        for file in files {
            run(&fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn websocket_frame_corpus_passes() {
        replay("websocket_frame", websocket_frame);
    }

    #[test]
    fn http_handshake_corpus_passes() {
        replay("http_handshake", http_handshake);
    }
}
