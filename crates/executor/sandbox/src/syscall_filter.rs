//! Filters of system calls: which are refused, and why.
//!
//! Everything that is not named is allowed: what a command may reach is decided by namespaces, mounts
//! and Landlock; a filter refuses what they cannot. Not here: applying a filter (`exec-process`).
//!
//! The rules, each with its reason.

mod assembler;
#[cfg(test)]
mod tests;

use exec_spawn::enclosure::Instruction;

use self::assembler::{ArgumentCheck, FilterRule, FilterVerdict, assemble};

/// What a filter is for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FilterSpec {
    /// Which sockets there are.
    pub sockets: SocketAccess,
    /// The host's files and queues are the command's, too, because it has no namespaces for them:
    /// nothing about a file may be changed that Landlock does not look at, and nothing be reached that has
    /// a key instead of a path.
    pub shares_host_files: bool,
    /// The host's processes can be named: none may be slowed down or limited.
    pub shares_host_processes: bool,
    /// Calls that make something are the broker's.
    pub brokered: bool,
}

/// Which sockets there are.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SocketAccess {
    /// Those of the host's network.
    Host,
    /// Connected pairs only.
    Pairs,
    /// Internet sockets, in a network of the command's own.
    Internet {
        /// Unix sockets, too.
        unix: bool,
    },
}

/// Makes the program of a filter.
pub fn build_filter(filter: FilterSpec) -> Vec<Instruction> {
    let mut rules = Vec::new();
    add_base_rules(&mut rules);
    add_socket_rules(filter.sockets, &mut rules);
    if filter.shares_host_files {
        add_attribute_rules(&mut rules);
        add_ipc_rules(&mut rules);
    }
    if filter.shares_host_processes {
        add_process_rules(&mut rules);
    }
    if filter.brokered {
        add_broker_rules(&mut rules);
    }
    assemble(&rules)
}

/// Every namespace that can be asked for.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned()
    | NEW_TIME;
/// `CLONE_NEWTIME`, for `unshare` only: in `clone` the bit is part of the signal.
const NEW_TIME: u32 = 0x80;

