//! Tests of the array ops against the cases in `array.txt`, of shape inference, and of the completeness of the kernel
//! table.

use anabranch_kernels::testing::run_op;
use graph::ops::spec::AttrKind;
use graph::{AttrList, AttrValue, DType, PartialShape, Shape, Tensor};
use half::{bf16, f16};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const CASES: &str = include_str!("array.txt");

/// A call of an op, with its expected outputs or error message.
struct Case<'a> {
    text: &'a str,
    op: &'a str,
    attrs: Vec<(&'a str, AttrValue)>,
    inputs: Vec<Tensor>,
    expected: Result<Vec<Tensor>, &'a str>,
}

fn cases() -> Fallible<Vec<Case<'static>>> {
    let mut cases = Vec::new();
    let mut lines = CASES.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    while let (Some(call), Some(answer)) = (lines.next(), lines.next()) {
        let mut parts = call.split(" | ");
        let mut words = parts.next().unwrap_or_default().split(' ');
        let op = words.next().unwrap_or_default();
        let attrs = words.map(|w| attr(op, w)).collect::<Fallible<_>>()?;
        let inputs = parts.map(tensor).collect::<Fallible<_>>()?;
        let expected = match answer.trim_start().split_at(2) {
            ("! ", message) => Err(message),
            (_, outputs) => Ok(outputs.split(" | ").map(tensor).collect::<Fallible<_>>()?),
        };
        cases.push(Case { text: call, op, attrs, inputs, expected });
    }
    Ok(cases)
}

fn attr(op: &str, text: &'static str) -> Fallible<(&'static str, AttrValue)> {
    let (name, value) = text.split_once('=').ok_or(text)?;
    let op = graph::ops::lookup(op).ok_or(op)?;
    let spec = op.attr_spec(name).ok_or(text)?;
    let items = || value.trim_matches(['[', ']']).split(',').filter(|i| !i.is_empty());
    Ok((
        name,
        match spec.kind {
            AttrKind::Int if spec.is_list => {
                AttrValue::List(AttrList::Int(items().map(str::parse).collect::<Result<_, _>>()?))
            }
            AttrKind::Int => AttrValue::Int(value.parse()?),
            AttrKind::Bool => AttrValue::Bool(value == "true"),
            AttrKind::Str => value.into(),
            AttrKind::Type => DType::from_name(value).ok_or(text)?.into(),
            AttrKind::Shape => PartialShape::of_dims(items().map(|d| d.parse().ok())).into(),
            _ => return Err(text.into()),
        },
    ))
}

