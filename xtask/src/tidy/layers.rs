//! The map of crates: dependencies point down, never up and never sideways.
//!
//! Dev-dependencies are exempt: a test may stand on anything.

use super::{finding::Finding, tree::File};

/// A crate's place on the map. It may name crates of a lower rank only.
#[derive(Debug)]
struct Layer {
    package: &'static str,
    rank: Rank,
    /// Dependencies that its job rules out, whatever their rank.
    never: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rank {
    /// On the map; 0 is the ground.
    Map(u8),
    /// Below the tests: names crates of the map, and only crates beside it name it.
    TestSupport,
    /// Beside the map: names whatever it likes, and nobody names it.
    Beside,
}

/// What a sans-IO core does without.
const IO: &[&str] = &["tokio", "rustix", "libc", "hyper", "tracing"];

const MAP: &[Layer] = &[
    layer("exec-wire", 0, IO),
    layer("exec-core", 1, IO),
    layer("exec-relay", 1, IO),
    layer("exec-env", 2, &["rustix", "libc", "hyper"]),
    layer("exec-journal", 2, &["tokio", "hyper"]),
    layer("exec-spawn", 2, &["tokio"]),
    layer("exec-environments", 3, &["rustix", "libc", "hyper"]),
    layer("exec-process", 3, &[]),
    layer("exec-fs", 3, &[]),
    layer("exec-transport", 3, &[]),
    layer("exec-proxy", 3, &[]),
    layer("exec-mcp-client", 3, &["exec-transport"]),
    layer("exec-registry", 4, &["exec-process", "exec-fs", "hyper"]),
    layer("exec-sandbox", 4, &["exec-transport", "hyper"]),
    layer("exec-local", 5, &["exec-transport", "hyper"]),
    layer(
        "exec-service",
        5,
        &["exec-process", "exec-fs", "exec-sandbox", "exec-proxy"],
    ),
    layer(
        "exec-client",
        5,
        &["exec-process", "exec-fs", "exec-sandbox", "exec-proxy"],
    ),
    layer(
        "exec-connect",
        6,
        &["exec-process", "exec-fs", "exec-sandbox", "exec-local"],
    ),
    layer("exec-hub", 6, &["exec-process", "exec-fs", "exec-local"]),
    layer("exec-settings", 7, &["hyper"]),
    layer("exec-tools", 6, &["exec-transport"]),
    layer("exec-cli", 8, &[]),
    layer("exec-server", 9, &[]),
    beside("exec-conformance"),
    beside("exec-hostile"),
    Layer {
        package: "exec-test-support",
        rank: Rank::TestSupport,
        never: &["exec-service", "exec-client", "exec-local"],
    },
    beside("exec-wire-tests"),
    beside("exec-bench"),
    beside("xtask"),
];

const fn layer(package: &'static str, rank: u8, never: &'static [&'static str]) -> Layer {
    Layer {
        package,
        rank: Rank::Map(rank),
        never,
    }
}

const fn beside(package: &'static str) -> Layer {
    Layer {
        package,
        rank: Rank::Beside,
        never: &[],
    }
}

/// Checks every manifest.
pub(crate) fn check(manifests: &[File]) -> Vec<Finding> {
    manifests.iter().flat_map(check_one).collect()
}

fn check_one(manifest: &File) -> Vec<Finding> {
    let fault = |message: String| Finding::of_file(&manifest.path, message);
    let table: toml::Table = match manifest.text.parse() {
        Ok(table) => table,
        Err(error) => return vec![fault(format!("is no TOML: {error}"))],
    };
    let name = table
        .get("package")
        .and_then(|package| package.get("name")?.as_str());
    let Some(name) = name else {
        return vec![fault("names no package".to_owned())];
    };
    let Some(layer) = find(name) else {
        return vec![fault(format!(
            "`{name}` is not on the map: give it a rank there"
        ))];
    };
    dependencies(&table)
        .filter_map(|dependency| refuse(layer, dependency))
        .map(fault)
        .collect()
}

/// Returns what is wrong with a dependency, if anything is.
fn refuse(layer: &Layer, dependency: &str) -> Option<String> {
    let package = layer.package;
    if layer.never.contains(&dependency) {
        return Some(format!("`{package}` must know nothing of `{dependency}`"));
    }
    let below = match (layer.rank, find(dependency)?.rank) {
        (Rank::Beside, Rank::Map(_) | Rank::TestSupport) => true,
        (Rank::TestSupport, Rank::Map(_)) => true,
        (Rank::Map(own), Rank::Map(other)) => other < own,
        (Rank::Map(_) | Rank::TestSupport, Rank::TestSupport) => false,
        (Rank::Map(_) | Rank::TestSupport | Rank::Beside, Rank::Beside) => false,
    };
    (!below).then(|| format!("`{dependency}` is not below `{package}` on the map"))
}

fn find(package: &str) -> Option<&'static Layer> {
    MAP.iter().find(|layer| layer.package == package)
}

/// Returns the packages that a manifest depends on, for the build or for one platform, too.
fn dependencies(manifest: &toml::Table) -> impl Iterator<Item = &str> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(toml::Table::values)
        .filter_map(toml::Value::as_table);
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| ["dependencies", "build-dependencies"].map(|key| table.get(key)))
        .flatten()
        .filter_map(toml::Value::as_table)
        .flatten()
        .map(|(name, value)| {
            // A renamed dependency is known by its package.
            value
                .get("package")
                .and_then(toml::Value::as_str)
                .unwrap_or(name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let manifest = File {
            path: "crates/a/Cargo.toml".to_owned(),
            text: text.to_owned(),
        };
        check(&[manifest]).iter().map(ToString::to_string).collect()
    }

    fn depends(package: &str, section: &str, dependency: &str) -> usize {
        let text = format!("[package]\nname = \"{package}\"\n[{section}]\n{dependency} = \"1\"\n");
        faults(&text).len()
    }

    #[test]
    fn dependencies_point_down() {
        assert_eq!(depends("exec-service", "dependencies", "exec-core"), 0);
        assert_eq!(depends("exec-core", "dependencies", "exec-service"), 1);
        assert_eq!(depends("exec-service", "dependencies", "exec-local"), 1);
        assert_eq!(depends("exec-core", "build-dependencies", "exec-env"), 1);
        assert_eq!(
            depends("exec-core", "target.'cfg(unix)'.dependencies", "exec-env"),
            1
        );
        assert_eq!(depends("exec-core", "dev-dependencies", "exec-service"), 0);
    }

    #[test]
    fn cores_know_no_sockets_and_no_clocks() {
        assert_eq!(depends("exec-core", "dependencies", "tokio"), 1);
        assert_eq!(depends("exec-core", "dev-dependencies", "tokio"), 0);
        assert_eq!(depends("exec-tools", "dependencies", "exec-transport"), 1);
    }

    #[test]
    fn what_is_beside_the_map_is_named_by_nobody() {
        assert_eq!(depends("xtask", "dependencies", "exec-wire"), 0);
        assert_eq!(depends("exec-server", "dependencies", "exec-bench"), 1);
    }

    #[test]
    fn a_renamed_dependency_is_known_by_its_package() {
        let text = "[package]\nname = \"exec-core\"\n[dependencies]\n\
                    x = { package = \"exec-env\", path = \"..\" }\n";
        assert_eq!(faults(text).len(), 1);
    }

    #[test]
    fn a_crate_must_be_on_the_map() {
        assert_eq!(depends("exec-new", "dependencies", "serde"), 1);
        assert_eq!(faults("[dependencies]\n").len(), 1);
        assert_eq!(faults("not toml").len(), 1);
    }
}
