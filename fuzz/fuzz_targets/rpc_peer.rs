//! Programs for gate, order and calls. The entry point is beside the code: `exec_core::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_core::fuzzing::rpc_peer(data));
