//! Nodes for every row of a kernel table, with each combination of types, and with values of the attributes that select
//! different code in kernels.

use super::Fallible;
use device::KernelTable;
use device::kernel::KernelDef;
use graph::ops::spec::AttrKind;
use graph::{AttrList, AttrValue, DType, Node, Op, PartialShape, Tensor};

/// Returns every row of a kernel table with a node for each combination of types that the row supports. Ops that call
/// functions are left out because their nodes need a graph with these functions.
pub fn rows(table: &KernelTable) -> Fallible<Vec<(&'static KernelDef, Vec<Node>)>> {
    let mut rows = Vec::new();
    let calls = |op: &&'static Op| op.attrs.iter().any(|spec| matches!(spec.kind, AttrKind::Func));
    for op in graph::ops::all().iter().filter(|op| !calls(op)) {
        for &def in table.of_op(op.name()) {
            let mut nodes = plain_nodes(op)?;
            for (attr, types) in def.types {
                nodes = nodes
                    .iter()
                    .flat_map(|node| types.iter().map(move |&dtype| typed(op, node, attr, dtype)))
                    .collect();
            }
            if let Some(mark) = def.mark {
                nodes = nodes.into_iter().map(|node| node.with_attr(mark, true)).collect();
            }
            rows.push((def, nodes));
        }
    }
    Ok(rows)
}

fn typed(op: &Op, node: &Node, attr: &str, dtype: DType) -> Node {
    let is_list = op.attrs.iter().any(|spec| spec.name == attr && spec.is_list);
    let node =
        if is_list { node.clone().with_attr(attr, vec![dtype]) } else { node.clone().with_attr(attr, dtype) };
    match node.op.name() {
        "Const" => Tensor::zeros(dtype, graph::Shape::scalar())
            .map_or(node.clone(), |value| node.with_attr("value", value)),
        _ => node,
    }
}

