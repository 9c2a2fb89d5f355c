//! Entry point of the fuzz target `sandbox_plan`: any policy, on a host with a bit of everything.
//!
//! Checked invariants: a plan allows nothing that the reference model denies, it is well formed,
//! and the order of entries does not matter. Not here: the target itself and its corpus (`fuzz/`).

use std::sync::Arc;

use exec_wire::sandbox::{FileSystemPolicy, SandboxPermissions, SandboxPolicy};

use crate::{
    facts::MemoryTree,
    plan::{FileAccess, NetworkScope, SandboxPlan, missing_feature::missing_landlock_features},
    policy::{self, PolicyPurpose, ResolveContext, reference_model},
    seatbelt,
};

/// A host with links in many directions, metadata of every kind, and an unsearchable directory.
const HOST: &str = "
    /usr/bin/server
    /usr/lib/
    /bin -> usr/bin
    /lib -> usr/lib
    /etc/passwd
    /proc/sys/kernel/
    /proc/self -> 1
    /proc/1/
    /sys/class/
    /tmp/scratch/
    /home/dev/ws/src/main.rs
    /home/dev/ws/src/.env
    /home/dev/ws/.env -> src/.env
    /home/dev/ws/.git = gitdir: ../store/ws\\n
    /home/dev/ws/.codex -> /home/dev/ws/settings
    /home/dev/ws/settings/
    /home/dev/ws/out -> /tmp/scratch
    /home/dev/ws/up -> ..
    /home/dev/ws/gone -> nowhere/at/all
    /home/dev/ws/loop -> loop
    /home/dev/ws/closed !
    /home/dev/ws/closed/secret
    /home/dev/store/ws/commondir = ../shared\\n
    /home/dev/store/shared/
    /home/dev/other/.git/config
    /home/dev/link -> ws
";

/// Resolves a policy for a command and for file operations.
///
/// # Panics
/// When an invariant does not hold.
pub fn sandbox_plan(input: &[u8]) {
    let Ok(sandbox) = serde_json::from_slice::<SandboxPolicy>(input) else {
        return;
    };
    let host = MemoryTree::of(HOST);
    for purpose in [PolicyPurpose::Process, PolicyPurpose::Files] {
        let context = ResolveContext {
            purpose,
            cwd: "/home/dev/ws".into(),
            tmpdir: Some("/home/dev/ws/out".into()),
            always_readable: vec!["/usr/bin/server".into()],
            protected: Arc::from(["/ws/run".into()]),
        };
        let resolved = policy::resolve(&sandbox, &context, &host);
        match &resolved {
            Ok(plan) => check(plan, &sandbox, &context, &host),
            Err(error) => assert!(
                error.to_string().contains(':'),
                "the error must name a member"
            ),
        }
        let again = policy::resolve(&reversed(sandbox.clone()), &context, &host);
        assert_eq!(
            resolved.ok(),
            again.ok(),
            "order of entries must not matter"
        );
    }
}

fn check(plan: &SandboxPlan, sandbox: &SandboxPolicy, context: &ResolveContext, host: &MemoryTree) {
    reference_model::check(plan, sandbox, context, host);
    match context.purpose {
        PolicyPurpose::Process => {}
        PolicyPurpose::Files => assert_eq!(plan.network, NetworkScope::None),
    }
    let everything = policy::writes_everything(sandbox);
    assert_eq!(plan.files == FileAccess::All, everything);
    let lacks: Vec<_> = (0..9)
        .map(|abi| missing_landlock_features(plan, abi))
        .collect();
    for (older, newer) in lacks.iter().zip(lacks.iter().skip(1)) {
        assert!(newer.iter().all(|lack| older.contains(lack)));
    }
    if let Ok(profile) = seatbelt::profile(plan) {
        assert!(profile.starts_with("(version 1)\n"));
    }
}

/// Reverses the order of entries.
fn reversed(mut sandbox: SandboxPolicy) -> SandboxPolicy {
    if let SandboxPermissions::Managed {
        file_system: FileSystemPolicy::Restricted { entries, .. },
        ..
    } = &mut sandbox.permissions
    {
        entries.reverse();
    }
    sandbox
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn corpus_holds_every_invariant() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sandbox_plan");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 20, "fuzz corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            sandbox_plan(&fs::read(file.path()).unwrap());
        }
    }
}
