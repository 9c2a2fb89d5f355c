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

use self::assembler::{Check, Rule, Verdict, assemble};

/// What a filter is for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Filter {
    /// Which sockets there are.
    pub sockets: Sockets,
    /// The host's files and queues are the command's, too, because it has no namespaces for them:
    /// nothing about a file may be changed that Landlock does not look at, and nothing be reached that has
    /// a key instead of a path.
    pub on_the_host: bool,
    /// The host's processes can be named: none may be slowed down or limited.
    pub among_others: bool,
    /// Calls that make something are the broker's.
    pub brokered: bool,
}

/// Which sockets there are.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Sockets {
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
pub fn filter(filter: Filter) -> Vec<Instruction> {
    let mut rules = Vec::new();
    always(&mut rules);
    sockets(filter.sockets, &mut rules);
    if filter.on_the_host {
        attributes(&mut rules);
        keys(&mut rules);
    }
    if filter.among_others {
        others(&mut rules);
    }
    if filter.brokered {
        brokered(&mut rules);
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

fn always(rules: &mut Vec<Rule>) {
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
    rules.extend(NEWER.map(|call| refuse(call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_iopl, libc::SYS_ioperm].map(|call| refuse(call, Vec::new())));
    // New namespaces: with one of users comes every capability inside it.
    let any = |argument, mask| vec![Check::AnyOf { argument, mask }];
    rules.push(refuse(libc::SYS_unshare, any(0, NEW_NAMESPACES)));
    rules.push(refuse(libc::SYS_clone, any(0, NEW_NAMESPACES & !NEW_TIME)));
    // Its flags are in memory, where a filter does not see them. Libraries then use `clone`.
    rules.push(Rule {
        call: libc::SYS_clone3,
        when: Vec::new(),
        verdict: Verdict::Fail(libc::ENOSYS),
    });
    // Typing into a terminal on somebody's behalf.
    for request in [TIOCSTI, TIOCLINUX] {
        rules.push(refuse(libc::SYS_ioctl, vec![is(1, u32::MAX, request)]));
    }
}

/// `open_tree_attr` (Linux 6.15) changes mounts like `mount_setattr`, and `listns` (6.19) names
/// namespaces of others: the same on every architecture. The other calls from `statmount` (457) to
/// `file_setattr` (469) stay allowed: they read what `/proc` shows as well, act on the caller alone
/// (`lsm_set_self_attr`, `mseal`), or change attributes, which mounts or [`NEWER_ATTRIBUTES`] govern.
const NEWER: [i64; 2] = [467, 470];

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// The type of a socket without its flags.
const TYPE: u32 = 0xf;
const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const INTERNET: [u32; 2] = [
    libc::AF_INET.cast_unsigned(),
    libc::AF_INET6.cast_unsigned(),
];
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();

fn sockets(sockets: Sockets, rules: &mut Vec<Rule>) {
    let pairs = |rules: &mut Vec<Rule>| {
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            rules.push(refuse(call, vec![is_not(0, u32::MAX, UNIX)]));
            // A datagram can be sent to any socket of the host's, also from one of a pair.
            for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
                rules.push(refuse(call, vec![is(1, TYPE, kind.cast_unsigned())]));
            }
        }
    };
    match sockets {
        Sockets::Pairs => {
            pairs(rules);
            let reach_out = [
                libc::SYS_connect,
                libc::SYS_bind,
                libc::SYS_listen,
                libc::SYS_accept,
                libc::SYS_accept4,
            ];
            rules.extend(reach_out.map(|call| refuse(call, Vec::new())));
            let to_somebody = vec![Check::Points { argument: 4 }];
            rules.push(refuse(libc::SYS_sendto, to_somebody));
        }
        Sockets::Host => {
            // What is left has no use for an account without capabilities, but a history of holes.
            let mut others = vec![is_not(0, u32::MAX, UNIX), is_not(0, u32::MAX, NETLINK)];
            others.extend(INTERNET.map(|family| is_not(0, u32::MAX, family)));
            rules.push(refuse(libc::SYS_socket, others));
            rules.push(refuse(
                libc::SYS_socket,
                // Routes and addresses may be read; the rest of netlink configures the host.
                vec![is(0, u32::MAX, NETLINK), is_not(2, u32::MAX, 0)],
            ));
            let raw = libc::SOCK_RAW.cast_unsigned();
            rules.extend(INTERNET.map(|family| {
                refuse(
                    libc::SYS_socket,
                    vec![is(0, u32::MAX, family), is(1, TYPE, raw)],
                )
            }));
        }
        Sockets::Internet { unix } => {
            let mut others: Vec<Check> =
                INTERNET.map(|family| is_not(0, u32::MAX, family)).to_vec();
            if unix {
                others.push(is_not(0, u32::MAX, UNIX));
            }
            rules.push(refuse(libc::SYS_socket, others));
            rules.push(refuse(
                libc::SYS_socket,
                vec![is(1, TYPE, libc::SOCK_RAW.cast_unsigned())],
            ));
            rules.push(refuse(
                libc::SYS_socketpair,
                vec![is_not(0, u32::MAX, UNIX)],
            ));
            if !unix {
                for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
                    let kind = is(1, TYPE, kind.cast_unsigned());
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
const SETTING: [u32; 8] = [
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
const BTRFS: u32 = 0x9400;
const KIND: u32 = 0xff00;
/// Those that every file system has: `FICLONE`, `FICLONERANGE` and `FIDEDUPERANGE`.
const CLONING: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

fn attributes(rules: &mut Vec<Rule>) {
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
    let read_only = Verdict::Fail(libc::EROFS);
    rules.extend(calls.map(|call| Rule {
        call,
        when: Vec::new(),
        verdict: read_only,
    }));
    let setting = SETTING.map(|request| is(1, u32::MAX, request));
    let setting = setting.into_iter().chain([is(1, KIND, BTRFS)]);
    rules.extend(setting.map(|request| Rule {
        call: libc::SYS_ioctl,
        when: vec![request],
        verdict: read_only,
    }));
}

/// The argument that says to whom a priority belongs: all processes of the account.
const OF_ACCOUNT: u32 = 2;
const IO_OF_ACCOUNT: u32 = 3;

fn others(rules: &mut Vec<Rule>) {
    // Limits and priorities of other processes, the server's among them. Zero means the caller itself.
    let of_another = |argument| is_not(argument, u32::MAX, 0);
    rules.push(refuse(
        libc::SYS_prlimit64,
        vec![of_another(0), Check::Points { argument: 2 }],
    ));
    for (call, account) in [
        (libc::SYS_setpriority, OF_ACCOUNT),
        (libc::SYS_ioprio_set, IO_OF_ACCOUNT),
    ] {
        rules.push(refuse(call, vec![of_another(1)]));
        rules.push(refuse(call, vec![is(0, u32::MAX, account)]));
    }
    let by_number = [
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
    ];
    rules.extend(by_number.map(|call| refuse(call, vec![of_another(0)])));
    rules.push(refuse(libc::SYS_process_mrelease, Vec::new()));
}

/// Memory, queues and semaphores of the host, which have keys instead of paths.
fn keys(rules: &mut Vec<Rule>) {
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

fn brokered(rules: &mut Vec<Rule>) {
    let notify = |call, when| Rule {
        call,
        when,
        verdict: Verdict::Notify,
    };
    let creates = |argument| {
        let mask = libc::O_CREAT.cast_unsigned();
        vec![Check::AnyOf { argument, mask }]
    };
    // Subvolumes are made by a request that no domain looks at. Sharing the content of files is not.
    let mut subvolumes = vec![is(1, KIND, BTRFS)];
    subvolumes.extend(CLONING.map(|request| is_not(1, u32::MAX, request)));
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

fn refuse(call: i64, when: Vec<Check>) -> Rule {
    Rule {
        call,
        when,
        verdict: Verdict::Fail(libc::EPERM),
    }
}

fn is(argument: u8, mask: u32, value: u32) -> Check {
    Check::Is {
        argument,
        mask,
        value,
    }
}

fn is_not(argument: u8, mask: u32, value: u32) -> Check {
    Check::IsNot {
        argument,
        mask,
        value,
    }
}
