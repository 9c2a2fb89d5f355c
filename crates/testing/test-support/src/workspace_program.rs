//! Programs of the workspace, for tests that run them.

use std::{env, path::PathBuf, process::Command, sync::Mutex};

/// Returns the program of a package next to the test binary, and builds it if it is missing.
pub fn workspace_program(package: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().expect("an earlier build panicked");
    let test = env::current_exe().expect("failed to find the test binary");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("test binary is not in `deps` of a profile");
    let program = profile.join(package);
    if !program.exists() {
        let target = profile.parent().expect("profile is not in a directory");
        let name = profile.file_name().expect("profile has no name");
        let name = if name == "debug" {
            "dev".as_ref()
        } else {
            name
        };
        let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--package", package, "--profile"])
            .arg(name)
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        let built = status.is_ok_and(|status| status.success());
        assert!(built, "failed to build {package}");
    }
    program
}
