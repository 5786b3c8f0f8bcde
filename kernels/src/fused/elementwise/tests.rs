//! Compares fused chains with the same ops run one by one: both must give the same bits or the same errors.

use super::*;
use crate::testing::{run_node, run_op};
use device::Value;
use graph::passes::MAX_FUSED_OPS;
use graph::{AttrList, AttrValue, Code, DType, Node, Shape};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

type Texts<'a> = &'a [&'a str];

fn texts(texts: Texts<'_>) -> AttrValue {
    AttrValue::List(AttrList::Str(
        texts.iter().map(|t| bytes::Bytes::copy_from_slice(t.as_bytes())).collect(),
    ))
}

fn node(dtype: DType, inputs: usize, ops: Texts<'_>, operands: &[i64]) -> Result<Node> {
    let op = graph::ops::lookup("_FusedElementwise").ok_or_else(|| device::Error::internal("no such op"))?;
    let names: Vec<String> = (0..ops.len()).map(|i| format!("n{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(Node::new(names.last().copied().unwrap_or("none"), op)
        .with_attr("T", dtype)
        .with_attr("N", inputs as i64)
        .with_attr("ops", texts(ops))
        .with_attr("operands", operands.to_vec())
        .with_attr("names", texts(&names)))
}

fn fused(ops: Texts<'_>, operands: &[i64], inputs: &[Tensor]) -> Result<Tensor> {
    let node = node(inputs[0].dtype(), inputs.len(), ops, operands)?;
    match run_node(&node, inputs.iter().cloned().map(Value::Host).collect())?.pop() {
        Some(Value::Host(tensor)) => Ok(tensor),
        other => Err(device::Error::internal(format!("the output is {other:?}"))),
    }
}

/// Runs the ops of a chain one by one, each with its own kernel.
fn unfused(ops: Texts<'_>, operands: &[i64], inputs: &[Tensor]) -> Result<Tensor> {
    let mut values = inputs.to_vec();
    let mut operands = operands.iter();
    for op in ops {
        let is_sum = *op == "AddN";
        let count = if is_sum { 2 } else { graph::ops::lookup(op).map_or(0, |op| op.inputs.len()) };
        let taken: Vec<Tensor> = operands.by_ref().take(count).map(|o| values[*o as usize].clone()).collect();
        let attrs = [("T", inputs[0].dtype().into()), ("N", 2i64.into())];
        values.extend(run_op(op, &taken, &attrs[..1 + usize::from(is_sum)])?);
    }
    values.pop().ok_or_else(|| device::Error::internal("no op"))
}

/// Checks that the fused chain gives the same result as the unfused ops, or the same error.
fn check(ops: Texts<'_>, operands: &[i64], inputs: &[Tensor]) -> Result<()> {
    let case = || {
        let shapes: Vec<_> = inputs.iter().map(|t| t.shape().to_string()).collect();
        format!("{ops:?} of {operands:?}, {} of {shapes:?}", inputs[0].dtype())
    };
    match (fused(ops, operands, inputs), unfused(ops, operands, inputs)) {
        (Ok(fused), Ok(unfused)) => {
            assert_eq!(fused.shape(), unfused.shape(), "{}", case());
            assert_eq!(fused.bytes()?, unfused.bytes()?, "{}", case());
        }
        (Err(fused), Err(unfused)) => {
            assert_eq!(fused.code(), unfused.code(), "{}", case());
            // Some errors name their node, which is called `test` when ops run one by one.
            let [fused, unfused] =
                [fused, unfused].map(|e| e.to_string().replace("operation test of", "operation _ of"));
            let named =
                (0..ops.len()).map(|i| fused.replace(&format!("operation n{i} of"), "operation _ of"));
            assert!(
                { named }.any(|fused| fused.starts_with(&unfused)),
                "{}: {fused} is not {unfused}",
                case()
            );
        }
        (fused, unfused) => panic!("{}: {fused:?} is not {unfused:?}", case()),
    }
    Ok(())
}

fn random(rng: &mut StdRng, dtype: DType, dims: &[usize]) -> Result<Tensor> {
    let shape = Shape::new(dims)?;
    let mut next = || match rng.random_range(0..40) {
        0 => f64::NAN,
        1 => 0.0,
        2 => -0.0,
        3 => f64::INFINITY,
        _ => rng.random_range(-4.0..4.0),
    };
    let values: Vec<f64> = (0..shape.num_elements()).map(|_| next()).collect();
    Ok(match dtype {
        DType::Double => Tensor::from_slice(&values, shape)?,
        DType::Half => {
            Tensor::from_slice(&values.iter().map(|v| f16::from_f64(*v)).collect::<Vec<_>>(), shape)?
        }
        DType::BFloat16 => {
            Tensor::from_slice(&values.iter().map(|v| bf16::from_f64(*v)).collect::<Vec<_>>(), shape)?
        }
        _ => Tensor::from_slice(&values.iter().map(|v| *v as f32).collect::<Vec<_>>(), shape)?,
    })
}

const MAPS: Texts<'static> = &[
    "Neg",
    "Abs",
    "Sign",
    "Square",
    "Reciprocal",
    "Inv",
    "Sqrt",
    "Rsqrt",
    "Floor",
    "Ceil",
    "Round",
    "Rint",
    "Expm1",
    "Log1p",
    "Sin",
    "Cos",
    "Erf",
    "Exp",
    "Log",
    "Tanh",
    "Sigmoid",
    "Relu",
    "Relu6",
    "Elu",
    "Selu",
    "Softplus",
    "Softsign",
];
const ZIPS: Texts<'static> = &[
    "Add",
    "AddV2",
    "AddN",
    "Sub",
    "Mul",
    "RealDiv",
    "Div",
    "DivNoNan",
    "MulNoNan",
    "Maximum",
    "Minimum",
    "SquaredDifference",
    "Pow",
    "BiasAdd",
    "SqrtGrad",
    "RsqrtGrad",
    "ReciprocalGrad",
    "InvGrad",
    "TanhGrad",
    "SigmoidGrad",
    "ReluGrad",
    "Relu6Grad",
    "EluGrad",
    "SeluGrad",
    "SoftplusGrad",
    "SoftsignGrad",
];

