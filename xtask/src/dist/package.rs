//! The packages, each made with the tool of its kind.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
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
        let arch = std::env::consts::ARCH;
        let name = format!("exec-server-{}-{arch}.{extension}", self.version);
        self.out.join(name)
    }

    /// Copies the slim executor under the name that `exec-server connect` looks for.
    pub(super) fn slim_executor(&self) -> anyhow::Result<PathBuf> {
        let arch = std::env::consts::ARCH;
        let path = self
            .out
            .join(format!("exec-server-{}-{arch}", self.version));
        copy_program(&self.slim, &path)?;
        Ok(path)
    }

    /// Packs the program with its documents, units and completions.
    pub(super) fn tarball(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("tar.gz");
        let name = format!("exec-server-{}", self.version);
        let staged = self.stage(&name)?;
        copy_program(&self.program, &staged.join("exec-server"))?;
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
        let size = fs::metadata(&self.program)?.len() / 1024;
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
        let manifest = json!({
            "name": format!("@exec-server/linux-{arch}"),
            "version": self.version,
            "description": format!("The program of exec-server for linux-{arch}"),
            "license": manifest["license"],
            "os": ["linux"],
            "cpu": [arch],
            "files": ["bin"],
        });
        write_json(&platform.join("package.json"), &manifest)?;
        let pack = |directory: &Path, name: String| {
            let mut npm = Command::new("npm");
            npm.args(["pack", "--silent", "--pack-destination"])
                .arg(&self.out)
                .arg(directory);
            check(&mut npm)?;
            anyhow::Ok(self.out.join(name))
        };
        let client = self.root.join("sdk/typescript");
        let mut packages = vec![
            pack(&launcher, format!("exec-server-{}.tgz", self.version))?,
            pack(
                &platform,
                format!("exec-server-linux-{arch}-{}.tgz", self.version),
            )?,
        ];
        if client.join("dist").is_dir() {
            packages.push(pack(
                &client,
                format!("exec-server-client-{}.tgz", self.version),
            )?);
        }
        Ok(packages)
    }

    /// Builds the wheel: the Python client, and the program on the PATH.
    pub(super) fn wheel(&self) -> anyhow::Result<PathBuf> {
        let environment = self.out.join("staged/maturin");
        let maturin = environment.join("bin/maturin");
        if !maturin.is_file() {
            check(
                Command::new("python3")
                    .args(["-m", "venv"])
                    .arg(&environment),
            )?;
            let mut install = Command::new(environment.join("bin/pip"));
            check(install.args(["install", "--quiet", "maturin>=1.9,<2"]))?;
        }
        let mut build = Command::new(maturin);
        build
            .current_dir(self.root.join("packaging/python"))
            .args(["build", "--release", "--locked", "--quiet"])
            .args(["--target", &super::target()])
            // The program is static, so it runs with glibc and with musl.
            .args(["--compatibility", "manylinux2014", "musllinux_1_1"])
            .arg("--out")
            .arg(&self.out)
            .env("CARGO_TARGET_DIR", self.root.join("target/static/full"))
            .env("RUSTFLAGS", super::STATIC_FLAGS);
        check(&mut build)?;
        let mut wheels: Vec<PathBuf> = fs::read_dir(&self.out)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|it| it == "whl"))
            .collect();
        wheels.sort();
        wheels.pop().context("maturin built no wheel")
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
