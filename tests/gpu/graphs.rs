//! CUDA graphs: kernels in a captured graph give the same results as kernels launched one by one.

use super::Fallible;
use super::cases::{Random, inputs};
use super::comparison::difference;
use super::kernel_cases::shared_rows;
use super::partition::{Partition, four_copies_of};
use device::Device;
use device::Value;
use device::gpu_options::GpuOptions;
use device::kernel::KernelDef;
use device::segment_runner::CaptureClass;
use graph::{DType, Node, Shape, Tensor};
use kernels::testing::run_node;
use std::sync::Arc;

fn options(graphs: bool) -> GpuOptions {
    GpuOptions { graphs, tf32: false, ..GpuOptions::default() }
}

/// Runs each kernel several times: the first runs launch kernels one by one, later ones launch a graph.
#[test]
fn every_kernel_agrees_in_a_graph() -> Fallible {
    let Some(device) = crate::first_gpu(&options(true))? else { return Ok(()) };
    let mut random = Random(2);
    let mut wrong = Vec::new();
    for (def, nodes) in shared_rows()?.into_iter().filter(|(def, _)| def.capture == CaptureClass::Work) {
        for node in &nodes {
            let found = in_graph(&device, def, node, &mut random).unwrap_or_else(|e| vec![e.to_string()]);
            let types = node.input_types()?;
            wrong.extend(found.into_iter().map(|how| format!("{def:?} of {types:?}{how}")));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Returns the differences between the results of a node in its first step, which launches kernels one by one, and in
/// later steps, which launch a CUDA graph.
fn in_graph(
    device: &Arc<Device>,
    def: &KernelDef,
    node: &Node,
    random: &mut Random,
) -> Fallible<Vec<String>> {
    let Some(sets) = inputs(node, random)? else { return Ok(vec![]) };
    let is_valid =
        |set: &&Vec<Tensor>| run_node(node, set.iter().cloned().map(Value::Host).collect()).is_ok();
    let size = |set: &Vec<Tensor>| set.iter().map(Tensor::num_elements).sum::<usize>();
    let fits = |set: &&Vec<Tensor>| crate::MOST_ELEMENTS.is_none_or(|most| size(set) <= most);
    let best = sets.iter().filter(is_valid).filter(fits).max_by_key(|set| size(set));
    let Some(set) = best.or(sets.iter().find(is_valid)).cloned() else { return Ok(vec![]) };
    let (graph, feeds, names) = four_copies_of(def, node, set)?;
    let partition = Partition::new(&graph, device)?;
    let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(name, tensor)| (&**name, tensor.clone())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let steps = (0..5).map(|_| partition.step(&feeds, &names)).collect::<Result<Vec<_>, _>>()?;
    let mut wrong = Vec::new();
    for (step, outputs) in steps.iter().enumerate().skip(1) {
        for (name, (actual, expected)) in names.iter().zip(outputs.iter().zip(&steps[0])) {
            let how = difference(actual, expected)?;
            wrong.extend(how.map(|how| format!(", step {step}, {name}: {how}")));
        }
    }
    Ok(wrong)
}

const INITIAL: &str = "
    w = VarHandleOp[dtype=float, shape=<32,32>, shared_name=\"w\"]()
    b = VarHandleOp[dtype=float, shape=<32>, shared_name=\"b\"]()
    vw <- float
    vb <- float
    iw = AssignVariableOp[dtype=float](w, vw)
    ib = AssignVariableOp[dtype=float](b, vb)
    m = VarHandleOp[dtype=float, shape=<32>, shared_name=\"m\"]()
    im = AssignVariableOp[dtype=float](m, vb)
";

const TRAINING: &str = "
    w = VarHandleOp[dtype=float, shape=<32,32>, shared_name=\"w\"]()
    b = VarHandleOp[dtype=float, shape=<32>, shared_name=\"b\"]()
    x <- float
    rw = ReadVariableOp[dtype=float](w)
    rb = ReadVariableOp[dtype=float](b)
    rate = Const[dtype=float, value=float<>{0.001}]()
    product = MatMul[T=float](x, rw)
    sum = BiasAdd[T=float](product, rb)
    y = Tanh[T=float](sum)
    slope = TanhGrad[T=float](y, y)
    dw = MatMul[T=float, transpose_a=true](x, slope)
    db = BiasAddGrad[T=float](slope)
    uw = ResourceApplyGradientDescent[T=float](w, rate, dw)
    ub = ResourceApplyGradientDescent[T=float](b, rate, db)
    m = VarHandleOp[dtype=float, shape=<32>, shared_name=\"m\"]()
    before = ReadVariableOp[dtype=float](m)
    z = BiasAdd[T=float](y, before)
    mean = Mul[T=float](db, rate)
    um = AssignVariableOp[dtype=float](m, mean, ^z)
    z -> float
";

/// Trains a layer for some steps with batches of two sizes, with CUDA graphs if `graphs` is true. Returns the output
/// of each step, or `None` without a GPU.
fn trained(graphs: bool) -> Fallible<Option<Vec<Tensor>>> {
    let Some(device) = crate::first_gpu(&options(graphs))? else { return Ok(None) };
    let mut random = Random(3);
    let (vw, vb) = (random.tensor(DType::Float, &[32, 32])?, random.tensor(DType::Float, &[32])?);
    Partition::of_text(INITIAL, &device)?.step(&[("vw", vw), ("vb", vb)], &[])?;
    let train = Partition::of_text(TRAINING, &device)?;
    let mut given = Vec::new();
    for step in 0..40 {
        let batch = if step % 10 == 9 { 8 } else { 64 };
        let x = random.tensor(DType::Float, &[batch, 32])?;
        given.extend(train.step(&[("x", x)], &["z"])?);
    }
    Ok(Some(given))
}

#[test]
fn layer_trains_equally_with_and_without_graphs() -> Fallible {
    let (Some(without), Some(with)) = (trained(false)?, trained(true)?) else { return Ok(()) };
    assert_eq!(with.len(), 40);
    for (step, (actual, expected)) in with.iter().zip(&without).enumerate() {
        if let Some(how) = difference(actual, expected)? {
            return Err(format!("step {step}: {how}").into());
        }
    }
    assert_ne!(with[0], Tensor::zeros(DType::Float, Shape::new(&[64, 32])?)?);
    Ok(())
}