fn add_base_rules(rules: &mut Vec<FilterRule>) {
    let refused = [
        // Other processes' memory and descriptors: theirs may lead out.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        // Calls that no filter sees.
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        // Kernel interfaces with a history of holes and no use in a build.
        libc::SYS_bpf,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        // Keyrings are the account's, not the sandbox's.
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        // Files by number instead of by path.
        libc::SYS_open_by_handle_at,
        // The view of the files.
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_mount_setattr,
        libc::SYS_setns,
        // The machine. Capabilities forbid these already.
        libc::SYS_kexec_load,
        libc::SYS_kexec_file_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_acct,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_syslog,
        libc::SYS_quotactl,
        libc::SYS_quotactl_fd,
        libc::SYS_vhangup,
    ];
    rules.extend(refused.map(|call| refuse(call, Vec::new())));
    rules.extend(NEWER_CALLS.map(|call| refuse(call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_iopl, libc::SYS_ioperm].map(|call| refuse(call, Vec::new())));
    // New namespaces: with one of users comes every capability inside it.
    let any = |argument, mask| vec![ArgumentCheck::AnyBit { argument, mask }];
    rules.push(refuse(libc::SYS_unshare, any(0, NEW_NAMESPACES)));
    rules.push(refuse(libc::SYS_clone, any(0, NEW_NAMESPACES & !NEW_TIME)));
    // Its flags are in memory, where a filter does not see them. Libraries then use `clone`.
    rules.push(FilterRule {
        call: libc::SYS_clone3,
        checks: Vec::new(),
        verdict: FilterVerdict::Fail(libc::ENOSYS),
    });
    // Typing into a terminal on somebody's behalf.
    for request in [TIOCSTI, TIOCLINUX] {
        rules.push(refuse(libc::SYS_ioctl, vec![equals(1, u32::MAX, request)]));
    }
}

/// `open_tree_attr` (Linux 6.15) changes mounts like `mount_setattr`, and `listns` (6.19) names
/// namespaces of others: the same on every architecture. The other calls from `statmount` (457) to
/// `file_setattr` (469) stay allowed: they read what `/proc` shows as well, act on the caller alone
/// (`lsm_set_self_attr`, `mseal`), or change attributes, which mounts or [`NEWER_ATTRIBUTES`] govern.
const NEWER_CALLS: [i64; 2] = [467, 470];

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// The type of a socket without its flags.
const SOCKET_TYPE: u32 = 0xf;
const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const INTERNET: [u32; 2] = [
    libc::AF_INET.cast_unsigned(),
    libc::AF_INET6.cast_unsigned(),
];
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();

fn add_socket_rules(sockets: SocketAccess, rules: &mut Vec<FilterRule>) {
    let pairs = |rules: &mut Vec<FilterRule>| {
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            rules.push(refuse(call, vec![differs(0, u32::MAX, UNIX)]));
            // A datagram can be sent to any socket of the host's, also from one of a pair.
            for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
                rules.push(refuse(
                    call,
                    vec![equals(1, SOCKET_TYPE, kind.cast_unsigned())],
                ));
            }
        }
    };
    match sockets {
        SocketAccess::Pairs => {
            pairs(rules);
            let connecting = [
                libc::SYS_connect,
                libc::SYS_bind,
                libc::SYS_listen,
                libc::SYS_accept,
                libc::SYS_accept4,
            ];
            rules.extend(connecting.map(|call| refuse(call, Vec::new())));
            let has_address = vec![ArgumentCheck::NonNull { argument: 4 }];
            rules.push(refuse(libc::SYS_sendto, has_address));
        }
        SocketAccess::Host => {
            // What is left has no use for an account without capabilities, but a history of holes.
            let mut others = vec![differs(0, u32::MAX, UNIX), differs(0, u32::MAX, NETLINK)];
            others.extend(INTERNET.map(|family| differs(0, u32::MAX, family)));
            rules.push(refuse(libc::SYS_socket, others));
            rules.push(refuse(
                libc::SYS_socket,
                // Routes and addresses may be read; the rest of netlink configures the host.
                vec![equals(0, u32::MAX, NETLINK), differs(2, u32::MAX, 0)],
            ));
            let raw = libc::SOCK_RAW.cast_unsigned();
            rules.extend(INTERNET.map(|family| {
                refuse(
                    libc::SYS_socket,
                    vec![equals(0, u32::MAX, family), equals(1, SOCKET_TYPE, raw)],
                )
            }));
        }
        SocketAccess::Internet { unix } => {
            let mut others: Vec<ArgumentCheck> =
                INTERNET.map(|family| differs(0, u32::MAX, family)).to_vec();
            if unix {
                others.push(differs(0, u32::MAX, UNIX));
            }
            rules.push(refuse(libc::SYS_socket, others));
            rules.push(refuse(
                libc::SYS_socket,
                vec![equals(1, SOCKET_TYPE, libc::SOCK_RAW.cast_unsigned())],
            ));
            rules.push(refuse(
                libc::SYS_socketpair,
                vec![differs(0, u32::MAX, UNIX)],
            ));
            if !unix {
                for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
                    let kind = equals(1, SOCKET_TYPE, kind.cast_unsigned());
                    rules.push(refuse(libc::SYS_socketpair, vec![kind]));
                }
            }
        }
    }
}

/// `fchmodat2`, `setxattrat`, `removexattrat` and `file_setattr`: the same on every architecture.
const NEWER_ATTRIBUTES: [i64; 4] = [452, 463, 466, 469];
/// Requests that change a file through a descriptor that only reads: `FS_IOC_SETFLAGS`,
/// `FS_IOC_SETVERSION`, `FS_IOC_FSSETXATTR`, `FS_IOC_ENABLE_VERITY`, and those that set an encryption
/// policy or its keys.
const SETTING_REQUESTS: [u32; 8] = [
    0x4008_6602,
    0x4008_7602,
    0x401c_5820,
    0x4080_6685,
    0x800c_6613,
    0xc050_6617,
    0xc040_6618,
    0xc040_6619,
];
/// The kind of every request of btrfs: it has subvolumes made and removed.
const BTRFS_REQUESTS: u32 = 0x9400;
const REQUEST_TYPE: u32 = 0xff00;
/// Those that every file system has: `FICLONE`, `FICLONERANGE` and `FIDEDUPERANGE`.
const CLONE_REQUESTS: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

