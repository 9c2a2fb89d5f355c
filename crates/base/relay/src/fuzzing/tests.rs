//! The corpora, replayed, and programs at random.

use std::{fs, path::Path};

use super::*;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let files: Vec<_> = fs::read_dir(corpus.join(target))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert!(files.len() > 12, "the corpus is there");
    for file in files {
        run(&fs::read(file.path()).unwrap());
    }
}

#[test]
fn the_corpus_of_frames_is_replayed() {
    replay("relay_frame", relay_frame);
}

#[test]
fn the_corpus_of_records_is_replayed() {
    replay("noise_record", noise_record);
}

#[test]
fn programs_at_random_find_nothing() {
    // Splitmix64: a small stand-in for the fuzzer, on every change.
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 56) as u8
    };
    for round in 0..3000 {
        let program: Vec<u8> = (0..round % 200)
            // Small operands name records that exist.
            .map(|at| if at % 2 == 0 { byte() % 16 } else { byte() })
            .collect();
        noise_record(&program);
        relay_frame(&program);
    }
}
