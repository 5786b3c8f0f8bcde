//! The allowed dependencies between our crates, and of our crates on others: see ARCHITECTURE.md.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use support::{Fallible, python};

/// Our crates that each of our crates may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("graph", &[]),
    ("placer", &["graph"]),
    ("checkpoint", &["graph"]),
    ("executor", &["checkpoint", "graph"]),
    ("proto", &["graph"]),
    ("rpc", &[]),
    ("worker", &["executor", "graph", "placer", "proto", "rpc"]),
    ("master", &["graph", "placer", "proto", "rpc"]),
    ("client", &["graph", "master", "proto", "rpc", "worker"]),
    ("train", &["checkpoint", "client", "executor", "graph", "placer", "proto"]),
];

/// Network crates, on which crates that only compute must not depend.
const ASYNC: &[&str] = &["tokio", "tonic", "prost", "hyper"];

fn metadata() -> Fallible<serde_json::Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    // Only this platform's dependencies: those of other platforms may not have been downloaded.
    let version = python::run(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
    let output = python::run(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
            .arg("--manifest-path")
            .arg(manifest),
    )?;
    Ok(serde_json::from_str(&output)?)
}

/// Returns the names of the normal, non-optional dependencies of each package.
fn dependencies(metadata: &serde_json::Value) -> Fallible<BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::new();
    for package in metadata["packages"].as_array().ok_or("no packages")? {
        let name = package["name"].as_str().ok_or("no name")?;
        let of_package = package["dependencies"].as_array().ok_or("no dependencies")?;
        let normal = of_package.iter().filter(|d| d["kind"].is_null() && d["optional"] == false);
        let names = normal.filter_map(|d| d["name"].as_str()).map(str::to_owned).collect();
        all.insert(name.to_owned(), names);
    }
    Ok(all)
}

#[test]
fn crates_depend_only_on_lower_crates() -> Fallible {
    let all = dependencies(&metadata()?)?;
    for (name, allowed) in ALLOWED_DEPENDENCIES {
        let used = all.get(&format!("anabranch-{name}")).ok_or_else(|| format!("no crate {name}"))?;
        for ours in used.iter().filter_map(|d| d.strip_prefix("anabranch-")) {
            assert!(allowed.contains(&ours), "{name} uses {ours}");
        }
    }
    Ok(())
}

#[test]
fn computing_crates_do_not_depend_on_network_crates() -> Fallible {
    let all = dependencies(&metadata()?)?;
    for start in ["graph", "placer", "checkpoint", "executor"] {
        let mut reached = vec![format!("anabranch-{start}")];
        let mut next = 0;
        while let Some(name) = reached.get(next).cloned() {
            next += 1;
            assert!(!ASYNC.contains(&name.as_str()), "{start} reaches {name}");
            for used in all.get(&name).into_iter().flatten() {
                if !reached.contains(used) {
                    reached.push(used.clone());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn only_the_graph_crate_depends_on_petgraph() -> Fallible {
    for (name, used) in dependencies(&metadata()?)? {
        let is_other = name.starts_with("anabranch") && name != "anabranch-graph";
        assert!(!is_other || !used.iter().any(|d| d == "petgraph"), "{name} uses petgraph");
    }
    Ok(())
}
