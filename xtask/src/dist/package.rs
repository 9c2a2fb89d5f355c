//! The packages, each made with the tool of its kind.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Runs a program, and fails if it fails.
pub(super) fn check(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status();
    let status = status.with_context(|| format!("failed to start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed: {status}");
    }
    Ok(())
}

/// Returns the file name of a package that is named after version and architecture.
fn package_name(version: &str, arch: &str, extension: &str) -> String {
    format!("exec-server-{version}-{arch}.{extension}")
}

/// Returns the directory that the tarball contains.
fn tarball_directory(version: &str) -> String {
    format!("exec-server-{version}")
}

/// Where packages with a directory of programs hold the slim executor. `exec-server connect` looks
/// for it there, relative to the directory of the program.
const SLIM_DIRECTORY: &str = "lib/exec-server";

/// What the packages contain, and where they are written.
pub(super) struct PackageFiles {
    pub(super) root: PathBuf,
    pub(super) out: PathBuf,
    pub(super) version: String,
    pub(super) program: PathBuf,
    pub(super) slim: PathBuf,
}

impl PackageFiles {
    /// Returns the path of a package that is named after version and architecture.
    pub(super) fn path(&self, extension: &str) -> PathBuf {
        let name = package_name(&self.version, std::env::consts::ARCH, extension);
        self.out.join(name)
    }

