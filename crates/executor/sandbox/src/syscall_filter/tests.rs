use exec_spawn::sandbox_setup::FilterInstruction;

use super::*;

/// Interprets the program as the kernel does.
fn verdict(program: &[FilterInstruction], number: u32, arguments: [u64; 6]) -> u32 {
    verdict_of(program, NATIVE_ARCHITECTURE, number, arguments)
}

#[cfg(target_arch = "x86_64")]
const NATIVE_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE_ARCHITECTURE: u32 = 0xc000_00b7;
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const KILL: u32 = 0x8000_0000;

fn fails(errno: i32) -> u32 {
    0x0005_0000 | errno.unsigned_abs()
}

fn verdict_of(program: &[FilterInstruction], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend_from_slice(&number.to_le_bytes());
    data.extend_from_slice(&arch.to_le_bytes());
    data.extend_from_slice(&0_u64.to_le_bytes());
    for argument in arguments {
        data.extend_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let FilterInstruction {
            code,
            if_true,
            if_false,
            k,
        } = program[at];
        at += 1;
        let jump = |truth: bool| usize::from(if truth { if_true } else { if_false });
        match code {
            0x20 => {
                let offset = k as usize;
                accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
            }
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += jump(accumulator == k),
            0x35 => at += jump(accumulator >= k),
            0x45 => at += jump(accumulator & k != 0),
            0x06 => return k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

fn program_for(sockets: SocketAccess) -> Vec<FilterInstruction> {
    build_filter(FilterSpec {
        sockets,
        shares_host_files: false,
        shares_host_processes: false,
        brokered: false,
    })
}

/// An int as a register holds it.
fn number(int: i32) -> u64 {
    u64::from(int.cast_unsigned())
}

fn call(number: i64) -> u32 {
    u32::try_from(number).unwrap()
}

#[test]
fn programs_and_jumps_stay_within_kernel_limits() {
    for sockets in [
        SocketAccess::Host,
        SocketAccess::Pairs,
        SocketAccess::Internet { unix: false },
        SocketAccess::Internet { unix: true },
    ] {
        let program = build_filter(FilterSpec {
            sockets,
            shares_host_files: true,
            shares_host_processes: true,
            brokered: true,
        });
        assert!(program.len() < 4096);
        for (at, instruction) in program.iter().enumerate() {
            let furthest = match instruction.code {
                0x05 => instruction.k as usize,
                _ => usize::from(instruction.if_true.max(instruction.if_false)),
            };
            assert!(at + furthest < program.len());
        }
    }
}

#[test]
fn ordinary_calls_are_allowed_and_dangerous_ones_fail() {
    let program = program_for(SocketAccess::Host);
    for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve] {
        assert_eq!(verdict(&program, call(number), [0; 6]), ALLOW);
    }
    for number in [
        libc::SYS_ptrace,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_keyctl,
        libc::SYS_mount,
        libc::SYS_open_by_handle_at,
        // open_tree_attr and listns.
        467,
        470,
    ] {
        assert_eq!(
            verdict(&program, call(number), [0; 6]),
            fails(libc::EPERM),
            "{number}"
        );
    }
    assert_eq!(
        verdict(&program, call(libc::SYS_clone3), [0; 6]),
        fails(libc::ENOSYS)
    );
}

#[test]
fn foreign_architectures_and_x32_numbers_are_refused() {
    let program = program_for(SocketAccess::Pairs);
    assert_eq!(verdict_of(&program, 0x4000_0003, 20, [0; 6]), KILL);
    #[cfg(target_arch = "x86_64")]
    {
        let x32 = call(libc::SYS_ptrace) | 0x4000_0000;
        assert_eq!(verdict(&program, x32, [0; 6]), fails(libc::ENOSYS));
    }
}

#[test]
fn new_namespaces_fail_and_new_threads_do_not() {
    let program = program_for(SocketAccess::Host);
    let clone = |flags: i32| {
        verdict(
            &program,
            call(libc::SYS_clone),
            [u64::from(flags.cast_unsigned()), 0, 0, 0, 0, 0],
        )
    };
    assert_eq!(clone(libc::SIGCHLD), ALLOW);
    assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD), ALLOW);
    assert_eq!(
        clone(libc::CLONE_NEWUSER | libc::SIGCHLD),
        fails(libc::EPERM)
    );
    assert_eq!(clone(libc::CLONE_NEWNET), fails(libc::EPERM));
    let unshare = |flags: i32| {
        verdict(
            &program,
            call(libc::SYS_unshare),
            [u64::from(flags.cast_unsigned()), 0, 0, 0, 0, 0],
        )
    };
    assert_eq!(unshare(libc::CLONE_FILES), ALLOW);
    assert_eq!(unshare(libc::CLONE_NEWUSER), fails(libc::EPERM));
    assert_eq!(unshare(0x80), fails(libc::EPERM));
}

