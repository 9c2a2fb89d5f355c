//! What encloses a command: namespaces, a view of the files, a Landlock domain, a filter of system
//! calls. Steps of the kernel's, in the order in which they are taken; nothing is decided here.
//!
//! Whatever applies an enclosure makes raw system calls only and allocates nothing: most of it runs
//! between a clone and an exec, in the memory of the spawner.
//!
//! Not here: why (`exec-sandbox` makes these from a policy).

mod account;
mod broker;
mod description;
mod encode;
mod enter;
mod guard;
mod mount;
mod network;
mod part;
mod parts;
mod restrict;
mod view;

pub(crate) use self::{
    account::{map_account, own_account, set_umask},
    guard::{Watch, pass_listener},
    mount::{make_private, open_outside_processes},
    network::open_network,
    part::Refusal,
    parts::{NamespaceParts, Parts},
    restrict::{
        drop_capabilities, forbid_privileges, forbid_raising_limits, keep_only_tracing,
        restrict_by_filter, restrict_by_landlock,
    },
    view::View,
};

pub use self::{
    description::{
        Enclosure, Guard, Instruction, MAX_SLOTS, Missing, Namespaces, NetworkNamespace, Slot, Step,
    },
    enter::{EnterError, enter},
    part::{At, Part},
};