#[test]
fn every_op_in_every_type() -> Result<()> {
    let mut rng = StdRng::seed_from_u64(1);
    for dtype in super::super::FLOATS {
        let [x, y, bias] = [&[3, 700][..], &[3, 700], &[700]].map(|dims| random(&mut rng, *dtype, dims));
        let inputs = [x?, y?, bias?];
        for op in MAPS {
            check(&[op, "Mul"], &[0, 3, 1], &[inputs[0].clone(), inputs[1].clone(), inputs[2].clone()])?;
        }
        for op in ZIPS {
            let second = if *op == "BiasAdd" { 2 } else { 1 };
            check(&["Neg", op], &[0, 3, second], &inputs)?;
        }
    }
    Ok(())
}

#[test]
fn random_chains_of_random_shapes() -> Result<()> {
    const SHAPES: &[&[usize]] =
        &[&[], &[1], &[5], &[2, 5], &[2, 1], &[1, 1], &[7, 2, 5], &[7, 1, 1], &[0], &[2, 1500], &[1500]];
    for seed in 0..4000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let dtype = super::super::FLOATS[rng.random_range(0..4)];
        // Most operands have the shape `usual`, so that the shapes often fit each other.
        let usual = SHAPES[rng.random_range(0..SHAPES.len())];
        let mut inputs = Vec::new();
        for _ in 0..rng.random_range(1..5) {
            let other = SHAPES[rng.random_range(0..SHAPES.len())];
            let shape = if rng.random_bool(0.7) { usual } else { other };
            inputs.push(random(&mut rng, dtype, shape)?);
        }
        let (mut ops, mut operands) = (Vec::new(), Vec::new());
        for at in 0..rng.random_range(1..9) {
            let zips = rng.random_bool(0.6);
            let all = if zips { ZIPS } else { MAPS };
            ops.push(all[rng.random_range(0..all.len())]);
            let available = (inputs.len() + at) as i64;
            let newest = if at > 0 { available - 1 } else { rng.random_range(0..available) };
            operands.push(newest);
            if zips {
                operands.push(rng.random_range(0..available));
            }
        }
        check(&ops, &operands, &inputs)?;
    }
    Ok(())
}

/// Tests operands of every layout with strips of every kind: short, full, and crossing the end of a row.
#[test]
fn strips_of_every_length() -> Result<()> {
    let (ops, operands) =
        (&["Mul", "BiasAdd", "Sub", "Relu", "AddV2", "Mul"][..], &[0, 1, 5, 2, 6, 3, 7, 8, 5, 9, 4]);
    let mut rng = StdRng::seed_from_u64(7);
    for dtype in super::super::FLOATS {
        for len in [1, 15, 16, 17, 511, 512, 513, 1024, 1025] {
            let shapes = [&[3, len][..], &[3, len], &[len], &[3, 1], &[]];
            let inputs = shapes.map(|shape| random(&mut rng, *dtype, shape));
            check(ops, operands, &inputs.into_iter().collect::<Result<Vec<_>>>()?)?;
        }
    }
    Ok(())
}

