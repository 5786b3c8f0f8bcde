//! Checks of the dependencies that ARCHITECTURE.md allows between crates, and of the external libraries and features
//! that only some crates may use.

use crate::support::{Fallible, python};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The crates of this workspace on which a crate may depend.
struct Arrows {
    name: &'static str,
    /// Crates that the crate itself may use, with or without a feature.
    uses: &'static [&'static str],
    /// Further crates that its tests and benches may use: of the same layer, or made for tests.
    tests_use: &'static [&'static str],
}

const ARROWS: &[Arrows] = &[
    arrows("visit", &[]),
    arrows("graph", &[]),
    arrows("placer", &["graph"]),
    arrows("checkpoint", &["graph"]),
    arrows("proto", &["graph"]),
    arrows("rpc", &["visit"]),
    arrows("device", &["checkpoint", "graph", "visit"]),
    arrows("kernels", &["checkpoint", "device", "graph"]),
    Arrows {
        tests_use: &["executor", "ptx"],
        ..arrows("cuda", &["checkpoint", "device", "graph", "kernels", "visit"])
    },
    Arrows { tests_use: &["kernels"], ..arrows("executor", &["device", "graph", "visit"]) },
    arrows("worker", &["cuda", "device", "executor", "graph", "kernels", "placer", "proto", "rpc", "visit"]),
    arrows("master", &["graph", "placer", "proto", "rpc", "visit"]),
    arrows("client", &["graph", "master", "proto", "rpc", "worker"]),
    arrows("train", &["checkpoint", "client", "device", "graph", "kernels", "placer", "proto"]),
    arrows("ptx", &[]),
];

const fn arrows(name: &'static str, uses: &'static [&'static str]) -> Arrows {
    Arrows { name, uses, tests_use: &[] }
}

const ASYNC: &[&str] = &["tokio", "tonic", "prost", "hyper"];

fn metadata() -> Fallible<serde_json::Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    // The host platform is passed to cargo, because libraries for other platforms may not be on this machine.
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

/// Returns, for each package, the names of those dependencies for which `is_counted` returns true.
fn dependencies(
    metadata: &serde_json::Value,
    is_counted: impl Fn(&serde_json::Value) -> bool,
) -> Fallible<BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::new();
    for package in metadata["packages"].as_array().ok_or("no packages")? {
        let name = package["name"].as_str().ok_or("no name")?;
        let of_package = package["dependencies"].as_array().ok_or("no dependencies")?;
        let counted = of_package.iter().filter(|dependency| is_counted(dependency));
        let names = counted.filter_map(|d| d["name"].as_str()).map(str::to_owned).collect();
        all.insert(name.to_owned(), names);
    }
    Ok(all)
}

/// Returns whether a dependency is part of each build of its package.
fn is_always_built(dependency: &serde_json::Value) -> bool {
    dependency["kind"].is_null() && dependency["optional"] == false
}

#[test]
fn crates_use_only_those_below_them() -> Fallible {
    let metadata = metadata()?;
    let normal = dependencies(&metadata, |dependency| dependency["kind"].is_null())?;
    let for_tests = dependencies(&metadata, |dependency| dependency["kind"] == "dev")?;
    for Arrows { name, uses, tests_use } in ARROWS {
        let package = format!("anabranch-{name}");
        let used = normal.get(&package).ok_or_else(|| format!("no crate {name}"))?;
        for ours in used.iter().filter_map(|d| d.strip_prefix("anabranch-")) {
            assert!(uses.contains(&ours), "{name} uses {ours}");
        }
        for ours in for_tests[&package].iter().filter_map(|d| d.strip_prefix("anabranch-")) {
            assert!(uses.contains(&ours) || tests_use.contains(&ours), "tests of {name} use {ours}");
        }
    }
    let ours = normal.keys().filter_map(|name| name.strip_prefix("anabranch-"));
    let missing: Vec<&str> = ours.filter(|ours| !ARROWS.iter().any(|arrows| arrows.name == *ours)).collect();
    assert!(missing.is_empty(), "no arrows are given for {missing:?}");
    Ok(())
}

/// Except in the worker, the CPU code is the same with and without the feature `cuda`.
#[test]
fn only_the_worker_has_conditions_on_the_cuda_feature() -> Fallible {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sites = Vec::new();
    let mut folders: Vec<_> =
        ["device", "kernels", "cuda", "executor", "worker", "src"].map(|f| root.join(f)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                let count = text.matches("feature = \"cuda\"").count();
                sites.extend(std::iter::repeat_n(path.strip_prefix(root)?.to_owned(), count));
            }
        }
    }
    assert!(sites.len() <= 6, "{sites:?}");
    assert!(sites.iter().all(|site| site.starts_with("worker/src")), "{sites:?}");
    Ok(())
}

#[test]
fn computing_crates_have_no_async_runtime() -> Fallible {
    let all = dependencies(&metadata()?, is_always_built)?;
    for start in ["visit", "graph", "placer", "checkpoint", "device", "kernels", "cuda", "executor"] {
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
    for (name, used) in dependencies(&metadata()?, is_always_built)? {
        let is_other = name.starts_with("anabranch") && name != "anabranch-graph";
        assert!(!is_other || !used.iter().any(|d| d == "petgraph"), "{name} uses petgraph");
    }
    Ok(())
}
