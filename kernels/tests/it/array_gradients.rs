//! Tests of the gradients of array ops against finite differences, with shapes known and unknown at graph
//! construction.

use anabranch_kernels::testing::run_node;
use device::Value;
use graph::{AttrValue, DType, Graph, Output, PartialShape, Scope, Shape, Tensor, Topology};
use std::collections::HashMap;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// An op with its inputs and attributes.
struct Case {
    op: &'static str,
    inputs: Vec<Input>,
    attrs: Vec<(&'static str, AttrValue)>,
    /// True if building the gradient requires known ranks.
    needs_ranks: bool,
}

/// An input of a case.
enum Input {
    /// The shape of an input that a gradient flows to.
    Active(&'static [usize]),
    /// The value of an input without a gradient.
    Constant(Tensor),
}
use Input::{Active, Constant};

fn case<const N: usize>(op: &'static str, inputs: Vec<Input>, attrs: [(&'static str, AttrValue); N]) -> Case {
    Case { op, inputs, attrs: attrs.into(), needs_ranks: false }
}

fn ints<const N: usize>(values: [i32; N]) -> Fallible<Input> {
    Ok(Constant(Tensor::vector(&values)?))
}

fn matrix<const N: usize, const M: usize>(values: [[i32; M]; N]) -> Fallible<Input> {
    Ok(Constant(Tensor::try_from(values)?))
}

fn int(value: i32) -> Input {
    Constant(Tensor::scalar(value))
}

fn bools<const N: usize>(values: [bool; N], shape: &[usize]) -> Fallible<Input> {
    Ok(Constant(Tensor::bools(&values, Shape::new(shape)?)?))
}

