//! The suite over the standard input and output of a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use exec_conformance::{conformance_suite, server, subject::Subject};
use exec_transport::connect;

conformance_suite!(remote_stdio, subject());

async fn subject() -> Subject {
    let (link, child) = connect::program(&mut server::program("stdio")).unwrap();
    Subject::remote(link, env!("CARGO_BIN_EXE_exec-probe"), child).await
}
