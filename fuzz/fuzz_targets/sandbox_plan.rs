//! Any policy on a small host. The entry point is beside the code: `exec_sandbox::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_sandbox::fuzzing::sandbox_plan(data));
