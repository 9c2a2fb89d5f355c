//! Rendezvous URLs, tokens and bodies that reach a hub. The entry point is beside the code:
//! `exec_hub::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_hub::fuzzing::rendezvous_url(data));
