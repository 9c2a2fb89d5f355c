//! How a sandboxed command starts, runs and exits, and its network.

use std::{io::Write, mem::MaybeUninit, net::TcpListener, os::unix::net::UnixStream};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::*;

#[tokio::test]
async fn empty_setup_drops_all_privileges() {
    let script = "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status";
    let outcome = run(SandboxSetup::default(), script).await;
    let mut lines: Vec<&str> = outcome.output.lines().collect();
    if !rustix::process::geteuid().is_root() {
        // Without privileges the bounding set cannot be emptied, but is useless.
        lines.retain(|line| !line.starts_with("CapBnd"));
    }
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines {
        let (name, value) = line.split_once('\t').unwrap();
        let expected = if name == "NoNewPrivs:" {
            "1"
        } else {
            "0000000000000000"
        };
        assert_eq!(value, expected, "{name}");
    }
}

#[tokio::test]
async fn setup_with_namespaces_drops_all_privileges() {
    let script = "grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status; id -u";
    let zero = "0000000000000000";
    let user = rustix::process::geteuid().as_raw();
    let expected =
        format!("CapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t{zero}\nNoNewPrivs:\t1\n{user}\n");
    let outcome = run(namespaces(read_only()), script).await;
    assert_eq!(outcome, Outcome::exited(0, &expected));
}

#[tokio::test]
async fn exit_code_and_signal_of_the_command_are_reported() {
    let end = async |script| run(namespaces(read_only()), script).await.status;
    assert_eq!(end("exit 7").await, 7 << 8);
    assert_eq!(end("kill -9 $$").await, 9);
    assert_eq!(end("kill -15 $$").await & 0x7f, 15);
}

#[tokio::test]
async fn command_has_pid_2_and_sees_only_its_namespace() {
    let script = "echo $$; cd /proc; echo [0-9]*";
    let outcome = run(namespaces(read_only()), script).await;
    assert_eq!(outcome, Outcome::exited(0, "2\n1 2\n"));
}

#[tokio::test]
async fn reported_pid_is_the_outer_pid() {
    let spawner = Spawner::default();
    let setup = namespaces(read_only());
    let (child, _output) = start(&spawner, setup, "exec sleep 1000").await.unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let numbers = status.lines().find(|line| line.starts_with("NSpid:"));
    let expected = format!("NSpid:\t{}\t2", child.pid());
    assert_eq!(numbers.unwrap(), expected);
    child.signal(libc::SIGTERM);
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(exit.status, libc::SIGTERM);
}

#[tokio::test]
async fn descendants_live_until_the_tree_is_killed() {
    let spawner = Spawner::default();
    let script = "setsid sleep 1000 & (setsid sleep 1000 &) ; exit 3";
    let (child, output) = start(&spawner, namespaces(read_only()), script)
        .await
        .unwrap();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(exit.status, 3 << 8);
    // Each of them holds the pipe.
    rustix::io::ioctl_fionbio(&output, true).unwrap();
    let mut byte = [0; 1];
    let result = rustix::io::read(&output, &mut byte);
    assert_eq!(result, Err(rustix::io::Errno::AGAIN));
    child.kill_tree();
    // The exit is reported once.
    assert_eq!(child.report().await, None);
    assert_eq!(rustix::io::read(&output, &mut byte), Ok(0));
}

#[tokio::test]
async fn descendants_that_exit_are_reaped() {
    let spawner = Spawner::default();
    let script = "exec 2>&1; (trap '' TERM; sleep 0.05; echo late) & exit 4";
    let (child, output) = start(&spawner, namespaces(read_only()), script)
        .await
        .unwrap();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(exit.status, 4 << 8);
    assert_eq!(child.report().await, None);
    let mut text = String::new();
    std::fs::File::from(output)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "late\n");
}

#[tokio::test]
async fn killing_the_tree_kills_init() {
    let spawner = Spawner::default();
    let script = "setsid sleep 1000 & echo ready; sleep 1000";
    let (child, output) = start(&spawner, namespaces(read_only()), script)
        .await
        .unwrap();
    let mut output = std::fs::File::from(output);
    output.read_exact(&mut [0; 6]).unwrap();
    child.kill_tree();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(exit.status, libc::SIGKILL);
    assert_eq!(child.report().await, None);
    output.read_to_end(&mut Vec::new()).unwrap();
}

#[tokio::test]
async fn dropping_the_child_kills_the_sandboxed_tree() {
    let spawner = Spawner::default();
    let script = "setsid sleep 1000 & echo ready; sleep 1000";
    let (child, output) = start(&spawner, namespaces(read_only()), script)
        .await
        .unwrap();
    let mut output = std::fs::File::from(output);
    output.read_exact(&mut [0; 6]).unwrap();
    drop(child);
    output.read_to_end(&mut Vec::new()).unwrap();
}

#[tokio::test]
async fn init_can_be_neither_signalled_nor_inspected() {
    let script = "kill -9 1; kill -TERM 1; cat /proc/1/environ; ls /proc/1/root; echo alive";
    let outcome = run(namespaces(read_only()), script).await;
    assert_eq!(outcome.status, 0);
    assert!(outcome.output.ends_with("alive\n"), "{}", outcome.output);
    let refused = outcome.output.matches("Permission denied").count();
    assert!(refused >= 2, "{}", outcome.output);
}