fn socket(program: &[FilterInstruction], family: i32, kind: i32, protocol: i32) -> u32 {
    let [family, kind, protocol] = [family, kind, protocol].map(number);
    let arguments = [family, kind, protocol, 0, 0, 0];
    verdict(program, call(libc::SYS_socket), arguments)
}

#[test]
fn no_network_allows_only_connected_stream_pairs() {
    let program = program_for(SocketAccess::Pairs);
    let refused = fails(libc::EPERM);
    for family in [
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
        libc::AF_VSOCK,
    ] {
        assert_eq!(socket(&program, family, libc::SOCK_STREAM, 0), refused);
    }
    let cloexec = libc::SOCK_CLOEXEC;
    assert_eq!(
        socket(&program, libc::AF_UNIX, libc::SOCK_STREAM | cloexec, 0),
        ALLOW
    );
    assert_eq!(
        socket(&program, libc::AF_UNIX, libc::SOCK_DGRAM | cloexec, 0),
        refused
    );
    let pair = |kind: i32| {
        let arguments = [number(libc::AF_UNIX), number(kind), 0, 0, 0, 0];
        verdict(&program, call(libc::SYS_socketpair), arguments)
    };
    assert_eq!(pair(libc::SOCK_STREAM), ALLOW);
    assert_eq!(pair(libc::SOCK_DGRAM), refused);
    let send = |address: u64| verdict(&program, call(libc::SYS_sendto), [3, 1, 1, 0, address, 16]);
    assert_eq!(send(0), ALLOW);
    assert_eq!(send(0x7fff_0000), refused);
    // Only the upper half of the pointer is set.
    assert_eq!(send(0x7fff_0000_0000), refused);
    assert_eq!(verdict(&program, call(libc::SYS_connect), [0; 6]), refused);
}

#[test]
fn high_bits_of_int_arguments_are_ignored() {
    let program = program_for(SocketAccess::Pairs);
    let arguments = [number(libc::AF_INET) | 1 << 32, 1, 0, 0, 0, 0];
    assert_eq!(
        verdict(&program, call(libc::SYS_socket), arguments),
        fails(libc::EPERM)
    );
}

#[test]
fn host_network_refuses_exotic_sockets() {
    let program = program_for(SocketAccess::Host);
    let refused = fails(libc::EPERM);
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX] {
        assert_eq!(socket(&program, family, libc::SOCK_STREAM, 0), ALLOW);
        assert_eq!(socket(&program, family, libc::SOCK_DGRAM, 0), ALLOW);
    }
    assert_eq!(socket(&program, libc::AF_NETLINK, libc::SOCK_RAW, 0), ALLOW);
    assert_eq!(
        socket(&program, libc::AF_NETLINK, libc::SOCK_RAW, 9),
        refused
    );
    assert_eq!(
        socket(&program, libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        refused
    );
    assert_eq!(
        socket(&program, libc::AF_PACKET, libc::SOCK_RAW, 3),
        refused
    );
    assert_eq!(socket(&program, libc::AF_INET, libc::SOCK_RAW, 1), refused);
}

