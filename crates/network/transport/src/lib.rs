//! Links that carry messages: websocket, stdio, unix socket, memory, and streams through a relay;
//! and the tunnels over them.
//!
//! A [`Link`](link::Link) reads and writes whole messages and does not interpret them. Elsewhere:
//! methods, sessions and ordering.

pub mod auth;
mod confinement;
pub mod connect;
pub mod http;
pub mod lines;
pub mod link;
pub mod listen_url;
pub mod listener;
pub mod memory;
pub mod message_pump;
pub mod metrics;
#[cfg(feature = "relay")]
pub mod relay;
pub mod session_tunnels;
pub mod socket_path;
pub mod tls;
pub mod trace;
mod unix_socket;
pub mod websocket;

#[cfg(any(test, fuzzing))]
pub mod fuzzing {
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
}
