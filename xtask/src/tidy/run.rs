//! Applies every rule to the workspace.

use std::path::Path;

use super::{
    credentials, doc_examples, documents, finding::Finding, layers, links, markers, modules, prose,
    protocol, size, source::Source, tree::Tree, type_names,
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
    faults.extend(protocol::check(&tree));
    faults.extend(protocol::check_schemas(&tree));
    faults.extend(layers::check(&tree.manifests));
    faults.extend(doc_examples::check(&tree.manifests, &tree.rust));
    faults.extend(modules::check(&sources));
    faults.extend(type_names::check(&sources));
    faults.extend(tree.rust.iter().flat_map(prose::check_source));
    faults.extend(tree.markdown.iter().flat_map(prose::check_document));
    faults.extend(sources.iter().flat_map(markers::check));
    faults.extend(tree.rust.iter().flat_map(credentials::check));
    faults.extend(
        tree.markdown
            .iter()
            .flat_map(|file| links::check(&tree, file)),
    );
    let mut remarks: Vec<Finding> = tree.rust.iter().filter_map(size::check_length).collect();
    remarks.extend(sources.iter().filter_map(size::check_name));
    faults.sort();
    remarks.sort();
    Ok(Report { faults, remarks })
}