fn tensor(text: &str) -> Fallible<Tensor> {
    let (head, values) = text.split_once(' ').unwrap_or((text, ""));
    let (dtype, dims) = head.trim_end_matches(']').split_once('[').ok_or(text)?;
    let dims: Vec<usize> =
        dims.split(',').filter(|d| !d.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    let shape = Shape::new(&dims)?;
    let words = values.split(' ').filter(|w| !w.is_empty());
    macro_rules! parse {
        ($($d:ident $t:ty, $parse:expr;)*) => {
            match DType::from_name(dtype).ok_or(text)? {
                $(DType::$d => {
                    let parse: fn(&str) -> Fallible<$t> = $parse;
                    Ok(Tensor::from_slice(&words.map(parse).collect::<Fallible<Vec<_>>>()?, shape)?)
                })*
                DType::Bool => Ok(Tensor::bools(&words.map(|w| w == "true").collect::<Vec<_>>(), shape)?),
                DType::String => {
                    let strings = words.map(|w| w.trim_matches('\'').to_owned().into());
                    Ok(Tensor::strings(strings.collect(), shape)?)
                }
                other => Err(other.name().into()),
            }
        };
    }
    parse! {
        Float f32, |w| Ok(w.parse()?);
        Double f64, |w| Ok(w.parse()?);
        Half f16, |w| Ok(f16::from_f64(w.parse()?));
        BFloat16 bf16, |w| Ok(bf16::from_f64(w.parse()?));
        Int8 i8, |w| Ok(w.parse()?);
        Int16 i16, |w| Ok(w.parse()?);
        Int32 i32, |w| Ok(w.parse()?);
        Int64 i64, |w| Ok(w.parse()?);
        UInt8 u8, |w| Ok(w.parse()?);
        UInt16 u16, |w| Ok(w.parse()?);
        UInt32 u32, |w| Ok(w.parse()?);
        UInt64 u64, |w| Ok(w.parse()?);
    }
}

#[test]
fn every_case_matches_tensorflow() -> Fallible<()> {
    let mut wrong = Vec::new();
    let cases = cases()?;
    for case in &cases {
        let actual = run_op(case.op, &case.inputs, &case.attrs).map_err(|e| e.to_string());
        let same = match (&actual, &case.expected) {
            (Ok(actual), Ok(expected)) => actual == expected,
            (Err(actual), Err(expected)) => actual == expected,
            _ => false,
        };
        if !same {
            wrong.push(format!("{}\n  expected {:?}\n  actual   {actual:?}", case.text, case.expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    Ok(())
}

/// Returns a graph of the case's op, whose inputs are constants, or else placeholders of known dtype and unknown shape.
fn graph_of(case: &Case<'_>, constants: bool) -> Fallible<(graph::Graph, graph::NodeId)> {
    let scope = graph::Scope::new();
    let mut inputs = Vec::new();
    for (i, value) in case.inputs.iter().enumerate() {
        inputs.push(match constants {
            true => scope.constant(value.clone()),
            false => scope.placeholder(&format!("p{i}"), value.dtype(), PartialShape::unknown()),
        });
    }
    let mut graph = scope.finish()?;
    let mut node = graph::Node::new("case", graph::ops::lookup(case.op).ok_or(case.op)?);
    for (name, value) in &case.attrs {
        node.attrs.set(name, value.clone());
    }
    let id = graph.add(node, &inputs, &[])?;
    Ok((graph, id))
}

/// Ops whose output shapes depend on input values, in ways that shape inference does not model.
const OPEN_SHAPES: &[&str] = &[
    "DynamicPartition",
    "ListDiff",
    "SegmentMax",
    "SegmentMean",
    "SegmentMin",
    "SegmentProd",
    "SegmentSum",
    "Unique",
    "UniqueV2",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
    "Where",
    "BroadcastGradientArgs",
];

#[test]
fn inferred_shapes_match_the_outputs() -> Fallible<()> {
    for case in cases()? {
        let Ok(outputs) = &case.expected else { continue };
        for constants in [true, false] {
            let (graph, id) = graph_of(&case, constants)?;
            let shapes = graph::Shapes::infer(&graph).map_err(|e| format!("{}: {e}", case.text))?;
            for (i, output) in outputs.iter().enumerate() {
                let known = shapes.get(graph::Output::new(id, i));
                assert!(known.accepts(output.shape()), "{}: {known} for {}", case.text, output.shape());
                let should_know = constants && !OPEN_SHAPES.contains(&case.op) && case.op != "Squeeze";
                let exact = case.op.starts_with("PlaceholderWith") || known.is_fully_defined();
                assert!(exact || !should_know, "{}: only {known} is known", case.text);
            }
        }
    }
    Ok(())
}

#[test]
fn kernels_refuse_the_cases_that_inference_refuses() -> Fallible<()> {
    let mut refused = 0;
    for case in cases()? {
        let (graph, _) = graph_of(&case, true)?;
        if graph::Shapes::infer(&graph).is_err() {
            assert!(case.expected.is_err(), "{}", case.text);
            refused += 1;
        }
    }
    assert!(refused > 60, "only {refused} cases were refused");
    Ok(())
}

const OPS: &[&str] = &[
    "Const",
    "Placeholder",
    "PlaceholderV2",
    "PlaceholderWithDefault",
    "Fill",
    "Range",
    "LinSpace",
    "OneHot",
    "ZerosLike",
    "OnesLike",
    "Diag",
    "DiagPart",
    "MatrixBandPart",
    "Shape",
    "ShapeN",
    "Size",
    "Rank",
    "Reshape",
    "ExpandDims",
    "Squeeze",
    "BroadcastTo",
    "BroadcastArgs",
    "BroadcastGradientArgs",
    "EnsureShape",
    "ConcatV2",
    "Concat",
    "ConcatOffset",
    "Pack",
    "Unpack",
    "Split",
    "SplitV",
    "Transpose",
    "ConjugateTranspose",
    "InvertPermutation",
    "Tile",
    "ReverseV2",
    "Reverse",
    "SpaceToDepth",
    "DepthToSpace",
    "Pad",
    "PadV2",
    "MirrorPad",
    "MirrorPadGrad",
    "Slice",
    "StridedSlice",
    "StridedSliceGrad",
    "Gather",
    "GatherV2",
    "GatherNd",
    "ScatterNd",
    "UnsortedSegmentSum",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentProd",
    "SegmentSum",
    "SegmentMean",
    "SegmentMax",
    "SegmentMin",
    "SegmentProd",
    "DynamicPartition",
    "DynamicStitch",
    "ParallelDynamicStitch",
    "Where",
    "Unique",
    "UniqueV2",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
    "ListDiff",
    "TopKV2",
    "TopK",
    "InTopK",
    "InTopKV2",
    "Select",
    "SelectV2",
    "ClipByValue",
];

#[test]
fn every_array_op_is_in_the_op_table_and_has_a_kernel() {
    for op in OPS {
        assert!(graph::ops::lookup(op).is_some(), "{op} is no op");
        assert!(!anabranch_kernels::table().of_op(op).is_empty(), "{op} has no CPU kernel");
    }
}

#[test]
fn constants_are_shared_and_placeholders_must_be_fed() -> Fallible<()> {
    // A tensor too large to be stored inline.
    let value = Tensor::try_from([1.5f32, 2.5, 3.5])?;
    let attrs = [("dtype", DType::Float.into()), ("value", value.clone().into())];
    let outputs = run_op("Const", &[], &attrs)?;
    assert_eq!(outputs.first(), Some(&value));
    assert_eq!(outputs[0].bytes()?.as_ptr(), value.bytes()?.as_ptr());
    for (shape, tail) in [
        (PartialShape::unknown(), ""),
        (PartialShape::scalar(), ""),
        (PartialShape::from([None, Some(3)]), " and shape [?,3]"),
    ] {
        let attrs = [("dtype", DType::Float.into()), ("shape", shape.into())];
        let error = run_op("Placeholder", &[], &attrs).map_err(|e| e.to_string());
        let text = format!("You must feed a value for placeholder tensor 'test' with dtype float{tail}");
        assert_eq!(error, Err(text));
    }
    Ok(())
}

#[test]
fn ops_that_keep_all_elements_share_the_input_buffer() -> Fallible<()> {
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], Shape::new(&[1, 4])?)?;
    let calls = [
        ("Reshape", vec![x.clone(), Tensor::try_from([2i32, 2])?], vec![]),
        ("ExpandDims", vec![x.clone(), Tensor::scalar(0i32)], vec![]),
        ("Squeeze", vec![x.clone()], vec![]),
        ("Transpose", vec![x.clone(), Tensor::try_from([1i32, 0])?], vec![]),
        ("BroadcastTo", vec![x.clone(), Tensor::try_from([1i32, 4])?], vec![]),
        ("Tile", vec![x.clone(), Tensor::try_from([1i32, 1])?], vec![]),
        ("Pack", vec![x.clone()], vec![("N", 1i64.into())]),
    ];
    for (op, inputs, mut attrs) in calls {
        attrs.push(("T", DType::Float.into()));
        let outputs = run_op(op, &inputs, &attrs)?;
        assert_eq!(outputs[0].bytes()?.as_ptr(), x.bytes()?.as_ptr(), "{op}");
    }
    Ok(())
}

/// Tensors without elements may have axes of any size.
#[test]
fn scratch_memory_for_a_huge_axis_is_refused_before_allocation() -> Fallible<()> {
    let empty = |dims: &[usize]| Tensor::zeros(DType::Float, Shape::new(dims)?);
    let (long, one) = (1 << 45, 1i64.into());
    let scalars = |all: &[f32]| all.iter().map(|&value| value.into()).collect::<Vec<Tensor>>();
    let most = [1i32, 1].map(Tensor::from);
    let calls = [
        ("NearestNeighbors", vec![empty(&[1, 0])?, empty(&[long, 0])?, one], vec![]),
        (
            "KmeansPlusPlusInitialization",
            vec![empty(&[long, 0])?, 1i64.into(), 1i64.into(), 1i64.into()],
            vec![],
        ),
        (
            "CombinedNonMaxSuppression",
            [vec![empty(&[long, 0, 1, 4])?, empty(&[long, 0, 0])?], most.to_vec(), scalars(&[0.5, 0.5])]
                .concat(),
            vec![("pad_per_class", true.into())],
        ),
        (
            "StatelessRandomBinomial",
            vec![
                Tensor::try_from([0i64, 1 << 20, 1 << 22])?,
                Tensor::try_from([1i32, 2])?,
                Tensor::zeros(DType::Float, Shape::new(&[1 << 20, 1])?)?,
                Tensor::zeros(DType::Float, Shape::new(&[1, 1 << 22])?)?,
            ],
            vec![
                ("S", DType::Int64.into()),
                ("Tseed", DType::Int32.into()),
                ("T", DType::Float.into()),
                ("dtype", DType::Float.into()),
            ],
        ),
    ];
    for (op, inputs, attrs) in calls {
        let error = run_op(op, &inputs, &attrs).err().ok_or(op)?;
        assert_eq!(error.code(), graph::Code::ResourceExhausted, "{op}: {error}");
        assert!(error.to_string().contains("scratch memory"), "{op}: {error}");
    }
    Ok(())
}

#[test]
fn outputs_beyond_memory_are_refused_before_allocation() -> Fallible<()> {
    let huge = Tensor::try_from([1i64 << 45])?;
    let calls = [
        ("Fill", vec![huge.clone(), Tensor::scalar(1f32)], vec![("index_type", DType::Int64.into())]),
        (
            "Fill",
            vec![huge.clone(), "x".into()],
            vec![("index_type", DType::Int64.into()), ("T", DType::String.into())],
        ),
        ("Range", vec![0i64.into(), (1i64 << 62).into(), 1i64.into()], vec![("Tidx", DType::Int64.into())]),
        ("BroadcastTo", vec![1f32.into(), huge.clone()], vec![("Tidx", DType::Int64.into())]),
        ("Tile", vec![Tensor::try_from([1f32])?, huge.clone()], vec![("Tmultiples", DType::Int64.into())]),
    ];
    for (op, inputs, mut attrs) in calls {
        if !attrs.iter().any(|(name, _)| *name == "T") && op != "Range" {
            attrs.push(("T", DType::Float.into()));
        }
        let code = run_op(op, &inputs, &attrs).map_err(|e| e.code()).err();
        assert_eq!(code, Some(graph::Code::ResourceExhausted), "{op}");
    }
    Ok(())
}
