//! The software bill of materials of the program, in CycloneDX JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Lists every crate that is compiled into the program with its default features.
pub(super) fn generate(root: &Path, version: &str) -> anyhow::Result<String> {
    let output = Command::new("cargo")
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", &super::target()])
        .output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("cargo metadata failed: {errors}");
    }
    let bill = bill_of(&serde_json::from_slice(&output.stdout)?, version)?;
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

fn bill_of(metadata: &Value, version: &str) -> anyhow::Result<Value> {
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let root = packages
        .iter()
        .find(|(_, package)| package["name"] == "exec-server")
        .context("the workspace has no package `exec-server`")?;
    let mut pending = vec![*root.0];
    let mut compiled = BTreeSet::new();
    let mut graph = Vec::new();
    while let Some(id) = pending.pop() {
        if !compiled.insert(id) {
            continue;
        }
        let dependencies: Vec<&str> = nodes
            .get(id)
            .into_iter()
            .flat_map(|node| list(&node["deps"]))
            .filter(|dependency| list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null()))
            .filter_map(|dependency| dependency["pkg"].as_str())
            .collect();
        let references = |ids: &[&str]| -> Vec<String> {
            let known = ids.iter().filter_map(|id| packages.get(id));
            known.map(|package| package_url(package)).collect()
        };
        graph.push(json!({
            "ref": references(&[id]).first(),
            "dependsOn": references(&dependencies),
        }));
        pending.extend(dependencies);
    }
    let components = compiled.iter().filter(|id| *id != root.0);
    let components: Vec<Value> = components
        .filter_map(|id| packages.get(id))
        .map(|package| component(package, "library"))
        .collect();
    let mut program = component(root.1, "application");
    program["version"] = version.into();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": program },
        "components": components,
        "dependencies": graph,
    }))
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
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_has_what_is_compiled_in_and_nothing_else() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("exec-server"), package("used"), package("tested"), package("other")],
            "resolve": {"nodes": [
                {"id": "exec-server", "deps": [needs("used", Value::Null), needs("tested", "dev".into())]},
                {"id": "used", "deps": []},
            ]},
        });
        let bill = bill_of(&metadata, "2.0.0").unwrap();
        let names: Vec<_> = list(&bill["components"]).map(|one| &one["name"]).collect();
        assert_eq!(names, ["used"]);
        assert_eq!(bill["metadata"]["component"]["version"], "2.0.0");
        assert_eq!(
            bill["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
    }
}
