//! Seccomp filters: which system calls are refused, and why.
//!
//! Calls are allowed by default. Namespaces, mounts and Landlock decide what a command can reach;
//! the filter refuses what they cannot control. Not here: applying a filter between clone and exec.

mod assembler;
#[cfg(test)]
mod tests;

use exec_spawn::sandbox_setup::FilterInstruction;

use self::assembler::{ArgumentCheck, FilterRule, FilterVerdict, assemble};

/// Parameters of a filter.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FilterSpec {
    /// Sockets that can be created.
    pub sockets: SocketAccess,
    /// The command shares files and System V IPC with the host. Refuses attribute changes, which
    /// Landlock does not control, and IPC objects that have a key instead of a path.
    pub shares_host_files: bool,
    /// The command can see the host's processes. Refuses changes of their limits and priorities.
    pub shares_host_processes: bool,
    /// A broker performs calls that create files.
    pub brokered: bool,
}

/// Sockets that can be created.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SocketAccess {
    /// Sockets of the host's network.
    Host,
    /// Only connected unix socket pairs.
    Pairs,
    /// Internet sockets, in the command's own network namespace.
    Internet {
        /// Also unix sockets.
        unix: bool,
    },
}

/// Builds the BPF program of a filter.
pub fn build_filter(filter: FilterSpec) -> Vec<FilterInstruction> {
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

/// Flags of all namespaces.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned()
    | NEW_TIME;
/// `CLONE_NEWTIME`, only for `unshare`: in `clone` this bit is part of the signal number.
const NEW_TIME: u32 = 0x80;

fn add_base_rules(rules: &mut Vec<FilterRule>) {
    let refused = [
        // Memory and descriptors of other processes, which may be less restricted.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        // Operations that bypass the filter.
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        // Kernel interfaces with a history of vulnerabilities and no use in builds.
        libc::SYS_bpf,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        // Keyrings belong to the account, not to the sandbox.
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        // Opens files by handle instead of path.
        libc::SYS_open_by_handle_at,
        // Calls that change mounts or the root.
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
        // Calls that change the machine. Missing capabilities forbid these already.
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
    // A new user namespace grants every capability inside it.
    let any = |argument, mask| vec![ArgumentCheck::AnyBit { argument, mask }];
    rules.push(refuse(libc::SYS_unshare, any(0, NEW_NAMESPACES)));
    rules.push(refuse(libc::SYS_clone, any(0, NEW_NAMESPACES & !NEW_TIME)));
    // The flags are in memory, which a filter cannot read. Libraries fall back to `clone`.
    rules.push(FilterRule {
        call: libc::SYS_clone3,
        checks: Vec::new(),
        verdict: FilterVerdict::Fail(libc::ENOSYS),
    });
    // Injects input into a terminal.
    for request in [TIOCSTI, TIOCLINUX] {
        rules.push(refuse(libc::SYS_ioctl, vec![equals(1, u32::MAX, request)]));
    }
}

/// `open_tree_attr` (Linux 6.15) changes mounts like `mount_setattr`, and `listns` (6.19) lists
/// namespaces of other processes. The numbers are the same on every architecture. The other calls
/// from `statmount` (457) to `file_setattr` (469) stay allowed: they return what `/proc` also
/// shows, affect only the caller (`lsm_set_self_attr`, `mseal`), or change attributes, which mounts
/// or [`NEWER_ATTRIBUTES`] control.
const NEWER_CALLS: [i64; 2] = [467, 470];

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// Mask of the socket type without its flags.
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
            // A datagram socket can send to any unix socket of the host, even if it is one of a
            // pair.
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
            // The other families are useless without capabilities and have a history of
            // vulnerabilities.
            let mut others = vec![differs(0, u32::MAX, UNIX), differs(0, u32::MAX, NETLINK)];
            others.extend(INTERNET.map(|family| differs(0, u32::MAX, family)));
            rules.push(refuse(libc::SYS_socket, others));
            rules.push(refuse(
                libc::SYS_socket,
                // Reading routes and addresses is allowed; other netlink protocols configure the
                // host.
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

/// `fchmodat2`, `setxattrat`, `removexattrat` and `file_setattr`. The numbers are the same on every
/// architecture.
const NEWER_ATTRIBUTES: [i64; 4] = [452, 463, 466, 469];
/// Requests that change a file through a read-only descriptor: `FS_IOC_SETFLAGS`,
/// `FS_IOC_SETVERSION`, `FS_IOC_FSSETXATTR`, `FS_IOC_ENABLE_VERITY`, and those for encryption
/// policies and keys.
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
/// Type of all btrfs requests, which can create and remove subvolumes.
const BTRFS_REQUESTS: u32 = 0x9400;
const REQUEST_TYPE: u32 = 0xff00;
/// Requests with this type that every file system supports: `FICLONE`, `FICLONERANGE` and
/// `FIDEDUPERANGE`.
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
    // The filter replaces a read-only mount, so it returns the same error.
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

/// `PRIO_USER` and `IOPRIO_WHO_USER`: all processes of the account.
const WHO_USER: u32 = 2;
const IO_WHO_USER: u32 = 3;

fn add_process_rules(rules: &mut Vec<FilterRule>) {
    // Limits and priorities of other processes, including the server. Zero is the caller itself.
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

/// Shared memory, queues and semaphores of the host, which have keys instead of paths.
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
    // Creating a subvolume is a request that Landlock does not control. Cloning file contents stays
    // allowed.
    let mut subvolumes = vec![equals(1, REQUEST_TYPE, BTRFS_REQUESTS)];
    subvolumes.extend(CLONE_REQUESTS.map(|request| differs(1, u32::MAX, request)));
    rules.push(refuse(libc::SYS_ioctl, subvolumes));
    rules.push(notify(libc::SYS_openat, creates(2)));
    // Binding a socket to a path creates a name. Where the sandbox denies binding, the broker does
    // as well.
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
