//! Files and patches for them. The entry point is beside the code: `exec_tools::mcp::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_tools::mcp::fuzzing::apply_patch(data));
