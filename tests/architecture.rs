//! The arrows between the crates, and what must not be seen where: see ARCHITECTURE.md.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use support::{Fallible, python};

/// Which of our crates each of them may use.
const ARROWS: &[(&str, &[&str])] = &[
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

const ASYNC: &[&str] = &["tokio", "tonic", "prost", "hyper"];

fn metadata() -> Fallible<serde_json::Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    // Crates for other platforms than this one may not be on the machine.
    let version = python::run(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
    let said = python::run(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
            .arg("--manifest-path")
            .arg(manifest),
    )?;
    Ok(serde_json::from_str(&said)?)
}

/// Normal dependencies of each package, by name.
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
fn crates_use_only_those_below_them() -> Fallible {
    let all = dependencies(&metadata()?)?;
    for (name, allowed) in ARROWS {
        let used = all.get(&format!("anabranch-{name}")).ok_or_else(|| format!("no crate {name}"))?;
        for ours in used.iter().filter_map(|d| d.strip_prefix("anabranch-")) {
            assert!(allowed.contains(&ours), "{name} uses {ours}");
        }
    }
    Ok(())
}

#[test]
fn what_computes_knows_no_network() -> Fallible {
    let all = dependencies(&metadata()?)?;
    for start in ["graph", "placer", "checkpoint", "executor"] {
        let mut seen = vec![format!("anabranch-{start}")];
        let mut next = 0;
        while let Some(name) = seen.get(next).cloned() {
            next += 1;
            assert!(!ASYNC.contains(&name.as_str()), "{start} reaches {name}");
            for used in all.get(&name).into_iter().flatten() {
                if !seen.contains(used) {
                    seen.push(used.clone());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn petgraph_stays_inside_graph() -> Fallible {
    for (name, used) in dependencies(&metadata()?)? {
        let is_other = name.starts_with("anabranch") && name != "anabranch-graph";
        assert!(!is_other || !used.iter().any(|d| d == "petgraph"), "{name} uses petgraph");
    }
    Ok(())
}
