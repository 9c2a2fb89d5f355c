//! `cargo xtask dist`: builds the packages that people install, for the architecture of this
//! machine. Each contains the same statically linked program, and the slim executor that it copies
//! to other machines.

mod bill_of_materials;
mod package;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use self::package::PackageFiles;

/// What to build, from the command line.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct DistOptions {
    /// Directory of the packages. Absent: `target/dist`.
    pub(crate) out: Option<PathBuf>,
    /// Program to pack. Absent: it is built.
    pub(crate) program: Option<PathBuf>,
    /// Slim executor to pack. Absent: it is built.
    pub(crate) slim: Option<PathBuf>,
}

impl DistOptions {
    /// Parses `--out DIR`, `--program FILE` and `--slim FILE`.
    pub(crate) fn parse(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(flag) = arguments.next() {
            let path = arguments.next().map(PathBuf::from);
            let option = match *flag {
                "--out" => &mut options.out,
                "--program" => &mut options.program,
                "--slim" => &mut options.slim,
                _ => bail!("unknown argument `{flag}`"),
            };
            *option = Some(path.with_context(|| format!("{flag} needs a path"))?);
        }
        Ok(options)
    }
}

/// Builds all packages, and returns their paths.
pub(crate) fn run(root: &Path, options: DistOptions) -> anyhow::Result<Vec<PathBuf>> {
    let out = options.out.unwrap_or_else(|| root.join("target/dist"));
    fs::create_dir_all(&out)?;
    let files = PackageFiles {
        root: root.to_owned(),
        out: fs::canonicalize(&out)?,
        version: workspace_version(root)?,
        program: match options.program {
            Some(path) => fs::canonicalize(path)?,
            None => build(root, &[])?,
        },
        slim: match options.slim {
            Some(path) => fs::canonicalize(path)?,
            None => build(root, SLIM_FEATURES)?,
        },
    };
    for program in [&files.program, &files.slim] {
        if let Some(loader) = dynamic_loader(&fs::read(program)?) {
            bail!(
                "`{}` is not statically linked: it needs {loader}",
                program.display()
            );
        }
    }
    let mut packages = Vec::new();
    let slim_bill = format!(
        "exec-server-executor-{}-{}.cdx.json",
        files.version,
        std::env::consts::ARCH
    );
    let bills: [(_, &[&str]); 2] = [
        (files.path("cdx.json"), &[]),
        (files.out.join(slim_bill), SLIM_FEATURES),
    ];
    for (path, features) in bills {
        fs::write(&path, bill_of_materials::generate(root, features)?)?;
        packages.push(path);
    }
    packages.push(files.slim_executor(&files.out)?);
    packages.push(files.tarball()?);
    packages.push(files.deb()?);
    packages.extend(files.npm_packages()?);
    packages.push(files.wheel()?);
    packages.push(checksums(&files.out, &packages)?);
    Ok(packages)
}

/// Flags of the compiler for a program that needs no shared library. Randomness comes from the
/// system call: the crate looks it up as a symbol of a shared library by default, and a static
/// program would read `/dev/random` instead, which not every root file system has. On x86-64 the
/// linker is lld, which merges identical functions and packs relocations: the slim executor is 5 %
/// smaller.
#[cfg(target_arch = "x86_64")]
const STATIC_FLAGS: &str = "-C target-feature=+crt-static \
                            --cfg getrandom_backend=\"linux_getrandom\" \
                            -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-z,pack-relative-relocs";
#[cfg(not(target_arch = "x86_64"))]
const STATIC_FLAGS: &str = "-C target-feature=+crt-static \
                            --cfg getrandom_backend=\"linux_getrandom\"";

/// Arguments of cargo for the slim executor.
const SLIM_FEATURES: &[&str] = &["--no-default-features", "--features", "executor"];

/// Target of this machine. It is named to cargo, so that build scripts are not linked statically.
fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds the program statically. Its own directory keeps the variant with these features.
fn build(root: &Path, features: &[&str]) -> anyhow::Result<PathBuf> {
    let variant = if features.is_empty() { "full" } else { "slim" };
    let directory = root.join("target/static").join(variant);
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(root)
        .args(["build", "--profile", "dist", "--locked"])
        .args(["--package", "exec-server"])
        .args(["--target", &target()])
        .args(features)
        .env("CARGO_TARGET_DIR", &directory)
        .env("RUSTFLAGS", STATIC_FLAGS);
    package::check(&mut cargo)?;
    Ok(directory.join(target()).join("dist/exec-server"))
}

/// Returns the version that all crates share.
fn workspace_version(root: &Path) -> anyhow::Result<String> {
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let package = manifest.get("workspace").and_then(|it| it.get("package"));
    let version = package.and_then(|it| it.get("version")?.as_str());
    Ok(version.context("Cargo.toml names no version")?.to_owned())
}

/// Returns the loader that a 64-bit ELF program names, if it names one.
fn dynamic_loader(program: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let text = program.get(at..at + bytes)?;
        Some(
            text.iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    let at = |value: u64| usize::try_from(value).ok();
    let headers = at(number(32, 8)?)?;
    let size = at(number(54, 2)?)?;
    let count = at(number(56, 2)?)?;
    (0..count)
        .map(|index| headers + index * size)
        .find(|header| number(*header, 4) == Some(PT_INTERP))
        .and_then(|header| {
            let begin = at(number(header + 8, 8)?)?;
            let length = at(number(header + 32, 8)?)?;
            let name = program.get(begin..begin + length)?;
            Some(
                String::from_utf8_lossy(name)
                    .trim_end_matches('\0')
                    .to_owned(),
            )
        })
}

/// Writes the SHA-256 digests of the packages, in the form that `sha256sum --check` reads.
fn checksums(out: &Path, packages: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let names = packages.iter().filter_map(|path| path.file_name());
    let mut sum = Command::new("sha256sum");
    let output = sum.current_dir(out).args(names).output()?;
    if !output.status.success() {
        bail!(
            "sha256sum failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let path = out.join("SHA256SUMS");
    fs::write(&path, output.stdout)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_paths() {
        let options = DistOptions::parse(&["--out", "a", "--slim", "b"]).unwrap();
        assert_eq!(options.out, Some("a".into()));
        assert_eq!(options.slim, Some("b".into()));
        assert!(DistOptions::parse(&["--out"]).is_err());
        assert!(DistOptions::parse(&["--fast", "x"]).is_err());
    }

    #[test]
    fn loader_of_a_dynamic_program_is_found() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = dynamic_loader(&program).unwrap();
        assert!(loader.contains("ld-linux"), "{loader}");
        assert_eq!(dynamic_loader(b"#!/bin/sh\n"), None);
    }
}
