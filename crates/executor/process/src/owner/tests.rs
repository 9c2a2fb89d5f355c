//! What is recorded of an end.

use exec_core::log::Exit;
use exec_env::process::ExecProcess;
use exec_wire::{
    id::ProcessId,
    process::{Limits, TerminalSize, WaitUntil},
};

use crate::{
    process::{Launch, LaunchIo, Settings, launch},
    spawner::Spawner,
};

async fn exit(spawner: &Spawner, sandboxed: bool, io: LaunchIo, script: &str) -> Exit {
    let command = Launch {
        id: ProcessId::new("p").unwrap(),
        program: "/bin/sh".into(),
        argv: ["sh", "-c", script].map(Into::into).to_vec(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        io,
        limits: Limits::default(),
        extra: Vec::new(),
        sandboxed,
        enclosure: None,
    };
    let process = launch(spawner, command, Settings::default()).await.unwrap();
    let status = process.wait(WaitUntil::Exited, None).await.unwrap();
    status.exit.unwrap()
}

#[tokio::test]
async fn a_sandboxed_process_that_speaks_of_a_refusal_was_denied() {
    let spawner = Spawner::default();
    let terminal = LaunchIo::Terminal(TerminalSize::default());
    for io in [LaunchIo::Pipes, LaunchIo::PipesWithStdin, terminal] {
        for (script, denied) in [
            ("echo Permission Denied >&2; exit 3", true),
            ("kill -SYS $$", true),
            ("echo Permission Denied >&2", false),
            ("echo no such thing >&2; exit 3", false),
            ("kill -KILL $$", false),
            // The refusal comes behind more than one read takes.
            ("head -c 200000 /dev/zero; echo sandbox; exit 1", true),
        ] {
            let enclosed = exit(&spawner, true, io, script).await;
            assert_eq!(enclosed.sandbox_denied, denied, "{script}");
            let free = exit(&spawner, false, io, script).await;
            assert!(!free.sandbox_denied, "{script}");
        }
    }
}
