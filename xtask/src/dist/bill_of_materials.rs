//! The software bill of materials of the program, in CycloneDX JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Name and version of a crate.
type CrateId = (String, String);

/// Lists every crate that is compiled into the program with these features.
pub(super) fn generate(root: &Path, features: &[&str]) -> anyhow::Result<String> {
    let target = super::target();
    let metadata = cargo(root, &["metadata", "--format-version", "1"], |cargo| {
        cargo.args(["--filter-platform", &target]);
    })?;
    // The metadata has the features of all packages of the workspace together.
    let tree = cargo(root, &["tree", "--package", PROGRAM], |cargo| {
        cargo.args(features);
        cargo.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
        cargo.args(["--target", &target]);
    })?;
    let compiled = String::from_utf8(tree)?
        .lines()
        .filter_map(parse_crate)
        .collect();
    let bill = bill_of(&serde_json::from_slice(&metadata)?, &compiled)?;
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// Package with the program.
const PROGRAM: &str = "exec-server";

/// Runs cargo, and returns what it prints.
fn cargo(
    root: &Path,
    arguments: &[&str],
    add: impl FnOnce(&mut Command),
) -> anyhow::Result<Vec<u8>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(arguments).arg("--locked");
    add(&mut cargo);
    let output = cargo.output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("cargo {} failed: {errors}", arguments[0]);
    }
    Ok(output.stdout)
}

/// Parses a line of `cargo tree`, such as `bytes v1.12.1` or `exec-core v0.1.0 (/src/core)`.
fn parse_crate(line: &str) -> Option<CrateId> {
    let mut words = line.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((name.to_owned(), version.to_owned()))
}

fn bill_of(metadata: &Value, compiled: &BTreeSet<CrateId>) -> anyhow::Result<Value> {
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .filter(|package| compiled.contains(&crate_id(package)))
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let (program_id, program) = packages
        .iter()
        .find(|(_, package)| package["name"] == PROGRAM)
        .context("the workspace has no package with the program")?;
    anyhow::ensure!(
        packages.len() == compiled.len(),
        "cargo tree names {} crates, and cargo metadata describes {} of them",
        compiled.len(),
        packages.len()
    );
    let nodes = list(&metadata["resolve"]["nodes"]);
    let graph: Vec<Value> = nodes
        .filter_map(|node| Some((packages.get(node["id"].as_str()?)?, node)))
        .map(|(package, node)| {
            let needed = list(&node["deps"])
                .filter(|one| list(&one["dep_kinds"]).any(|kind| kind["kind"].is_null()))
                .filter_map(|one| packages.get(one["pkg"].as_str()?));
            let needed: Vec<String> = needed.map(|package| package_url(package)).collect();
            json!({ "ref": package_url(package), "dependsOn": needed })
        })
        .collect();
    let components: Vec<Value> = packages
        .iter()
        .filter(|(id, _)| *id != program_id)
        .map(|(_, package)| component(package, "library"))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(program, "application") },
        "components": components,
        "dependencies": graph,
    }))
}

fn crate_id(package: &Value) -> CrateId {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    (text("name"), text("version"))
}

fn component(package: &Value, kind: &str) -> Value {
    let url = package_url(package);
    let mut component = json!({
        "type": kind,
        "bom-ref": url,
        "name": package["name"],
        "version": package["version"],
        "purl": url,
    });
    if let Some(license) = package["license"].as_str() {
        // Old manifests separate alternatives with a slash.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    component
}

fn package_url(package: &Value) -> String {
    let (name, version) = crate_id(package);
    format!("pkg:cargo/{name}@{version}")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what the schema of CycloneDX 1.5 requires, and that references have a target.
    fn check(bill: &Value) {
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["specVersion"], "1.5");
        assert!(bill["version"].as_u64().is_some_and(|version| version > 0));
        let program = &bill["metadata"]["component"];
        assert_eq!(program["type"], "application");
        let components: Vec<&Value> = list(&bill["components"]).chain([program]).collect();
        let mut references = BTreeSet::new();
        for component in components {
            for member in ["type", "name", "version", "bom-ref", "purl"] {
                let text = component[member].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{member} of {component}");
            }
            assert!(["application", "library"].contains(&component["type"].as_str().unwrap()));
            assert_eq!(component["bom-ref"], component["purl"]);
            assert!(references.insert(component["bom-ref"].as_str().unwrap()));
            let licenses = &component["licenses"];
            assert!(
                licenses.is_null() || licenses[0]["expression"].is_string(),
                "{component}"
            );
        }
        let mut described = BTreeSet::new();
        for node in list(&bill["dependencies"]) {
            let reference = node["ref"].as_str().unwrap();
            assert!(described.insert(reference), "{reference} comes twice");
            for needed in list(&node["dependsOn"]) {
                assert!(references.contains(needed.as_str().unwrap()), "{needed}");
            }
        }
        assert_eq!(described, references);
    }

    fn names(bill: &Value) -> BTreeSet<&str> {
        let components = list(&bill["components"]);
        components.filter_map(|one| one["name"].as_str()).collect()
    }

    #[test]
    fn bill_has_what_is_compiled_in_and_nothing_else() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("exec-server"), package("used"), package("tested"), package("other")],
            "resolve": {"nodes": [
                {"id": "exec-server", "deps": [
                    needs("used", Value::Null),
                    needs("tested", "dev".into()),
                    needs("other", Value::Null),
                ]},
                {"id": "used", "deps": []},
                {"id": "other", "deps": []},
            ]},
        });
        let tree = "exec-server v1.0.0 (/src)\nused v1.0.0\nused v1.0.0 (*)\n";
        let compiled: BTreeSet<_> = tree.lines().filter_map(parse_crate).collect();
        let bill = bill_of(&metadata, &compiled).unwrap();
        check(&bill);
        assert_eq!(names(&bill), ["used"].into());
        assert_eq!(
            bill["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(
            bill["dependencies"][0]["dependsOn"],
            json!(["pkg:cargo/used@1.0.0"])
        );
        let unknown = [("lost".to_owned(), "1.0.0".to_owned())];
        let compiled = compiled.into_iter().chain(unknown).collect();
        assert!(bill_of(&metadata, &compiled).is_err());
    }

    #[test]
    fn slim_executor_has_a_smaller_bill_than_the_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bill = |features: &[&str]| -> Value {
            let bill = serde_json::from_str(&generate(root, features).unwrap()).unwrap();
            check(&bill);
            bill
        };
        let (full, slim) = (bill(&[]), bill(super::super::SLIM_FEATURES));
        assert!(names(&full).is_superset(&names(&slim)));
        assert!(names(&slim).contains("exec-service"));
        let parts = ["exec-hub", "exec-cli", "exec-registry", "exec-relay"];
        for part in [&parts[..], &["clatter", "opentelemetry", "async-nats"]].concat() {
            assert!(names(&full).contains(part), "{part}");
            assert!(!names(&slim).contains(part), "{part}");
        }
    }
}
