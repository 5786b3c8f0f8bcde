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

/// What `anabranch ops --missing` compares with.
#[test]
fn the_list_of_the_peers_ops_is_its_registrys() -> Fallible {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/ops_command/tensorflow.txt");
    let said = python::run(&mut python::script("tests/tensorflow/public_ops.py")?)?;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &said)?;
    }
    let listed = std::fs::read_to_string(&file)?;
    let own = graph::ops::all().iter().filter(|op| op.def.is_own);
    for own in own.map(graph::Op::name) {
        assert!(!listed.lines().any(|theirs| theirs == own), "{own} is TensorFlow's too");
    }
    let stale = "the list is stale: UPDATE_DOCS=1 cargo test --test ops rewrites it";
    assert!(
        listed == said,
        "{stale}. TensorFlow has {}, it {}",
        said.lines().count(),
        listed.lines().count()
    );
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

/// Seed and number of cases are `ANABRANCH_CASES_SEED` and `ANABRANCH_CASES_COUNT`, the cases of each op.
#[test]
fn every_op_answers_generated_inputs_as_the_peer_does() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops-for-cases.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let mut client = python::script("tests/tensorflow/generated.py")?;
    let said = python::run(client.arg(&file).args(["--server", env!("CARGO_BIN_EXE_anabranch-worker")]))?;
    assert!(said.contains("; 0 differences"), "{said}");
    Ok(())
}