/// Returns the test nodes of an op without type attributes: one node for most ops, and several nodes if other
/// attributes select the kernel.
fn plain_nodes(op: &'static Op) -> Fallible<Vec<Node>> {
    let of = |ops: &[&'static str]| {
        AttrValue::List(AttrList::Str(ops.iter().map(|op| op.as_bytes().into()).collect()))
    };
    let chain = |inputs: i64, (ops, operands): (Vec<&'static str>, Vec<i64>)| {
        let node = Node::new("n", op).with_attr("N", inputs).with_attr("operands", operands);
        node.with_attr("ops", of(&ops)).with_attr("names", of(&ops))
    };
    Ok(match op.name() {
        "_FusedElementwise" => vec![
            // A chain of three inputs: a matrix, a bias and a scalar.
            chain(3, (vec!["BiasAdd", "Relu", "Mul", "Sigmoid"], vec![0, 1, 3, 4, 2, 5])),
            // A chain with an intermediate value that has fewer elements than the result.
            chain(3, (vec!["Exp", "Mul", "AddV2"], vec![1, 3, 2, 0, 4])),
            chain(1, sum_of(MAPS, 1)),
            chain(2, sum_of(ARITHMETIC, 2)),
            chain(2, sum_of(GRADIENTS, 2)),
        ],
        "_FusedMatMul" => {
            let then: [&[&'static str]; 7] = [
                &[],
                &["BiasAdd"],
                &["BiasAdd", "Relu"],
                &["Relu"],
                &["BiasAdd", "Tanh"],
                &["BiasAdd", "LeakyRelu"],
                &["BiasAdd", "Elu"],
            ];
            let node = |then: &&[&'static str]| {
                let biases = then.iter().filter(|op| **op == "BiasAdd").count() as i64;
                Node::new("n", op).with_attr("num_args", biases).with_attr("fused_ops", of(then))
            };
            then.iter().map(node).collect()
        }
        "CropAndResize" | "CropAndResizeGradImage" => {
            let node = |method: &'static str| Ok(plain(op)?.with_attr("method", method));
            ["bilinear", "nearest"].into_iter().map(node).collect::<Fallible<_>>()?
        }
        "ResizeBicubic" | "ResizeBicubicGrad" => {
            let node = |centers: bool| Ok(plain(op)?.with_attr("half_pixel_centers", centers));
            [false, true].into_iter().map(node).collect::<Fallible<_>>()?
        }
        "MaxPool3D" | "AvgPool3D" | "MaxPool3DGrad" | "AvgPool3DGrad" | "MaxPool3DGradGrad" => {
            let node = |&(size, stride, padding, format): &(i64, i64, &'static str, &'static str)| {
                let (size, stride) = ([2, size, 2], [1, stride, 2]);
                let node = plain(op)?.with_attr("ksize", of_volumes(size, format));
                let node = node.with_attr("strides", of_volumes(stride, format));
                Ok(node.with_attr("padding", padding).with_attr("data_format", format))
            };
            VOLUMES.iter().map(node).collect::<Fallible<_>>()?
        }
        "Conv3D" | "Conv3DBackpropInputV2" | "Conv3DBackpropFilterV2" => {
            let node = |&(dilation, stride, padding, format): &(i64, i64, &'static str, &'static str)| {
                let node = plain(op)?.with_attr("strides", of_volumes([1, stride, 2], format));
                let node = node.with_attr("dilations", of_volumes([dilation, 1, 1], format));
                Ok(node.with_attr("padding", padding).with_attr("data_format", format))
            };
            VOLUMES.iter().map(node).collect::<Fallible<_>>()?
        }
        name if name.starts_with("MaxPool") || name.starts_with("AvgPool") => {
            let has = |name: &str| op.attrs.iter().any(|spec| spec.name == name);
            let node = |&(size, stride, padding, format): &Window| {
                let mut node = plain(op)?.with_attr("padding", padding);
                if has("ksize") {
                    node = node.with_attr("ksize", in_format(size, format));
                    node = node.with_attr("strides", in_format(stride, format));
                }
                Ok(if has("data_format") { node.with_attr("data_format", format) } else { node })
            };
            let fits = |window: &&Window| has("data_format") || window.3 == "NHWC";
            let mut nodes = POOLS.iter().filter(fits).map(node).collect::<Fallible<Vec<_>>>()?;
            if has("explicit_paddings") {
                let padded = node(&([3, 2], [2, 1], "EXPLICIT", "NHWC"))?;
                nodes.push(padded.with_attr("explicit_paddings", vec![0i64, 0, 2, 1, 0, 1, 0, 0]));
            }
            nodes
        }
        name if name.starts_with("Conv2D") || name.starts_with("DepthwiseConv2dNative") => {
            let node = |&(dilation, stride, padding, format): &Window| {
                let node = plain(op)?.with_attr("strides", in_format(stride, format));
                let node = node.with_attr("dilations", in_format(dilation, format));
                Ok(node.with_attr("padding", padding).with_attr("data_format", format))
            };
            CONVOLUTIONS.iter().map(node).collect::<Fallible<_>>()?
        }
        name if name.trim_start_matches('_').starts_with("FusedBatchNorm") => {
            let plain = plain(op)?;
            let activations: &[&str] = match name {
                "_FusedBatchNormEx" => &["Identity", "Relu", "Relu6"],
                "_FusedBatchNormActivationGrad" => &["Relu", "Relu6"],
                _ => &[],
            };
            let with_activations = |node: Node| match activations {
                [] => vec![node],
                all => all.iter().map(|a| node.clone().with_attr("activation_mode", *a)).collect(),
            };
            let formats = ["NHWC", "NCHW"].map(|format| plain.clone().with_attr("data_format", format));
            let mut nodes: Vec<Node> = formats.into_iter().flat_map(with_activations).collect();
            nodes.extend(with_activations(plain.clone().with_attr("is_training", false)));
            if name == "_FusedBatchNormEx" {
                let beside = |sides: i64| with_activations(plain.clone().with_attr("num_side_inputs", sides));
                nodes.extend([beside(1), beside(2)].concat());
            }
            nodes
        }
        "ExtractImagePatches" | "ExtractVolumePatches" => {
            let with_batch_and_depth = |space: &[i64]| [&[1][..], space, &[1]].concat();
            let node = |&(sizes, strides, padding): &(&[i64], &[i64], &'static str)| {
                let sizes = if op.name().contains("Image") { &sizes[1..] } else { sizes };
                let strides = &strides[3 - sizes.len()..];
                let node = plain(op)?
                    .with_attr("ksizes", with_batch_and_depth(sizes))
                    .with_attr("strides", with_batch_and_depth(strides));
                let node = node.with_attr("padding", padding);
                Ok(if sizes.len() == 2 {
                    node.with_attr("rates", with_batch_and_depth(&[1, 2]))
                } else {
                    node
                })
            };
            // The windows of the last entry are smaller than the strides, and leave out elements on both sides of a
            // volume.
            let windows: [(&[i64], &[i64], &str); 3] = [
                (&[2, 3, 2], &[1, 2, 1], "SAME"),
                (&[2, 2, 1], &[1, 1, 2], "VALID"),
                (&[1, 1, 1], &[3, 3, 2], "SAME"),
            ];
            windows.iter().map(node).collect::<Fallible<_>>()?
        }
        name if name.starts_with("Dilation2D") => {
            let node = |&(rate, stride, padding, format): &Window| {
                let node = plain(op)?.with_attr("rates", in_format(rate, format));
                Ok(node.with_attr("strides", in_format(stride, format)).with_attr("padding", padding))
            };
            CONVOLUTIONS[..3].iter().map(node).collect::<Fallible<_>>()?
        }
        name if name.starts_with("QuantizeAndDequantizeV") => {
            let has = |name: &str| op.attrs.iter().any(|spec| spec.name == name);
            let mut nodes = Vec::new();
            for (axis, mode) in [(-1i64, "HALF_TO_EVEN"), (1, "HALF_UP")] {
                let node = plain(op)?.with_attr("axis", axis);
                nodes.push(if has("round_mode") { node.with_attr("round_mode", mode) } else { node });
            }
            nodes
        }
        "MirrorPad" | "MirrorPadGrad" => {
            let node = |mode: &'static str| Ok(plain(op)?.with_attr("mode", mode));
            ["REFLECT", "SYMMETRIC"].into_iter().map(node).collect::<Fallible<_>>()?
        }
        "Einsum" => {
            let node = |equation: &&'static str| {
                let operands = 1 + equation.matches(',').count() as i64;
                Ok(plain(op)?.with_attr("N", operands).with_attr("equation", *equation))
            };
            EQUATIONS.iter().map(node).collect::<Fallible<_>>()?
        }
        _ => vec![plain(op)?],
    })
}