#[test]
fn results_may_overwrite_an_operand() -> Result<()> {
    let inputs = |dtype| -> Result<Vec<Tensor>> {
        let mut rng = StdRng::seed_from_u64(9);
        [&[3, 1025][..], &[3, 1025]].into_iter().map(|shape| random(&mut rng, dtype, shape)).collect()
    };
    let ops = ["Mul", "AddV2", "Relu", "Sub"];
    for dtype in super::super::FLOATS {
        // The last op reads operand 0, whose memory the result reuses, or operand 1.
        for operands in [[0, 1, 2, 0, 3, 4, 0], [0, 1, 2, 0, 3, 4, 1]] {
            let node = node(*dtype, 2, &ops, &operands)?;
            let out = run_node(&node, inputs(*dtype)?.into_iter().map(Value::Host).collect())?;
            let [Value::Host(out)] = out.as_slice() else { panic!("{out:?}") };
            let unfused = unfused(&ops, &operands, &inputs(*dtype)?)?;
            assert_eq!(out.bytes()?, unfused.bytes()?, "{dtype} of {operands:?}");
        }
    }
    Ok(())
}

#[test]
fn the_result_reuses_the_buffer_of_an_unshared_operand() -> Result<()> {
    let operands = || -> Result<[Tensor; 2]> {
        Ok([Tensor::full(2.0f32, Shape::new(&[5000])?)?, Tensor::full(3.0f32, Shape::new(&[5000])?)?])
    };
    let node = node(DType::Float, 2, &["Mul", "Sub"], &[0, 1, 2, 1])?;
    let [x, y] = operands()?;
    let (x_pointer, shared) = (x.values::<f32>()?.as_ptr(), y.clone());
    let out = run_node(&node, vec![Value::Host(x), Value::Host(y)])?;
    let [Value::Host(out)] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!(out.values::<f32>()?.as_ptr(), x_pointer);
    assert!(out.values::<f32>()?.iter().all(|v| *v == 3.0));
    assert!(shared.values::<f32>()?.iter().all(|v| *v == 3.0));
    Ok(())
}

#[test]
fn results_written_past_the_caches_are_the_same() -> Result<()> {
    let chain = (&["Mul", "AddV2", "Relu"][..], &[0i64, 1, 3, 2, 4][..]);
    // The rows have more elements than a strip, and their length is not a multiple of the strip length.
    let mut rng = StdRng::seed_from_u64(5);
    for (dtype, rows) in [(DType::Float, 4099), (DType::Half, 8199)] {
        let mut of = |dims: &[usize]| random(&mut rng, dtype, dims);
        check(chain.0, chain.1, &[of(&[rows, 1029])?, of(&[])?, of(&[1029])?])?;
    }
    Ok(())
}

#[test]
fn large_tensors_are_shared_among_threads() -> Result<()> {
    let mut rng = StdRng::seed_from_u64(2);
    let shape = [3, 700_001];
    let inputs = [random(&mut rng, DType::Float, &shape)?, random(&mut rng, DType::Float, &[3, 1])?];
    check(&["Mul", "Exp", "AddV2", "Relu"], &[0, 1, 2, 3, 0, 4], &inputs)?;
    let inputs = [random(&mut rng, DType::Float, &[7001, 300])?, random(&mut rng, DType::Float, &[300])?];
    check(&["BiasAdd", "Relu", "Exp", "Mul"], &[0, 1, 2, 3, 4, 1], &inputs)
}

#[test]
fn errors_name_the_failed_op() -> Result<()> {
    let inputs = [Tensor::try_from([1.0f32, 2.0])?, Tensor::try_from([1.0f32, 2.0, 3.0])?];
    let error = fused(&["Neg", "AddV2", "Relu"], &[0, 2, 1, 3], &inputs).err();
    assert_eq!(error.as_ref().map(device::Error::code), Some(Code::InvalidArgument));
    let text = error.map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(text, "Incompatible shapes: [2] vs. [3]\n\t [[{{node n1}}]]");
    Ok(())
}

#[test]
fn invalid_chains_are_refused() -> Result<()> {
    let x = [Tensor::try_from([1.0f32])?];
    let refused = |ops: Texts<'_>, operands: &[i64]| fused(ops, operands, &x).err().map(|e| e.code());
    assert_eq!(refused(&["MatMul"], &[0, 0]), Some(Code::Unimplemented));
    assert_eq!(refused(&["AddV2"], &[0]), Some(Code::InvalidArgument));
    assert_eq!(refused(&["Neg"; MAX_FUSED_OPS + 1], &[0; MAX_FUSED_OPS + 1]), Some(Code::InvalidArgument));
    assert_eq!(refused(&["Neg"; MAX_FUSED_OPS], &[0; MAX_FUSED_OPS]), None);
    for operand in [1, 2, -1, i64::MAX] {
        assert_eq!(refused(&["Neg"], &[operand]), Some(Code::InvalidArgument), "{operand}");
    }
    Ok(())
}
