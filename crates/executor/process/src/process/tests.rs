//! What callers hold of a process, where a case for every environment cannot look.

use std::{fs::OpenOptions, io::ErrorKind, time::Duration};

use exec_env::process::ExecProcess;
use exec_wire::{
    id::ProcessId,
    process::{Limits, WaitUntil},
};
use tokio::{net::unix::pipe::Sender, time::timeout};

use super::*;
use crate::spawner::Spawner;

#[tokio::test]
async fn a_dropped_process_lets_go_of_output_that_a_stranger_keeps_open() {
    let spawner = Spawner::default();
    let command = Launch {
        id: ProcessId::new("p").unwrap(),
        program: "/bin/sh".into(),
        argv: ["sh", "-c", "read line"].map(Into::into).to_vec(),
        env: Vec::new(),
        cwd: "/".into(),
        io: LaunchIo::PipesWithStdin,
        limits: Limits::default(),
        extra: Vec::new(),
        sandboxed: false,
        enclosure: None,
    };
    let process = launch(&spawner, command, Settings::default())
        .await
        .unwrap();
    let output = format!("/proc/{}/fd/1", process.status().os_pid.unwrap());
    let stranger = Sender::from_file(OpenOptions::new().write(true).open(output).unwrap()).unwrap();
    process.close_stdin(None).await.unwrap();
    process.wait(WaitUntil::Exited, None).await.unwrap();
    assert!(!process.status().closed, "the stranger holds the output");
    drop(process);
    let refused = async {
        loop {
            stranger.writable().await.unwrap();
            match stranger.try_write(b"x") {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    timeout(Duration::from_secs(10), refused)
        .await
        .expect("nobody reads any more");
}
