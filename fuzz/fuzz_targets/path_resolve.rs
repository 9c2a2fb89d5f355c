//! Any text as a path. The entry point is beside the code: `exec_wire::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_wire::fuzzing::path_resolve(data));