    /// Copies the slim executor into a directory, under the name that `exec-server connect` looks
    /// for.
    pub(super) fn slim_executor(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let arch = std::env::consts::ARCH;
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("exec-server-{}-{arch}", self.version));
        copy_program(&self.slim, &path)?;
        Ok(path)
    }

    /// Packs the program and the slim executor with documents, units and completions.
    pub(super) fn tarball(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("tar.gz");
        let name = tarball_directory(&self.version);
        let staged = self.stage(&name)?;
        copy_program(&self.program, &staged.join("exec-server"))?;
        self.slim_executor(&staged)?;
        for document in ["LICENSE", "README.md", "CHANGELOG.md"] {
            fs::copy(self.root.join(document), staged.join(document))?;
        }
        self.write_manual_and_completions(&staged)?;
        for unit in self.units()? {
            fs::copy(&unit, staged.join(unit.file_name().unwrap_or_default()))?;
        }
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--owner=0", "--group=0"])
            .args(["--sort=name", "--mtime=@0", "--numeric-owner"])
            .arg(format!("--file={}", path.display()))
            .arg(format!("--directory={}", self.out.join("staged").display()))
            .arg(&name);
        check(&mut tar)?;
        Ok(path)
    }

    /// Builds the Debian package.
    pub(super) fn deb(&self) -> anyhow::Result<PathBuf> {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let name = format!("exec-server_{}_{arch}.deb", self.version);
        let path = self.out.join(name);
        let staged = self.stage("deb")?;
        let shared = staged.join("usr/share");
        let directories = ["DEBIAN", "usr/bin", "usr/lib/systemd/system"];
        for directory in directories {
            fs::create_dir_all(staged.join(directory))?;
        }
        let places = [
            ("exec-server.1", "man/man1"),
            ("exec-server.bash", "bash-completion/completions"),
            ("_exec-server", "zsh/vendor-completions"),
            ("exec-server.fish", "fish/vendor_completions.d"),
        ];
        let generated = self.stage("generated")?;
        self.write_manual_and_completions(&generated)?;
        for (file, place) in places {
            let name = if file == "exec-server.bash" {
                "exec-server"
            } else {
                file
            };
            fs::create_dir_all(shared.join(place))?;
            fs::copy(generated.join(file), shared.join(place).join(name))?;
        }
        fs::create_dir_all(shared.join("doc/exec-server"))?;
        fs::copy(
            self.root.join("LICENSE"),
            shared.join("doc/exec-server/copyright"),
        )?;
        copy_program(&self.program, &staged.join("usr/bin/exec-server"))?;
        for unit in self.units()? {
            let text = fs::read_to_string(&unit)?.replace("/usr/local/bin/", "/usr/bin/");
            let name = unit.file_name().unwrap_or_default();
            fs::write(staged.join("usr/lib/systemd/system").join(name), text)?;
        }
        self.slim_executor(&staged.join("usr").join(SLIM_DIRECTORY))?;
        let size = (fs::metadata(&self.program)?.len() + fs::metadata(&self.slim)?.len()) / 1024;
        let control = format!(
            "Package: exec-server\nVersion: {}\nArchitecture: {arch}\nInstalled-Size: {size}\n\
             Section: devel\nPriority: optional\n\
             Maintainer: exec-server maintainers <maintainers@exec-server.invalid>\n\
             Recommends: ca-certificates\nSuggests: bubblewrap, git, openssh-client\n\
             Description: execution plane for coding agents\n \
             Runs commands and file operations where the code lives, for a harness that lives\n \
             anywhere.\n",
            self.version
        );
        fs::write(staged.join("DEBIAN/control"), control)?;
        let mut build = Command::new("dpkg-deb");
        build
            .args(["--root-owner-group", "--build"])
            .arg(&staged)
            .arg(&path);
        check(&mut build)?;
        Ok(path)
    }

    /// Builds the npm packages: the one that people name, and the one with the binary.
    pub(super) fn npm_packages(&self) -> anyhow::Result<Vec<PathBuf>> {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            other => other,
        };
        let source = self.root.join("packaging/npm/exec-server");
        let launcher = self.stage("npm/exec-server")?;
        fs::create_dir_all(launcher.join("bin"))?;
        fs::copy(
            source.join("bin/exec-server.js"),
            launcher.join("bin/exec-server.js"),
        )?;
        let mut manifest: Value =
            serde_json::from_str(&fs::read_to_string(source.join("package.json"))?)?;
        manifest["version"] = self.version.as_str().into();
        if let Some(optional) = manifest["optionalDependencies"].as_object_mut() {
            for version in optional.values_mut() {
                *version = self.version.as_str().into();
            }
        }
        write_json(&launcher.join("package.json"), &manifest)?;

        let platform = self.stage("npm/platform")?;
        fs::create_dir_all(platform.join("bin"))?;
        copy_program(&self.program, &platform.join("bin/exec-server"))?;
        self.slim_executor(&platform.join(SLIM_DIRECTORY))?;
        let manifest = json!({
            "name": format!("@exec-server/linux-{arch}"),
            "version": self.version,
            "description": format!("The program of exec-server for linux-{arch}"),
            "license": manifest["license"],
            "os": ["linux"],
            "cpu": [arch],
            "files": ["bin", "lib"],
        });
        write_json(&platform.join("package.json"), &manifest)?;
        let version = &self.version;
        Ok(vec![
            self.npm_pack(&launcher, format!("exec-server-{version}.tgz"))?,
            self.npm_pack(&platform, format!("exec-server-linux-{arch}-{version}.tgz"))?,
            self.typescript_client()?,
        ])
    }

    /// Builds the TypeScript client from its sources alone, not from what an earlier build left.
    fn typescript_client(&self) -> anyhow::Result<PathBuf> {
        let source = self.root.join("sdk/typescript");
        let staged = self.stage("npm/client")?;
        let files = [
            "package.json",
            "package-lock.json",
            "tsconfig.json",
            "README.md",
            "src",
        ];
        let mut copy = Command::new("cp");
        copy.arg("--recursive")
            .args(files.map(|file| source.join(file)))
            .arg(&staged);
        check(&mut copy)?;
        // The script `prepare` would build it twice.
        let steps: [&[&str]; 2] = [
            &[
                "ci",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
            ],
            &["run", "--silent", "build"],
        ];
        for arguments in steps {
            check(Command::new("npm").current_dir(&staged).args(arguments))?;
        }
        self.npm_pack(&staged, format!("exec-server-client-{}.tgz", self.version))
    }

    /// Packs a directory, and returns the package that npm gave this name.
    fn npm_pack(&self, directory: &Path, name: String) -> anyhow::Result<PathBuf> {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--ignore-scripts", "--pack-destination"])
            .arg(&self.out)
            .arg(directory);
        check(&mut npm)?;
        Ok(self.out.join(name))
    }

    /// Builds the wheel: the Python client, the program on the PATH, and the slim executor.
    pub(super) fn wheel(&self) -> anyhow::Result<PathBuf> {
        let environment = self.out.join("staged/python");
        let python = environment.join("bin/python");
        if !python.is_file() {
            let mut create = Command::new("python3");
            check(create.args(["-m", "venv"]).arg(&environment))?;
            let mut install = Command::new(&python);
            check(install.args(["-m", "pip", "install", "--quiet", "wheel>=0.45,<1"]))?;
        }
        let staged = self.stage("wheel")?;
        let mut client = Command::new(&python);
        client
            .args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"])
            .arg(&staged)
            .arg(self.root.join("sdk/python"));
        check(&mut client)?;
        let name = format!("exec_server-{}", self.version);
        let mut unpack = Command::new(&python);
        unpack
            .current_dir(&staged)
            .args(["-m", "wheel", "unpack"])
            .arg(format!("{name}-py3-none-any.whl"))
            .stdout(Stdio::null());
        check(&mut unpack)?;
        let content = staged.join(&name);
        let data = content.join(format!("{name}.data"));
        fs::create_dir_all(data.join("scripts"))?;
        copy_program(&self.program, &data.join("scripts/exec-server"))?;
        self.slim_executor(&data.join("data").join(SLIM_DIRECTORY))?;
        let facts = content.join(format!("{name}.dist-info/WHEEL"));
        fs::write(facts, wheel_facts(std::env::consts::ARCH))?;
        let mut pack = Command::new(&python);
        pack.args(["-m", "wheel", "pack", "--dest-dir"])
            .arg(&self.out)
            .arg(&content)
            .stdout(Stdio::null());
        check(&mut pack)?;
        let tags = platform_tags(std::env::consts::ARCH).join(".");
        Ok(self.out.join(format!("{name}-py3-none-{tags}.whl")))
    }

    /// Creates an empty directory for the content of one package.
    fn stage(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.out.join("staged").join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Writes what the program generates about itself.
    fn write_manual_and_completions(&self, directory: &Path) -> anyhow::Result<()> {
        let generated: [(&str, &[&str]); 4] = [
            ("exec-server.1", &["man"]),
            ("exec-server.bash", &["completions", "bash"]),
            ("_exec-server", &["completions", "zsh"]),
            ("exec-server.fish", &["completions", "fish"]),
        ];
        for (file, arguments) in generated {
            let output = Command::new(&self.program).args(arguments).output()?;
            if !output.status.success() {
                bail!("`exec-server {}` failed", arguments.join(" "));
            }
            fs::write(directory.join(file), output.stdout)?;
        }
        Ok(())
    }

    /// Returns the systemd units.
    fn units(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut units: Vec<PathBuf> = fs::read_dir(self.root.join("packaging"))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|it| it == "service"))
            .collect();
        units.sort();
        Ok(units)
    }
}