fn cases() -> Fallible<Vec<Case>> {
    let n = AttrValue::Int;
    let index = || ("Index", AttrValue::Type(DType::Int32));
    let mut cases = vec![
        case("PlaceholderWithDefault", vec![Active(&[2])], [("shape", PartialShape::unknown().into())]),
        case("Fill", vec![ints([2, 3])?, Active(&[])], []),
        case("Diag", vec![Active(&[3])], []),
        case("DiagPart", vec![Active(&[3, 3])], []),
        case("MatrixBandPart", vec![Active(&[3, 4]), Constant(0i64.into()), Constant(1i64.into())], []),
        case("Reshape", vec![Active(&[2, 3]), ints([3, -1])?], []),
        case("ExpandDims", vec![Active(&[2, 3]), int(1)], []),
        case("Squeeze", vec![Active(&[2, 1, 3])], []),
        case("BroadcastTo", vec![Active(&[2, 1]), ints([3, 2, 4])?], []),
        case("EnsureShape", vec![Active(&[2])], [("shape", PartialShape::unknown().into())]),
        case("ConcatV2", vec![Active(&[2, 1]), Active(&[2, 3]), int(-1)], [("N", n(2))]),
        case("ConcatV2", vec![Active(&[1, 2]), Active(&[3, 2]), Constant(0i64.into())], [("N", n(2))]),
        case("Concat", vec![int(1), Active(&[2, 1]), Active(&[2, 3])], [("N", n(2))]),
        case("Pack", vec![Active(&[2]), Active(&[2])], [("N", n(2)), ("axis", n(1))]),
        case("Unpack", vec![Active(&[2, 3])], [("num", n(3)), ("axis", n(-1))]),
        case("Split", vec![int(1), Active(&[2, 4])], [("num_split", n(2))]),
        case("SplitV", vec![Active(&[2, 4]), ints([1, -1])?, int(1)], [("num_split", n(2))]),
        case("Transpose", vec![Active(&[2, 3, 4]), ints([2, 0, 1])?], []),
        case("ConjugateTranspose", vec![Active(&[2, 3]), ints([1, 0])?], []),
        case("Tile", vec![Active(&[2, 3]), ints([2, 1])?], []),
        case("ReverseV2", vec![Active(&[2, 3]), ints([1])?], []),
        case("Reverse", vec![Active(&[2, 3]), bools([true, false], &[2])?], []),
        case("SpaceToDepth", vec![Active(&[1, 2, 4, 1])], [("block_size", n(2))]),
        case("DepthToSpace", vec![Active(&[1, 1, 2, 4])], [("block_size", n(2))]),
        case("Pad", vec![Active(&[2, 2]), matrix([[1, 0], [0, 2]])?], []),
        case("PadV2", vec![Active(&[2, 2]), matrix([[1, 0], [0, 2]])?, Constant(3f64.into())], []),
        case("Slice", vec![Active(&[3, 4]), ints([1, 0])?, ints([1, -1])?], [index()]),
        case("StridedSlice", vec![Active(&[3, 4]), ints([2, 0])?, ints([0, 4])?, ints([-1, 2])?], [index()]),
        case(
            "StridedSlice",
            vec![Active(&[3, 4]), ints([0, 1, 0])?, ints([0, 2, 0])?, ints([1, 1, 1])?],
            [index(), ("new_axis_mask", n(1)), ("shrink_axis_mask", n(2)), ("ellipsis_mask", n(4))],
        ),
        case(
            "StridedSliceGrad",
            vec![ints([4])?, ints([0])?, ints([4])?, ints([2])?, Active(&[2])],
            [index()],
        ),
        case("Gather", vec![Active(&[3, 2]), ints([2, 0, 2])?], []),
        case("GatherV2", vec![Active(&[3, 2]), matrix([[2, 0], [2, 2]])?, int(0)], []),
        case("GatherNd", vec![Active(&[3, 2]), matrix([[2, 1], [0, 0], [2, 1]])?], []),
        case("GatherNd", vec![Active(&[3, 2]), matrix([[2], [2]])?], []),
        case("ScatterNd", vec![matrix([[2], [0]])?, Active(&[2, 2]), ints([3, 2])?], []),
        case("UnsortedSegmentSum", vec![Active(&[3, 2]), ints([1, -1, 1])?, int(2)], []),
        case("UnsortedSegmentMax", vec![Active(&[3, 2]), ints([1, -1, 1])?, int(2)], []),
        case("UnsortedSegmentMin", vec![Active(&[3, 2]), ints([1, 0, 1])?, int(2)], []),
        case("UnsortedSegmentProd", vec![Active(&[3, 2]), ints([1, 0, 1])?, int(2)], []),
        case("SegmentSum", vec![Active(&[3, 2]), ints([0, 0, 2])?], []),
        case("SegmentMean", vec![Active(&[3, 2]), ints([0, 0, 2])?], []),
        case("SegmentMax", vec![Active(&[3, 2]), ints([0, 0, 2])?], []),
        case("SegmentMin", vec![Active(&[3, 2]), ints([0, 0, 2])?], []),
        case("SegmentProd", vec![Active(&[3, 2]), ints([0, 0, 2])?], []),
        case("DynamicPartition", vec![Active(&[4, 2]), ints([1, 0, 1, 1])?], [("num_partitions", n(3))]),
        case("TopKV2", vec![Active(&[2, 4]), int(2)], []),
        case("TopK", vec![Active(&[2, 4])], [("k", n(2))]),
        case("Select", vec![bools([true, false], &[2])?, Active(&[2, 2]), Active(&[2, 2])], []),
        case("SelectV2", vec![bools([true, false], &[2, 1])?, Active(&[2, 3]), Active(&[3])], []),
        case("ClipByValue", vec![Active(&[4]), Constant((-0.4f64).into()), Constant(0.3f64.into())], []),
        case("ClipByValue", vec![Active(&[6]), Active(&[]), Constant(9f64.into())], []),
    ];
    for mode in ["REFLECT", "SYMMETRIC"] {
        let paddings = || matrix([[1, 1], [0, 1]]);
        cases.push(case("MirrorPad", vec![Active(&[2, 3]), paddings()?], [("mode", mode.into())]));
        cases.push(case("MirrorPadGrad", vec![Active(&[4, 4]), paddings()?], [("mode", mode.into())]));
    }
    for op in ["DynamicStitch", "ParallelDynamicStitch"] {
        let inputs = vec![ints([2, 0])?, int(1), Active(&[2, 2]), Active(&[2])];
        cases.push(case(op, inputs, [("N", n(2))]));
    }
    for (shape, axis, batch) in
        [(&[2usize, 3, 2][..], 1, 0), (&[2, 3, 2], -1, 0), (&[2, 2, 3], 2, 1), (&[2, 3], 1, 1)]
    {
        let inputs = vec![Active(shape), matrix([[1, 0], [1, 1]])?, int(axis)];
        let mut case = case("GatherV2", inputs, [("batch_dims", n(batch))]);
        case.needs_ranks = true;
        cases.push(case);
    }
    Ok(cases)
}

/// Returns `count` values that are far from each other, from 0, and from every bound that occurs in the cases.
fn values(count: usize, salt: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 + salt * 17 + 5) % 101) as f64 / 50.0 - 0.995).collect()
}