#[tokio::test]
async fn only_standard_descriptors_are_inherited() {
    let script = "ls /proc/self/fd; readlink /proc/1/fd/* 2>/dev/null";
    let outcome = run(namespaces(read_only()), script).await;
    // `ls` itself opens the directory. The descriptors of init are not readable.
    assert_eq!(outcome.output, "0\n1\n2\n3\n");
}

#[tokio::test]
async fn umask_and_limits_of_init_are_not_inherited() {
    let script = "umask; ulimit -Sn; grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let plain = run(SandboxSetup::default(), script).await;
    let outcome = run(namespaces(read_only()), script).await;
    assert_eq!(outcome, plain);
}

#[tokio::test]
async fn exec_failure_inside_namespaces_is_reported() {
    let spawner = Spawner::default();
    let hidden = MountStep::Memory {
        slot: MountSlot(3),
        mode: 0o755,
        bytes: 4096,
    };
    let over = MountStep::Attach {
        slot: MountSlot(3),
        path: c_path(&std::fs::canonicalize("/bin").unwrap()),
    };
    let error = start(&spawner, namespaces(vec![hidden, over]), "true").await;
    let Err(SpawnError::Host { stage, source }) = error else {
        panic!("expected a failure: {error:?}")
    };
    assert_eq!(stage, SpawnStage::Exec);
    assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
}

#[tokio::test]
async fn root_needs_no_user_namespace() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut setup = namespaces(read_only());
    setup.namespaces.as_mut().unwrap().user = false;
    let script = "grep CapEff /proc/self/status; cat /proc/1/environ; echo $$";
    let outcome = run(setup, script).await;
    assert!(outcome.output.starts_with("CapEff:\t0000000000000000\n"));
    assert!(outcome.output.contains("Permission denied"), "{outcome:?}");
    assert!(outcome.output.ends_with("\n2\n"), "{outcome:?}");
}

#[tokio::test]
async fn seccomp_filter_is_enforced() {
    // Loads the number of the call. `mkdir` and `mkdirat` fail, all others are allowed.
    let load = FilterInstruction {
        code: 0x20,
        if_true: 0,
        if_false: 0,
        k: 0,
    };
    let equals = |number: i64, if_true| FilterInstruction {
        code: 0x15,
        if_true,
        if_false: 0,
        k: u32::try_from(number).unwrap(),
    };
    let answer = |k| FilterInstruction {
        code: 0x06,
        if_true: 0,
        if_false: 0,
        k,
    };
    let filter = vec![
        load,
        equals(libc::SYS_mkdirat, 2),
        #[cfg(target_arch = "x86_64")]
        equals(libc::SYS_mkdir, 1),
        #[cfg(not(target_arch = "x86_64"))]
        equals(libc::SYS_mkdirat, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::EUCLEAN.unsigned_abs()),
    ];
    let setup = SandboxSetup {
        filter,
        ..SandboxSetup::default()
    };
    let outcome = run(setup, "mkdir /nowhere/x").await;
    assert!(
        outcome.output.contains("Structure needs cleaning"),
        "{outcome:?}"
    );
}

fn with_network(network: NetworkNamespace) -> SandboxSetup {
    let mut setup = namespaces(read_only());
    setup.namespaces.as_mut().unwrap().network = Some(network);
    setup
}

#[tokio::test]
async fn network_namespace_has_only_a_loopback() {
    let script = "tail -n +3 /proc/net/dev | cut -d: -f1; : > /dev/tcp/127.0.0.1/9";
    let outcome = run(with_network(NetworkNamespace::default()), script).await;
    let mut lines = outcome.output.lines().map(str::trim);
    assert_eq!(lines.next(), Some("lo"), "{outcome:?}");
    // The interface is up; otherwise the network would be unreachable.
    assert!(
        lines.any(|line| line.ends_with("Connection refused")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn listening_sockets_are_sent_to_the_server() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let setup = with_network(NetworkNamespace {
        listen: vec![3128, 1080],
        listener_socket: Some(theirs.into()),
    });
    let spawner = Spawner::default();
    let script = "exec 3<> /dev/tcp/127.0.0.1/1080; cat <&3; \
                  cat /proc/net/tcp | grep -c ' 0A '";
    let (child, output) = start(&spawner, setup, script).await.unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 8];
    let mut slices = [std::io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(&ours, &mut slices, &mut control, flags).unwrap();
    assert_eq!(message.bytes, 1);
    let mut received: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    let listeners: Vec<TcpListener> = received.into_iter().map(Into::into).collect();
    let ports = listeners.iter().map(|one| one.local_addr().unwrap().port());
    assert_eq!(ports.collect::<Vec<_>>(), [3128, 1080]);
    let (mut stream, _) = listeners[1].accept().unwrap();
    stream.write_all(b"from outside\n").unwrap();
    drop(stream);
    let mut text = String::new();
    std::fs::File::from(output)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "from outside\n2\n");
    assert!(matches!(
        child.report().await,
        Some(SupervisorReport::Exited(_))
    ));
}