/// The windows of a 2-D op: window sizes or dilations, strides, padding, data format.
type Window = ([i64; 2], [i64; 2], &'static str, &'static str);

const POOLS: &[Window] = &[
    ([3, 2], [2, 1], "SAME", "NHWC"),
    ([2, 3], [1, 2], "VALID", "NHWC"),
    ([3, 3], [2, 2], "SAME", "NCHW"),
    ([2, 2], [3, 3], "VALID", "NCHW"),
    ([1, 1], [1, 1], "SAME", "NHWC"),
    // The row stride is too large for 32-bit index arithmetic.
    ([2, 3], [i32::MAX as i64, 1], "SAME", "NHWC"),
];
const CONVOLUTIONS: &[Window] = &[
    ([1, 1], [1, 1], "SAME", "NHWC"),
    ([1, 1], [2, 2], "SAME", "NHWC"),
    ([2, 2], [1, 1], "VALID", "NHWC"),
    ([1, 1], [2, 2], "VALID", "NCHW"),
    ([2, 2], [1, 1], "SAME", "NCHW"),
];

/// The windows of 3-D ops: number of rows of a pooling window or dilation of a convolution's planes, stride of the
/// rows, padding, data format.
const VOLUMES: &[(i64, i64, &str, &str)] =
    &[(3, 2, "SAME", "NDHWC"), (1, 1, "VALID", "NDHWC"), (2, 3, "SAME", "NCDHW"), (1, 1, "VALID", "NCDHW")];

