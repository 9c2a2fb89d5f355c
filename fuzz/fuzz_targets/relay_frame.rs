//! Anything that a rendezvous could send. The entry point is beside the code: `exec_relay::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_relay::fuzzing::relay_frame(data));
