//! Comparison of the op table and its kernels with TensorFlow's.

use crate::support::cluster::Cluster;
use crate::support::{Fallible, op_table, python};
use std::path::Path;

#[test]
fn signatures_equal_those_of_tensorflow() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let output = python::run(python::script("tests/tensorflow/registry.py")?.arg(&file))?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

/// Checks the list of TensorFlow's ops that `anabranch ops --missing` uses.
#[test]
fn list_of_tensorflow_ops_is_current() -> Fallible {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/ops_command/tensorflow.txt");
    let output = python::run(&mut python::script("tests/tensorflow/public_ops.py")?)?;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &output)?;
    }
    let listed = std::fs::read_to_string(&file)?;
    let own = graph::ops::all().iter().filter(|op| op.def.is_extension);
    for own in own.map(graph::Op::name) {
        assert!(
            !listed.lines().any(|theirs| theirs == own),
            "{own} is marked as ours alone, but TensorFlow has it"
        );
    }
    let stale = "the list is stale: UPDATE_DOCS=1 cargo test --test it ops rewrites it";
    assert!(
        listed == output,
        "{stale}. TensorFlow has {} ops, the list {}",
        output.lines().count(),
        listed.lines().count()
    );
    Ok(())
}

#[test]
fn every_op_agrees_with_the_tensorflow_kernel() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops-for-kernels.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/differential.py")?;
    let output = python::run(client.arg(&file).args(["--target", &cluster.target("worker", 0)]))?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

/// TensorFlow computes fused quantized ops only with oneDNN, on processors with AVX-512 VNNI; on others, the server's
/// values are compared with double precision alone.
#[test]
fn fused_quantized_ops_agree_with_onednn() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::process("tests/tensorflow/fused_quantized.py")?;
    client.env("TF_ENABLE_ONEDNN_OPTS", "1").args(["--target", &cluster.target("worker", 0)]);
    let output = python::run(&mut client)?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

/// Generated cases of each op give TensorFlow's values. `ANABRANCH_CASES_SEED` is the seed of the cases,
/// `ANABRANCH_CASES_COUNT` their number for each op.
#[test]
fn every_op_agrees_with_tensorflow_on_generated_inputs() -> Fallible {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops-for-cases.json");
    std::fs::write(&file, op_table::json().to_string())?;
    let mut client = python::script("tests/tensorflow/generated.py")?;
    let output = python::run(client.arg(&file).args(["--server", env!("CARGO_BIN_EXE_anabranch-worker")]))?;
    assert!(output.contains("; 0 differences"), "{output}");
    Ok(())
}
