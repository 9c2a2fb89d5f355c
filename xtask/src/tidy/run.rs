//! Applies every rule to the workspace.

use std::path::Path;

use super::{
    credentials, documents, finding::Finding, layers, links, markers, modules, protocol, size,
    source::Source, tree::Tree,
};

/// What the rules said, in the order of files and lines.
#[derive(Debug)]
pub(crate) struct Report {
    /// What must be mended.
    pub(crate) faults: Vec<Finding>,
    /// What somebody should look at.
    pub(crate) remarks: Vec<Finding>,
}

/// Reads the workspace below `root` and applies every rule.
pub(crate) fn run(root: &Path) -> anyhow::Result<Report> {
    let tree = Tree::read(root)?;
    let sources: Vec<Source> = tree
        .rust
        .iter()
        .map(|file| Source::new(&file.path, &file.text))
        .collect();
    let mut faults = documents::missing(&tree.paths);
    faults.extend(
        tree.text("PROTOCOL.md")
            .into_iter()
            .flat_map(protocol::check),
    );
    faults.extend(layers::check(&tree.manifests));
    faults.extend(modules::check(&sources));
    faults.extend(sources.iter().flat_map(markers::check));
    faults.extend(tree.rust.iter().flat_map(credentials::check));
    faults.extend(
        tree.markdown
            .iter()
            .flat_map(|file| links::check(&tree, file)),
    );
    let mut remarks: Vec<Finding> = tree.rust.iter().filter_map(size::check).collect();
    faults.sort();
    remarks.sort();
    Ok(Report { faults, remarks })
}
