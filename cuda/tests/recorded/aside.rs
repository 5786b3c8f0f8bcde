//! How a variable on a GPU is set aside for a checkpoint: its value is on its way to the host at once, and steps go on behind.

use super::Fallible;
use super::placed::{download, upload};
use super::recording::Recording;
use super::streams::{Gpu, launching};
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
fn an_update_of_what_is_set_aside_waits_on_the_gpu_for_its_copy_and_copies_nothing() -> Fallible {
    let gpu = Gpu::over(Recording::new(1 << 20).that_computes().with_one_block(), 0, &launching())?;
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