fn add_attribute_rules(rules: &mut Vec<FilterRule>) {
    let everywhere = [
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
    ];
    #[cfg(target_arch = "x86_64")]
    let older = [
        libc::SYS_chmod,
        libc::SYS_chown,
        libc::SYS_lchown,
        libc::SYS_utime,
        libc::SYS_utimes,
        libc::SYS_futimesat,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let older = [];
    let calls = everywhere.into_iter().chain(older).chain(NEWER_ATTRIBUTES);
    // As on a read-only mount, which this stands for.
    let read_only = FilterVerdict::Fail(libc::EROFS);
    rules.extend(calls.map(|call| FilterRule {
        call,
        checks: Vec::new(),
        verdict: read_only,
    }));
    let requests = SETTING_REQUESTS.map(|request| equals(1, u32::MAX, request));
    let requests = requests
        .into_iter()
        .chain([equals(1, REQUEST_TYPE, BTRFS_REQUESTS)]);
    rules.extend(requests.map(|request| FilterRule {
        call: libc::SYS_ioctl,
        checks: vec![request],
        verdict: read_only,
    }));
}

/// The argument that says to whom a priority belongs: all processes of the account.
const WHO_USER: u32 = 2;
const IO_WHO_USER: u32 = 3;

fn add_process_rules(rules: &mut Vec<FilterRule>) {
    // Limits and priorities of other processes, the server's among them. Zero means the caller itself.
    let names_another = |argument| differs(argument, u32::MAX, 0);
    rules.push(refuse(
        libc::SYS_prlimit64,
        vec![names_another(0), ArgumentCheck::NonNull { argument: 2 }],
    ));
    for (call, account) in [
        (libc::SYS_setpriority, WHO_USER),
        (libc::SYS_ioprio_set, IO_WHO_USER),
    ] {
        rules.push(refuse(call, vec![names_another(1)]));
        rules.push(refuse(call, vec![equals(0, u32::MAX, account)]));
    }
    let by_number = [
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
    ];
    rules.extend(by_number.map(|call| refuse(call, vec![names_another(0)])));
    rules.push(refuse(libc::SYS_process_mrelease, Vec::new()));
}

/// Memory, queues and semaphores of the host, which have keys instead of paths.
fn add_ipc_rules(rules: &mut Vec<FilterRule>) {
    let by_key = [
        libc::SYS_shmget,
        libc::SYS_shmat,
        libc::SYS_shmctl,
        libc::SYS_msgget,
        libc::SYS_msgsnd,
        libc::SYS_msgrcv,
        libc::SYS_msgctl,
        libc::SYS_semget,
        libc::SYS_semop,
        libc::SYS_semctl,
        libc::SYS_semtimedop,
        libc::SYS_mq_open,
        libc::SYS_mq_unlink,
    ];
    rules.extend(by_key.map(|call| refuse(call, Vec::new())));
}

fn add_broker_rules(rules: &mut Vec<FilterRule>) {
    let notify = |call, checks| FilterRule {
        call,
        checks,
        verdict: FilterVerdict::Notify,
    };
    let creates = |argument| {
        let mask = libc::O_CREAT.cast_unsigned();
        vec![ArgumentCheck::AnyBit { argument, mask }]
    };
    // Subvolumes are made by a request that no domain looks at. Sharing the content of files is not.
    let mut subvolumes = vec![equals(1, REQUEST_TYPE, BTRFS_REQUESTS)];
    subvolumes.extend(CLONE_REQUESTS.map(|request| differs(1, u32::MAX, request)));
    rules.push(refuse(libc::SYS_ioctl, subvolumes));
    rules.push(notify(libc::SYS_openat, creates(2)));
    // A socket that is bound to a path is a name, too. Where sockets cannot be bound, they still cannot.
    rules.push(notify(libc::SYS_bind, Vec::new()));
    let calls = [
        libc::SYS_openat2,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_symlinkat,
        libc::SYS_linkat,
        libc::SYS_renameat,
        libc::SYS_renameat2,
    ];
    rules.extend(calls.map(|call| notify(call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    {
        rules.push(notify(libc::SYS_open, creates(1)));
        let older = [
            libc::SYS_creat,
            libc::SYS_mkdir,
            libc::SYS_mknod,
            libc::SYS_symlink,
            libc::SYS_link,
            libc::SYS_rename,
        ];
        rules.extend(older.map(|call| notify(call, Vec::new())));
    }
}

fn refuse(call: i64, checks: Vec<ArgumentCheck>) -> FilterRule {
    FilterRule {
        call,
        checks,
        verdict: FilterVerdict::Fail(libc::EPERM),
    }
}

fn equals(argument: u8, mask: u32, value: u32) -> ArgumentCheck {
    ArgumentCheck::Equals {
        argument,
        mask,
        value,
    }
}

fn differs(argument: u8, mask: u32, value: u32) -> ArgumentCheck {
    ArgumentCheck::Differs {
        argument,
        mask,
        value,
    }
}