/// Returns the platforms of the wheel, sorted as its name has them. The program is static, so it runs
/// with glibc and with musl.
fn platform_tags(arch: &str) -> [String; 3] {
    ["manylinux2014", "manylinux_2_17", "musllinux_1_1"].map(|system| format!("{system}_{arch}"))
}

/// Returns the content of the file `WHEEL`.
fn wheel_facts(arch: &str) -> String {
    let tags = platform_tags(arch).map(|tag| format!("Tag: py3-none-{tag}\n"));
    let generator = "Generator: exec-server xtask\n";
    format!(
        "Wheel-Version: 1.0\n{generator}Root-Is-Purelib: false\n{}",
        tags.concat()
    )
}

fn copy_program(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("failed to copy `{}`", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn write_json(path: &Path, value: &Value) -> anyhow::Result<()> {
    Ok(fs::write(
        path,
        serde_json::to_string_pretty(value)? + "\n",
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what cargo knows about the package with the program.
    fn manifest() -> Value {
        let metadata = Command::new("cargo")
            .args([
                "metadata",
                "--format-version",
                "1",
                "--no-deps",
                "--offline",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let program = packages.find(|package| package["name"] == "exec-server");
        program.unwrap().clone()
    }

    #[test]
    fn binstall_downloads_the_tarball_that_dist_writes() {
        let manifest = manifest();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (repository, version) = (text(&manifest["repository"]), text(&manifest["version"]));
        assert!(repository.starts_with("https://"), "no repository");
        let rendered = |template: &Value| {
            let filled = text(template)
                .replace("{ repo }", &repository)
                .replace("{ version }", &version);
            assert!(!filled.contains(['{', '}']), "{filled}");
            filled
        };
        let binstall = &manifest["metadata"]["binstall"];
        assert_eq!(binstall["pkg-fmt"], "tgz");
        let directory = tarball_directory(&version);
        assert_eq!(
            rendered(&binstall["bin-dir"]),
            format!("{directory}/exec-server")
        );
        for arch in ["x86_64", "aarch64"] {
            for libc in ["gnu", "musl"] {
                let target = format!("{arch}-unknown-linux-{libc}");
                let file = package_name(&version, arch, "tar.gz");
                assert_eq!(
                    rendered(&binstall["overrides"][&target]["pkg-url"]),
                    format!("{repository}/releases/download/v{version}/{file}"),
                    "{target}"
                );
            }
        }
    }

    #[test]
    fn repository_is_the_one_of_the_registry_name() {
        let server = include_str!("../../../server.json");
        let server: Value = serde_json::from_str(server).unwrap();
        let name = server["name"].as_str().unwrap();
        let path = name.strip_prefix("io.github.").unwrap();
        let repository = format!("https://github.com/{path}");
        assert_eq!(manifest()["repository"], repository);
        assert_eq!(server["repository"]["url"], repository);
    }

    #[test]
    fn wheel_names_every_platform() {
        let facts = wheel_facts("x86_64");
        assert!(platform_tags("x86_64").is_sorted());
        for tag in platform_tags("x86_64") {
            assert!(
                facts.contains(&format!("\nTag: py3-none-{tag}\n")),
                "{facts}"
            );
        }
        assert!(facts.contains("\nRoot-Is-Purelib: false\n"), "{facts}");
    }
}
