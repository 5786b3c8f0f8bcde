//! The kernel table of GPUs: what each row asks of the compiler, and that it is fit for the executor.

use super::Fallible;
use super::cases::{Random, inputs};
use super::op_nodes::rows;
use super::streams::Gpu;
use anabranch_executor::cuda::Program;
use anabranch_executor::kernel::{ALL_ARGUMENTS, KernelDef};
use anabranch_executor::kernels;
use anabranch_executor::testing::{make_kernel, run_node, run_node_on};
use anabranch_executor::{Result, Value};
use graph::{DType, Node, Shape, Tensor};

/// The kernels that all rows together ask for.
pub(crate) fn programs() -> Fallible<Vec<Program>> {
    let gpu = Gpu::new(1 << 20)?;
    for (def, nodes) in rows("GPU")? {
        for node in nodes {
            make_kernel(&gpu.device, &node).map_err(|e| format!("{def:?} for {:?}: {e}", node.attrs))?;
        }
    }
    Ok(gpu.driver.programs())
}

#[test]
fn every_row_makes_a_kernel_for_each_of_its_types() -> Fallible {
    let programs = programs()?;
    assert!(programs.len() > 500, "only {} programs", programs.len());
    Ok(())
}

#[test]
fn every_row_names_arguments_and_types_of_its_op() -> Fallible {
    for (def, nodes) in rows("GPU")? {
        let op = nodes.first().ok_or("a row takes nothing")?.op;
        for argument in def.host_memory.iter().filter(|_| def.host_memory != ALL_ARGUMENTS) {
            let is_there = op.inputs.iter().chain(op.outputs.iter()).any(|arg| arg.name == *argument);
            assert!(is_there, "{def:?} has no argument {argument}");
        }
        for (attr, types) in def.types {
            let spec =
                op.attrs.iter().find(|spec| spec.name == *attr).ok_or_else(|| format!("{def:?}: {attr}"))?;
            for &dtype in *types {
                spec.check(&if spec.is_list { vec![dtype].into() } else { dtype.into() })
                    .map_err(|e| format!("{def:?}: {e}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_node_of_a_row_has_a_cpu_kernel_to_compare_with() -> Fallible {
    for (def, nodes) in rows("GPU")? {
        // Collectives are of several GPUs: `collectives` says what they give.
        if def.op.starts_with("Nccl") {
            continue;
        }
        for node in nodes {
            let types: Vec<_> = node.input_types()?.iter().map(|port| port.dtype).collect();
            assert!(kernels::find("CPU", &node).is_some(), "{def:?} of {types:?} has no CPU kernel");
        }
    }
    Ok(())
}

/// A node's outputs on a GPU, its inputs where the row wants them.
fn on_gpu(gpu: &Gpu, def: &KernelDef, node: &Node, inputs: &[Tensor]) -> Fallible<Result<Vec<Value>>> {
    let mut placed = Vec::new();
    let mut left = inputs.iter();
    for arg in node.op.inputs.iter() {
        for tensor in left.by_ref().take(node.op.arg_count(arg, &node.attrs)?) {
            placed.push(match def.is_on_host(arg.name) {
                true => Value::Host(tensor.clone()),
                false => gpu.upload(tensor.clone())?,
            });
        }
    }
    Ok(run_node_on(&gpu.device, node, placed))
}

fn form(value: &Value) -> Option<(DType, Shape)> {
    match value {
        Value::Host(tensor) => Some((tensor.dtype(), tensor.shape().clone())),
        Value::Device(tensor) => Some((tensor.dtype, tensor.shape.clone())),
        _ => None,
    }
}

/// What the elements are only a GPU can tell; all else shows here.
#[test]
fn every_kernel_takes_what_the_cpus_takes_and_gives_outputs_of_its_shapes_without_races() -> Fallible {
    let gpu = Gpu::new(1 << 30)?;
    let (mut random, mut compared, mut wrong) = (Random(1), 0, Vec::new());
    for (def, nodes) in rows("GPU")? {
        for node in nodes {
            // Streams without seeds differ from run to run.
            let node = match node.op.attrs.iter().any(|spec| spec.name == "seed") {
                true => node.with_attr("seed", 7i64).with_attr("seed2", 11i64),
                false => node,
            };
            let Some(sets) = inputs(&node, &mut random)? else { continue };
            for set in sets {
                let shapes: Vec<String> = set.iter().map(|tensor| tensor.shape().to_string()).collect();
                let case = format!("{def:?} of {:?} {}", node.input_types()?, shapes.join(" "));
                let expected = run_node(&node, set.iter().cloned().map(Value::Host).collect());
                match (on_gpu(&gpu, def, &node, &set)?, expected) {
                    (Ok(actual), Ok(expected)) => {
                        let [actual, expected] =
                            [actual, expected].map(|values| values.iter().map(form).collect::<Vec<_>>());
                        if actual != expected {
                            wrong.push(format!("{case}: {actual:?} is not {expected:?}"));
                        }
                    }
                    (Err(_), Err(_)) => {}
                    (Ok(_), Err(error)) => wrong.push(format!("{case}: only the CPU refuses: {error}")),
                    (Err(error), Ok(_)) => wrong.push(format!("{case}: {error}")),
                }
                let races = gpu.driver.take_races();
                if !races.is_empty() {
                    wrong.push(format!("{case}: {races:?}"));
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "only {compared} cases");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