/// Returns the strides, window sizes or dilations of a 3-D op in the order of the data format; 1 for batch and
/// channels.
fn of_volumes([planes, rows, columns]: [i64; 3], format: &str) -> Vec<i64> {
    match format {
        "NCDHW" => vec![1, 1, planes, rows, columns],
        _ => vec![1, planes, rows, columns, 1],
    }
}

/// Returns the strides, window sizes or dilations of a 2-D op in the order of the data format; 1 for batch and
/// channels.
pub fn in_format([rows, columns]: [i64; 2], format: &str) -> Vec<i64> {
    match format {
        "NCHW" => vec![1, 1, rows, columns],
        _ => vec![1, rows, columns, 1],
    }
}

/// Equations of `Einsum`: matrix products, plain, transposed, batched and per attention head; sums over an axis of one
/// operand; diagonals of inputs and outputs.
const EQUATIONS: &[&str] = &[
    "ij,jk->ik",
    "ij,kj->ki",
    "bij,bjk->bik",
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "abc,cd->abd",
    "i,j->ij",
    "ij,ij->",
    "ijk,jl->i",
    "...ij,jk->...ik",
    "ij->ji",
    "ijk->j",
    "iij->j",
    "i->ii",
];

/// Unary ops that fused chains may contain.
const MAPS: &[&str] = &[
    "Neg",
    "Abs",
    "Sign",
    "Square",
    "Sqrt",
    "Rsqrt",
    "Reciprocal",
    "Inv",
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
/// Binary ops with broadcasting that fused chains may contain.
const ARITHMETIC: &[&str] = &[
    "Add",
    "AddV2",
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
];
/// Gradient ops, of two operands of the same shape, that fused chains may contain.
const GRADIENTS: &[&str] = &[
    "AddN",
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

/// Returns a fused chain, as its ops and their operands, that sums the values of `ops`. Each op is applied to the
/// sigmoid of the first input's square, a number between 0.5 and 1, for which all the ops are defined.
fn sum_of(ops: &[&'static str], inputs: i64) -> (Vec<&'static str>, Vec<i64>) {
    let (mut chain, mut operands) = (vec!["Square", "Sigmoid"], vec![0, inputs]);
    let first = inputs + 1;
    let mut sum = first;
    for op in ops {
        chain.push(op);
        operands.push(first);
        operands.extend((inputs == 2).then_some(1));
        let value = inputs + chain.len() as i64 - 1;
        chain.push("AddV2");
        operands.extend([sum, value]);
        sum = value + 1;
    }
    (chain, operands)
}

/// Returns a node with a valid value for each attribute that has no default.
fn plain(op: &'static Op) -> Fallible<Node> {
    let mut node = Node::new("n", op);
    for spec in op.attrs.iter().filter(|spec| spec.default.is_none()) {
        let value: AttrValue = match (spec.kind, spec.is_list) {
            // The value is the first one that the op allows, because not all type attributes allow float.
            (AttrKind::Type, false) => spec.allowed.first().cloned().unwrap_or(DType::Float.into()),
            (AttrKind::Type, true) => vec![DType::Float].into(),
            // `concat_dim` is the last axis of a matrix.
            (AttrKind::Int, false) if spec.name == "concat_dim" => 1i64.into(),
            (AttrKind::Int, false) => 2i64.into(),
            (AttrKind::Int, true) => vec![1i64, 1, 1, 1].into(),
            (AttrKind::Str, true) => AttrValue::List(AttrList::Str(vec!["GPU".into()])),
            (AttrKind::Str, false) => spec.allowed.first().cloned().unwrap_or("SAME".into()),
            (AttrKind::Bool, _) => false.into(),
            (AttrKind::Float, true) => vec![-1.0f32, 0.0, 1.5].into(),
            (AttrKind::Float, false) => 1.0f32.into(),
            (AttrKind::Shape, true) => AttrValue::List(AttrList::Shape(vec![PartialShape::unknown()])),
            (AttrKind::Shape, false) => PartialShape::from([2usize]).into(),
            (AttrKind::Tensor, _) => Tensor::scalar(1.0f32).into(),
            (AttrKind::Func, _) => return Err(format!("{} takes a function", op.name()).into()),
        };
        node = node.with_attr(spec.name, value);
    }
    Ok(node)
}
