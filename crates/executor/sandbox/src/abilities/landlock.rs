//! Asks the kernel for Landlock.
#![expect(unsafe_code, reason = "the call has no safe wrapper that only asks")]

/// Returns the version of Landlock's interface; 0 if there is none, or if a filter hides it.
pub(super) fn version() -> u32 {
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}
