//! Random fused chains of element-wise ops on the recording driver: a chain runs as one kernel or op by op,
//! with the CPU's shapes and errors.

use super::Fallible;
use super::cases::Random;
use super::software::gpu::Gpu;
use device::Value;
use graph::{AttrList, AttrValue, Code, DType, Node, Shape, Tensor};
use kernels::testing::{run_node, run_node_on};

/// Returns the node of a fused chain; `operands` are indices into the list of the inputs and the results of the
/// ops, as in the node's attribute `operands`.
fn chain(dtype: DType, inputs: usize, ops: &[&'static str], operands: &[i64]) -> Fallible<Node> {
    let op = graph::ops::lookup("_FusedElementwise").ok_or("no such op")?;
    let texts = |texts: Vec<String>| {
        AttrValue::List(AttrList::Str(texts.into_iter().map(|text| text.into_bytes().into()).collect()))
    };
    let names: Vec<String> = (0..ops.len()).map(|at| format!("n{at}")).collect();
    Ok(Node::new(names.last().map_or("none", String::as_str), op)
        .with_attr("T", dtype)
        .with_attr("N", inputs as i64)
        .with_attr("ops", texts(ops.iter().map(|op| op.to_string()).collect()))
        .with_attr("operands", operands.to_vec())
        .with_attr("names", texts(names)))
}

fn shape(values: &[Value]) -> Fallible<Shape> {
    match values {
        [Value::Device(tensor)] => Ok(tensor.shape.clone()),
        [Value::Host(tensor)] => Ok(tensor.shape().clone()),
        other => Err(format!("{other:?} is not one tensor").into()),
    }
}

/// Returns the names of the kernels enqueued since the last call, without dtypes.
fn kernels(gpu: &Gpu) -> Vec<String> {
    let log = gpu.driver.log();
    let launches = log.iter().filter_map(|line| line.split_once('<'));
    launches.map(|(kernel, rest)| format!("{kernel} {}", rest.split(',').next().unwrap_or(""))).collect()
}

#[test]
fn invalid_chains_are_errors() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let refused = |ops: &[&'static str], operands: &[i64]| -> Fallible<Option<Code>> {
        let node = chain(DType::Float, 1, ops, operands)?;
        let x = gpu.upload(Tensor::try_from([1.0f32])?)?;
        Ok(run_node_on(&gpu.device, &node, vec![x]).err().map(|e| e.code()))
    };
    let most = graph::passes::MAX_FUSED_OPS;
    assert_eq!(refused(&["MatMul"], &[0, 0])?, Some(Code::Unimplemented));
    assert_eq!(refused(&["AddV2"], &[0])?, Some(Code::InvalidArgument));
    assert_eq!(refused(&vec!["Neg"; most + 1], &vec![0; most + 1])?, Some(Code::InvalidArgument));
    assert_eq!(refused(&vec!["Neg"; most], &vec![0; most])?, None);
    for operand in [1, 2, -1, i64::MAX] {
        assert_eq!(refused(&["Neg"], &[operand])?, Some(Code::InvalidArgument), "{operand}");
    }
    Ok(())
}

const OPS: &[(&str, usize)] = &[
    ("Neg", 1),
    ("Exp", 1),
    ("Relu", 1),
    ("AddV2", 2),
    ("Mul", 2),
    ("Maximum", 2),
    ("BiasAdd", 2),
    ("TanhGrad", 2),
    ("ReluGrad", 2),
];
const SHAPES: &[&[usize]] =
    &[&[], &[1], &[5], &[2, 5], &[2, 1], &[1, 1], &[7, 2, 5], &[7, 1, 1], &[7, 1, 5], &[0]];

#[test]
fn random_chains_have_the_same_shapes_and_errors_as_on_the_cpu() -> Fallible {
    let gpu = Gpu::new(1 << 24)?;
    let (mut random, mut chains, mut others, mut wrong) = (Random(3), 0, 0, Vec::new());
    for _ in 0..1500 {
        let mut below = |limit: usize| (random.bits() % limit as u64) as usize;
        let dtype = [DType::Float, DType::Double, DType::Half, DType::BFloat16][below(4)];
        // Most shapes of a chain are equal, so that many chains run as one kernel.
        let usual = SHAPES[below(SHAPES.len())];
        let count = 1 + below(4);
        let shapes: Vec<&[usize]> =
            (0..count).map(|_| if below(10) < 7 { usual } else { SHAPES[below(SHAPES.len())] }).collect();
        let (mut ops, mut operands) = (Vec::new(), Vec::new());
        for at in 0..1 + below(6) {
            let (op, taken) = OPS[below(OPS.len())];
            let known = count + at;
            ops.push(op);
            operands.push(if at > 0 { known - 1 } else { below(known) } as i64);
            operands.extend((taken == 2).then(|| below(known) as i64));
        }
        let node = chain(dtype, count, &ops, &operands)?;
        let inputs: Vec<Tensor> =
            shapes.iter().map(|dims| random.tensor(dtype, dims)).collect::<Fallible<_>>()?;
        let what = format!("{ops:?} of {operands:?}, {dtype} of {shapes:?}");
        let placed = inputs.iter().map(|tensor| gpu.upload(tensor.clone())).collect::<Fallible<Vec<_>>>()?;
        gpu.driver.log();
        let actual = run_node_on(&gpu.device, &node, placed);
        let launched = kernels(&gpu);
        match launched.iter().filter(|kernel| *kernel == "chain Chain").count() {
            0 => others += 1,
            _ => chains += 1,
        }
        if launched.iter().any(|kernel| kernel == "chain Chain") && launched.len() > 1 {
            wrong.push(format!("{what}: {launched:?}"));
        }
        let expected = run_node(&node, inputs.into_iter().map(Value::Host).collect());
        match (actual, expected) {
            (Ok(actual), Ok(expected)) => {
                let (actual, expected) = (shape(&actual)?, shape(&expected)?);
                if actual != expected {
                    wrong.push(format!("{what}: {actual} is not {expected}"));
                }
            }
            (Err(actual), Err(expected)) if actual.to_string() == expected.to_string() => {}
            (actual, expected) => wrong.push(format!("{what}: {actual:?} is not {expected:?}")),
        }
        wrong.extend(gpu.driver.take_races());
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(chains > 300 && others > 100, "{chains} in one launch, {others} not");
    assert_eq!(gpu.driver.used(), 0);
    Ok(())
}