#[test]
fn managed_network_allows_internet_sockets() {
    let program = program_for(SocketAccess::Internet { unix: false });
    let refused = fails(libc::EPERM);
    assert_eq!(socket(&program, libc::AF_INET, libc::SOCK_STREAM, 0), ALLOW);
    assert_eq!(
        socket(&program, libc::AF_UNIX, libc::SOCK_STREAM, 0),
        refused
    );
    assert_eq!(socket(&program, libc::AF_INET, libc::SOCK_RAW, 1), refused);
    assert_eq!(verdict(&program, call(libc::SYS_connect), [0; 6]), ALLOW);
    let program = program_for(SocketAccess::Internet { unix: true });
    assert_eq!(socket(&program, libc::AF_UNIX, libc::SOCK_STREAM, 0), ALLOW);
    assert_eq!(
        socket(&program, libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        refused
    );
}

#[test]
fn only_creating_calls_are_brokered() {
    let program = build_filter(FilterSpec {
        sockets: SocketAccess::Host,
        shares_host_files: false,
        shares_host_processes: false,
        brokered: true,
    });
    let open = |flags: i32| {
        verdict(
            &program,
            call(libc::SYS_openat),
            [0, 0, u64::from(flags.cast_unsigned()), 0, 0, 0],
        )
    };
    assert_eq!(open(libc::O_RDONLY), ALLOW);
    assert_eq!(open(libc::O_WRONLY | libc::O_TRUNC), ALLOW);
    assert_eq!(open(libc::O_WRONLY | libc::O_CREAT), NOTIFY);
    assert_eq!(verdict(&program, call(libc::SYS_mkdirat), [0; 6]), NOTIFY);
    assert_eq!(verdict(&program, call(libc::SYS_unlinkat), [0; 6]), ALLOW);
    let ioctl = |request: u64| verdict(&program, call(libc::SYS_ioctl), [0, request, 0, 0, 0, 0]);
    assert_eq!(ioctl(0x5000_940e), fails(libc::EPERM));
    assert_eq!(ioctl(0x4004_9409), ALLOW);
}

#[test]
fn attribute_changes_fail_as_on_a_read_only_mount() {
    let program = build_filter(FilterSpec {
        sockets: SocketAccess::Host,
        shares_host_files: true,
        shares_host_processes: true,
        brokered: false,
    });
    let read_only = fails(libc::EROFS);
    for number in [libc::SYS_fchmodat, libc::SYS_utimensat, libc::SYS_setxattr] {
        assert_eq!(verdict(&program, call(number), [0; 6]), read_only);
    }
    let ioctl = |request: u64| verdict(&program, call(libc::SYS_ioctl), [0, request, 0, 0, 0, 0]);
    assert_eq!(ioctl(0x4008_6602), read_only);
    assert_eq!(ioctl(0x5412), fails(libc::EPERM));
    assert_eq!(ioctl(0x5413), ALLOW);
    assert_eq!(ioctl(0x9401), read_only);
}

#[test]
fn limits_and_priorities_of_other_processes_cannot_be_changed() {
    let program = build_filter(FilterSpec {
        sockets: SocketAccess::Host,
        shares_host_files: true,
        shares_host_processes: true,
        brokered: false,
    });
    let refused = fails(libc::EPERM);
    let limit =
        |pid: u64, new: u64| verdict(&program, call(libc::SYS_prlimit64), [pid, 0, new, 0, 0, 0]);
    assert_eq!(limit(0, 0x7fff_0000), ALLOW);
    assert_eq!(limit(7, 0), ALLOW);
    assert_eq!(limit(7, 0x7fff_0000), refused);
    let priority = |which: u64, who: u64| {
        verdict(
            &program,
            call(libc::SYS_setpriority),
            [which, who, 0, 0, 0, 0],
        )
    };
    assert_eq!(priority(0, 0), ALLOW);
    assert_eq!(priority(0, 7), refused);
    assert_eq!(priority(2, 0), refused);
    let affinity = |pid: u64| {
        verdict(
            &program,
            call(libc::SYS_sched_setaffinity),
            [pid, 0, 0, 0, 0, 0],
        )
    };
    assert_eq!(affinity(0), ALLOW);
    assert_eq!(affinity(7), refused);
    for number in [libc::SYS_shmget, libc::SYS_msgget, libc::SYS_mq_unlink] {
        assert_eq!(verdict(&program, call(number), [0; 6]), refused);
    }
}
