//! Anything that a peer could send as a handshake. The entry point is beside the code:
//! `exec_transport::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_transport::fuzzing::http_handshake(data));
