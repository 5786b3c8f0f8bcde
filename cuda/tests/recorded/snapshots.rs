//! Snapshots of GPU variables for checkpoints: the download is enqueued at once, and later updates of a
//! variable wait for it.

use super::Fallible;
use super::node_runner::{download, upload};
use super::software::gpu::{Gpu, launching};
use super::software::recording::RecordingDriver;
use device::Value;
use graph::{AttrValue, DType, Node, PartialShape, Tensor};
use kernels::testing::run_node_on;

fn run(gpu: &Gpu, op: &str, attrs: &[(&str, AttrValue)], inputs: Vec<Value>) -> Fallible<Vec<Value>> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    let node =
        attrs.iter().fold(Node::new("n", op), |node, (name, value)| node.with_attr(name, value.clone()));
    Ok(run_node_on(&gpu.device, &node, inputs)?)
}

#[test]
fn update_during_a_snapshot_waits_on_the_gpu_without_copying() -> Fallible {
    let gpu =
        Gpu::with_driver(RecordingDriver::new(1 << 20).executing_ptx().with_one_block(), 0, &launching())?;
    let value = Tensor::vector(&[1.0f32; 100])?;
    let of = |op: &str, inputs: Vec<Value>| run(&gpu, op, &[("dtype", DType::Float.into())], inputs);
    let shape = PartialShape::from(value.shape());
    let made = [("dtype", DType::Float.into()), ("shape", shape.into()), ("shared_name", "v".into())];
    let variable = run(&gpu, "VarHandleOp", &made, vec![])?.remove(0);
    of("AssignVariableOp", vec![variable.clone(), upload(&gpu.device, value.clone())?])?;
    let by = upload(&gpu.device, value)?;
    gpu.driver.log();
    let aside = run(&gpu, "SetAsideVariable", &[], vec![variable.clone()])?;
    let log = gpu.driver.log();
    assert!(log.contains(&"copy out 400 on 2".to_owned()), "{log:?}");
    of("AssignAddVariableOp", vec![variable.clone(), by])?;
    let log = gpu.driver.log();
    assert!(log.contains(&"wait 0".to_owned()), "{log:?}");
    assert!(!log.iter().any(|line| line.starts_with("allocate")), "{log:?}");
    let now = of("ReadVariableOp", vec![variable])?.remove(0);
    assert_eq!(download(&gpu.device, now)?, Tensor::vector(&[2.0f32; 100])?);
    drop(aside);
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}
