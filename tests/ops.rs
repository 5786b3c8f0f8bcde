//! The op table and its kernels against TensorFlow's.

mod support;

use std::path::Path;
use support::cluster::Cluster;
use support::{Fallible, op_table, python};

#[test]
fn signatures_are_those_of_the_registry() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let said = python::run(python::script("tests/tensorflow/registry.py")?.arg(&file))?;
    assert!(said.contains(" 0 differences"), "{said}");
    Ok(())
}

#[test]
fn every_op_computes_what_the_peers_kernel_does() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops-for-kernels.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/differential.py")?;
    let said = python::run(client.arg(&file).args(["--target", &cluster.target("worker", 0)]))?;
    assert!(said.contains(" 0 differences"), "{said}");
    Ok(())
}
