//! Programs for a stream's peer and relay. The entry point is beside the code: `exec_relay::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_relay::fuzzing::noise_record(data));
