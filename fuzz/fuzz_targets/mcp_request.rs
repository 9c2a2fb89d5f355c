//! Lines that an MCP client could write. The entry point is beside the code: `exec_tools::mcp::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_tools::mcp::fuzzing::mcp_request(data));
