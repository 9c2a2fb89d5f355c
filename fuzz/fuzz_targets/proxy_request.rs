//! Messages to the network proxy. The entry point is beside the code: `exec_proxy::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_proxy::fuzzing::proxy_request(data));