/// Computes the values of the outputs `fetches`.
fn evaluate(graph: &Graph, feeds: &HashMap<Output, Tensor>, fetches: &[Output]) -> Fallible<Vec<Tensor>> {
    let mut known: HashMap<Output, Tensor> = feeds.clone();
    for id in Topology::new(graph).order(graph)? {
        if known.contains_key(&Output::new(id, 0)) {
            continue;
        }
        let inputs: Vec<Value> = graph.inputs(id).iter().map(|i| Value::Host(known[i].clone())).collect();
        let outputs =
            run_node(graph.node(id), inputs).map_err(|e| format!("{}: {e}", graph.node(id).name))?;
        for (i, value) in outputs.into_iter().enumerate() {
            match value {
                Value::Host(tensor) => known.insert(Output::new(id, i), tensor),
                other => return Err(format!("{other:?}").into()),
            };
        }
    }
    Ok(fetches.iter().map(|o| known[o].clone()).collect())
}

fn check(case: &Case, known_shapes: bool) -> Fallible<()> {
    let scope = Scope::new();
    let mut feeds = HashMap::new();
    let (mut inputs, mut active) = (Vec::new(), Vec::new());
    for (i, input) in case.inputs.iter().enumerate() {
        inputs.push(match input {
            Constant(value) => scope.constant(value.clone()),
            Active(dims) => {
                let shape = Shape::new(dims)?;
                let known = if known_shapes { PartialShape::from(&shape) } else { PartialShape::unknown() };
                let x = scope.placeholder(&format!("x{i}"), DType::Double, known);
                feeds.insert(x, Tensor::from_slice(&values(shape.num_elements(), i), shape)?);
                active.push(x);
                x
            }
        });
    }
    let op = graph::ops::lookup(case.op).ok_or(case.op)?;
    let mut rest = inputs.as_slice();
    let mut call = scope.op(case.op);
    let lists = op.inputs.iter().filter(|a| a.number_attr.is_some()).count();
    let of_list = (inputs.len() + lists - op.inputs.len()).checked_div(lists).unwrap_or(1);
    for arg in &op.inputs {
        let count = if arg.number_attr.is_some() { of_list } else { 1 };
        let (now, later) = rest.split_at(count.min(rest.len()));
        call = if arg.number_attr.is_some() { call.input(now) } else { call.input(now[0]) };
        rest = later;
    }
    for (name, value) in &case.attrs {
        call = call.attr(name, value.clone());
    }
    if case.attrs.iter().all(|(name, _)| *name != "dtype") && case.op == "PlaceholderWithDefault" {
        call = call.attr("dtype", DType::Double);
    }
    let ys: Vec<Output> = call.outputs().into_iter().filter(|&y| scope.dtype(y) == DType::Double).collect();
    let forward = scope.finish()?;
    let outputs = evaluate(&forward, &feeds, &ys)?;
    let weights: Vec<Tensor> = outputs
        .iter()
        .enumerate()
        .map(|(i, y)| Tensor::from_slice(&values(y.num_elements(), i + 7), y.shape().clone()))
        .collect::<Result<_, _>>()?;
    let grad_ys: Vec<_> = weights.iter().map(|w| Some(scope.constant(w.clone()))).collect();
    let grads = scope.gradients(&ys, &active, &grad_ys)?;
    let full = scope.finish()?;
    let grads: Vec<Output> = grads.into_iter().collect::<Option<_>>().ok_or("no gradient flows")?;
    let found = evaluate(&full, &feeds, &grads)?;
    let loss = |feeds: &HashMap<Output, Tensor>| -> Fallible<f64> {
        let mut sum = 0.0;
        for (y, w) in evaluate(&forward, feeds, &ys)?.iter().zip(&weights) {
            let (y, w) = (y.values::<f64>()?, w.values::<f64>()?);
            sum += y.iter().zip(w).filter(|(y, _)| y.abs() < 1e300).map(|(y, w)| y * w).sum::<f64>();
        }
        Ok(sum)
    };
    const STEP: f64 = 1e-5;
    for (&x, found) in active.iter().zip(&found) {
        if found.shape() != feeds[&x].shape() {
            return Err(format!("the gradient has shape {}", found.shape()).into());
        }
        for i in 0..found.num_elements() {
            let at = |by: f64| -> Fallible<f64> {
                let mut feeds = feeds.clone();
                if let Some(value) = feeds.get_mut(&x) {
                    value.values_mut::<f64>()?[i] += by;
                }
                loss(&feeds)
            };
            let expected = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
            let found = found.values::<f64>()?[i];
            if (expected - found).abs() > 1e-6 {
                return Err(format!("element {i} is {found}, not {expected}").into());
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_match_finite_differences() -> Fallible<()> {
    let mut wrong = Vec::new();
    for case in cases()? {
        for known_shapes in [true, false] {
            let possible = known_shapes || !case.needs_ranks;
            if possible && let Err(error) = check(&case, known_shapes) {
                wrong.push(format!("{} (shapes known: {known_shapes}): {error}", case.op));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
