//! Any bytes as the files of a journal. The entry point is beside the code: `exec_journal::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_journal::fuzzing::journal(data));
