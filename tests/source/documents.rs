//! Links and paths in backticks in the Markdown documents must name files that exist.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose documents are checked, without their subfolders.
const FOLDERS: &[&str] =
    &[".", "docs", "docs/guide", "docs/design", "docs/performance", "docs/compatibility"];

/// Top-level folders of the repository. A text in backticks that begins with one of them counts as a path.
const TOP: &[&str] = &[
    ".ci",
    "benches",
    "checkpoint",
    "client",
    "cuda",
    "device",
    "docs",
    "examples",
    "executor",
    "graph",
    "kernels",
    "master",
    "placer",
    "proto",
    "rpc",
    "scripts",
    "src",
    "tests",
    "train",
    "visit",
    "worker",
];

fn documents(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the text without fenced code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the paths for which a path with braces stands: `a/b.rs` and `a/c.rs` for `a/{b,c}.rs`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
}

/// Returns the texts between pairs of backticks.
fn marked(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the targets of links to files, without anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && target.contains(['.', '/']))
}

/// Returns whether a text in backticks is a path of the repository: it begins with one of the repository's folders.
fn is_path(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_alphanumeric() || "/._-{},".contains(c));
    is_plain && text.split_once('/').is_some_and(|(top, _)| TOP.contains(&top))
}

#[test]
fn links_and_paths_in_documents_exist() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut missing, mut checked) = (Vec::new(), 0);
    for document in documents(root)? {
        let text = prose(&fs::read_to_string(&document)?);
        let folder = document.parent().ok_or("a document in no folder")?;
        let linked = links(&text).map(|link| (folder.join(link), link.to_owned()));
        let named = marked(&text).filter(|text| is_path(text));
        let named = named.flat_map(expanded).map(|path| (root.join(&path), path));
        for (path, text) in linked.chain(named) {
            checked += 1;
            if !path.exists() && !path.with_extension("rs").exists() {
                missing.push(format!("{}: {text}", document.strip_prefix(root)?.display()));
            }
        }
    }
    assert!(checked > 200, "only {checked} links and paths were found");
    assert!(missing.is_empty(), "these do not exist:\n{}", missing.join("\n"));
    Ok(())
}
