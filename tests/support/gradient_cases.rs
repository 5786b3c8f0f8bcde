//! At least one case for every op that has a gradient. Inputs are not near points where the derivative jumps.

use graph::attr::AttrList;
use graph::{AttrValue, DType, Shape, Tensor};

/// An op with inputs and attributes, whose gradient is compared with central differences.
pub(crate) struct Case {
    pub op: &'static str,
    pub inputs: Vec<Argument>,
    pub attrs: Vec<(&'static str, AttrValue)>,
    /// Number of floating-point outputs, from the first one on, that are differentiated; all other outputs are
    /// ignored.
    pub outputs: usize,
}

/// An input argument of an op: one tensor, or a list of tensors.
pub(crate) struct Argument {
    pub is_list: bool,
    pub inputs: Vec<Input>,
}

/// A tensor that a case passes to its op.
pub(crate) enum Input {
    /// A fed tensor with respect to which the op is differentiated.
    Differentiable(Tensor),
    /// A fed tensor that is not differentiated; its value is unknown when the graph is built.
    Fixed(Tensor),
    /// A constant of the graph.
    Constant(Tensor),
    /// The value of a resource variable.
    Variable(Tensor),
}

/// Returns a case of `op` without inputs and attributes.
pub(crate) fn case(op: &'static str) -> Case {
    Case { op, inputs: Vec::new(), attrs: Vec::new(), outputs: usize::MAX }
}

fn tensor(dims: &[usize], low: f64, high: f64, seed: usize) -> Tensor {
    let shape = Shape::new(dims).unwrap_or_default();
    crate::gradients::spread(DType::Double, &shape, low, high, seed).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns a tensor of 32-bit integers.
pub(crate) fn ints(values: &[i32], dims: &[usize]) -> Tensor {
    Shape::new(dims).and_then(|s| Tensor::from_slice(values, s)).unwrap_or_else(|e| panic!("{e}"))
}

impl Case {
    /// Adds an input argument of one tensor.
    pub(crate) fn arg(mut self, input: Input) -> Case {
        self.inputs.push(Argument { is_list: false, inputs: vec![input] });
        self
    }

    /// Adds an input argument that is a list of tensors.
    pub(crate) fn list(mut self, inputs: Vec<Input>) -> Case {
        self.inputs.push(Argument { is_list: true, inputs });
        self
    }

    /// Adds a differentiable input with values between two bounds. The order of the values depends on the input's
    /// position.
    pub(crate) fn x(self, dims: &[usize], low: f64, high: f64) -> Case {
        let seed = 3 * self.inputs.len() + 1;
        self.arg(Input::Differentiable(tensor(dims, low, high, seed)))
    }

    /// Adds an input with values between two bounds that is not differentiated.
    pub(crate) fn fixed(self, dims: &[usize], low: f64, high: f64) -> Case {
        self.arg(Input::Fixed(tensor(dims, low, high, 2)))
    }

    /// Adds a list of differentiable inputs with these shapes.
    pub(crate) fn xs(self, shapes: &[&[usize]]) -> Case {
        let inputs = shapes.iter().enumerate().map(|(i, s)| Input::Differentiable(tensor(s, -2.0, 2.0, i)));
        let inputs = inputs.collect();
        self.list(inputs)
    }

    /// Adds a vector of 32-bit integers that is fed.
    pub(crate) fn k(self, values: &[i32]) -> Case {
        self.arg(Input::Fixed(ints(values, &[values.len()])))
    }

    /// Adds a vector of 32-bit integers that is a constant of the graph.
    pub(crate) fn c(self, values: &[i32]) -> Case {
        self.arg(Input::Constant(ints(values, &[values.len()])))
    }

    /// Adds a scalar 32-bit integer that is fed.
    pub(crate) fn i(self, value: i32) -> Case {
        self.arg(Input::Fixed(Tensor::scalar(value)))
    }

    /// Adds a tensor of 32-bit integers that is fed.
    pub(crate) fn matrix(self, values: &[i32], dims: &[usize]) -> Case {
        self.arg(Input::Fixed(ints(values, dims)))
    }

    /// Adds a tensor of booleans that is fed.
    pub(crate) fn bools(self, values: &[bool], dims: &[usize]) -> Case {
        let t = Shape::new(dims).and_then(|s| Tensor::bools(values, s)).unwrap_or_else(|e| panic!("{e}"));
        self.arg(Input::Fixed(t))
    }

    /// Sets an attribute.
    pub(crate) fn attr(mut self, name: &'static str, value: impl Into<AttrValue>) -> Case {
        self.attrs.push((name, value.into()));
        self
    }

    /// Converts the differentiable inputs to single precision, for ops without a double-precision kernel.
    pub(crate) fn single(mut self) -> Case {
        for input in self.inputs.iter_mut().flat_map(|a| &mut a.inputs) {
            if let Input::Differentiable(tensor) = input {
                let values: Vec<f32> =
                    tensor.values::<f64>().unwrap_or_default().iter().map(|v| *v as f32).collect();
                *tensor =
                    Tensor::from_slice(&values, tensor.shape().clone()).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        self
    }

    /// Makes the case differentiate the first output only.
    pub(crate) fn first_output(mut self) -> Case {
        self.outputs = 1;
        self
    }
}

/// Returns all cases, including those of `neural_gradient_cases`.
pub(crate) fn all() -> Vec<Case> {
    let mut out = elementwise();
    out.extend(arrays());
    out.extend(reductions());
    out.extend(networks());
    out.extend(sparse());
    out.extend(ragged());
    out.extend(transformed());
    out.extend(matrices());
    out.extend(crate::neural_gradient_cases::all());
    out
}

fn elementwise() -> Vec<Case> {
    let mut out = Vec::new();
    for (op, low, high) in [
        ("Abs", -2.0, 2.0),
        ("Acos", -0.8, 0.8),
        ("Acosh", 1.2, 3.0),
        ("Asin", -0.8, 0.8),
        ("Asinh", -2.0, 2.0),
        ("Atan", -2.0, 2.0),
        ("Atanh", -0.8, 0.8),
        ("BesselI0", -2.0, 2.0),
        ("BesselI0e", 0.2, 2.0),
        ("BesselI1", 0.2, 2.0),
        ("BesselI1e", 0.2, 2.0),
        ("BesselJ0", -2.0, 2.0),
        ("BesselJ1", 0.2, 2.0),
        ("BesselK0", 0.5, 2.0),
        ("BesselK0e", 0.5, 2.0),
        ("BesselK1", 0.5, 2.0),
        ("BesselK1e", 0.5, 2.0),
        ("BesselY0", 0.5, 2.0),
        ("BesselY1", 0.5, 2.0),
        ("Dawsn", -2.0, 2.0),
        ("Erfinv", -0.8, 0.8),
        ("Expint", 0.5, 3.0),
        ("FresnelCos", -2.0, 2.0),
        ("FresnelSin", -2.0, 2.0),
        ("Ndtri", 0.1, 0.9),
        ("Spence", 0.2, 3.0),
        ("CheckNumerics", -2.0, 2.0),
        ("CheckNumericsV2", -2.0, 2.0),
        ("Cos", -2.0, 2.0),
        ("Cosh", -2.0, 2.0),
        ("Elu", -2.0, 2.0),
        ("Erf", -1.5, 1.5),
        ("Erfc", -1.5, 1.5),
        ("Exp", -1.0, 1.0),
        ("Expm1", -1.0, 1.0),
        ("Identity", -2.0, 2.0),
        ("Inv", 0.5, 2.0),
        ("L2Loss", -2.0, 2.0),
        ("Lgamma", 0.5, 4.0),
        ("Log", 0.3, 3.0),
        ("Log1p", -0.5, 2.0),
        ("LogSoftmax", -2.0, 2.0),
        ("Neg", -2.0, 2.0),
        ("Reciprocal", 0.5, 2.0),
        ("Relu", -2.0, 2.0),
        ("Relu6", -4.0, 9.0),
        ("Rsqrt", 0.5, 2.0),
        ("Selu", -2.0, 2.0),
        ("Sigmoid", -2.0, 2.0),
        ("Sign", -2.0, 2.0),
        ("Sin", -2.0, 2.0),
        ("Sinh", -2.0, 2.0),
        ("Snapshot", -2.0, 2.0),
        ("Softmax", -2.0, 2.0),
        ("Softplus", -2.0, 2.0),
        ("Softsign", -2.0, 2.0),
        ("Sqrt", 0.5, 2.0),
        ("Square", -2.0, 2.0),
        ("Tan", -1.0, 1.0),
        ("Tanh", -2.0, 2.0),
    ] {
        let made = case(op).x(&[2, 4], low, high);
        out.push(if op.starts_with("CheckNumerics") { made.attr("message", "of a test") } else { made });
    }
    for (op, x, y) in [
        ("Add", (-2.0, 2.0), (-1.0, 3.0)),
        ("AddV2", (-2.0, 2.0), (-1.0, 3.0)),
        ("Atan2", (-2.0, 2.0), (0.5, 2.0)),
        ("Div", (-2.0, 2.0), (0.5, 2.0)),
        ("DivNoNan", (-2.0, 2.0), (0.5, 2.0)),
        ("FloorMod", (5.1, 5.9), (2.1, 2.4)),
        ("Maximum", (-2.0, 2.0), (-1.7, 2.1)),
        ("Minimum", (-2.0, 2.0), (-1.7, 2.1)),
        ("Mul", (-2.0, 2.0), (0.5, 2.0)),
        ("MulNoNan", (-2.0, 2.0), (0.5, 2.0)),
        ("Pow", (0.5, 2.0), (-1.0, 2.5)),
        ("RealDiv", (-2.0, 2.0), (0.5, 2.0)),
        ("SquaredDifference", (-2.0, 2.0), (0.5, 2.0)),
        ("Sub", (-2.0, 2.0), (0.5, 2.0)),
        ("Xdivy", (0.5, 2.0), (0.7, 3.0)),
        ("Xlogy", (0.5, 2.0), (0.7, 3.0)),
        ("Xlog1py", (0.5, 2.0), (0.7, 3.0)),
    ] {
        for (a, b) in [(&[2, 3][..], &[2, 3][..]), (&[3], &[2, 3]), (&[2, 1, 2], &[3, 1]), (&[2], &[])] {
            out.push(case(op).x(a, x.0, x.1).x(b, y.0, y.1));
        }
    }
    for (op, low, high) in [
        ("EluGrad", -0.9, 2.0),
        ("InvGrad", 0.5, 2.0),
        ("ReciprocalGrad", 0.5, 2.0),
        ("RsqrtGrad", 0.5, 2.0),
        ("SeluGrad", -1.5, 2.0),
        ("SigmoidGrad", 0.1, 0.9),
        ("SqrtGrad", 0.5, 2.0),
        ("TanhGrad", -0.9, 0.9),
        ("Relu6Grad", -4.0, 9.0),
        ("ReluGrad", -2.0, 2.0),
        ("LeakyReluGrad", -2.0, 2.0),
        ("SoftplusGrad", -2.0, 2.0),
    ] {
        // The first input of `ReluGrad` and similar ops is the gradient; the first input of ops such as `TanhGrad` is
        // the function's value.
        let of_features = op.contains("lu") || op.starts_with("Soft");
        let (a, b) = if of_features { ((0.5, 3.0), (low, high)) } else { ((low, high), (0.5, 3.0)) };
        out.push(case(op).x(&[2, 4], a.0, a.1).x(&[2, 4], b.0, b.1));
    }
    let truth = [true, false, false, true, true, false];
    out.extend([
        case("LeakyRelu").x(&[2, 4], -2.0, 2.0).attr("alpha", 0.3f32),
        case("AddN").xs(&[&[2, 2], &[2, 2], &[2, 2]]),
        case("ClipByValue").x(&[2, 4], -2.0, 2.0).x(&[], -0.9, -0.7).x(&[], 0.8, 0.9),
        case("Cast").x(&[3], -2.0, 2.0).attr("DstT", DType::Double),
        case("Select").bools(&truth, &[2, 3]).x(&[2, 3], -2.0, 2.0).x(&[2, 3], 0.0, 1.0),
        case("Select").bools(&truth[..2], &[2]).x(&[2, 3], -2.0, 2.0).x(&[2, 3], 0.0, 1.0),
        case("SelectV2").bools(&truth[..3], &[3]).x(&[2, 1], -2.0, 2.0).x(&[2, 3], 0.0, 1.0),
        case("Print").x(&[2], 0.0, 1.0).list(vec![Input::Fixed(Tensor::scalar(3i32))]).attr("first_n", 0i64),
    ]);
    out
}

fn arrays() -> Vec<Case> {
    let x = |op| case(op).x(&[2, 3], -2.0, 2.0);
    let strided = |op: &'static str, begin: &[i32], end: &[i32], strides: &[i32]| {
        case(op).x(&[4, 5], -2.0, 2.0).k(begin).k(end).k(strides)
    };
    let index = |values: &[i32], dims: &[usize]| Input::Fixed(ints(values, dims));
    vec![
        x("BroadcastTo").k(&[2, 2, 3]),
        case("Merge").xs(&[&[2, 3]]),
        Case { outputs: 1, ..x("Switch").arg(Input::Constant(false.into())) },
        Case { outputs: 1, ..x("_SwitchN").arg(Input::Constant(0i32.into())).attr("num_outs", 2i64) },
        case("BroadcastTo").x(&[2, 1], -2.0, 2.0).k(&[2, 3]),
        case("Concat").i(1).xs(&[&[2, 1], &[2, 3]]),
        case("ConcatV2").xs(&[&[2, 1], &[2, 3]]).i(-1),
        case("ConcatV2").xs(&[&[1, 2], &[3, 2], &[2, 2]]).i(0),
        x("ConjugateTranspose").k(&[1, 0]),
        x("Transpose").k(&[1, 0]),
        case("Transpose").x(&[2, 3, 2], -2.0, 2.0).k(&[2, 0, 1]),
        case("DepthToSpace").x(&[1, 2, 1, 8], -2.0, 2.0).attr("block_size", 2i64),
        case("SpaceToDepth").x(&[1, 2, 4, 2], -2.0, 2.0).attr("block_size", 2i64),
        case("Diag").x(&[3], -2.0, 2.0),
        case("Diag").x(&[2, 2], -2.0, 2.0),
        case("DiagPart").x(&[3, 3], -2.0, 2.0),
        case("DynamicPartition").x(&[4, 2], -2.0, 2.0).k(&[1, 0, 1, 1]).attr("num_partitions", 2i64),
        case("DynamicStitch").list(vec![index(&[0, 2], &[2]), index(&[1], &[1])]).xs(&[&[2, 2], &[1, 2]]),
        case("ParallelDynamicStitch")
            .list(vec![index(&[0, 2], &[2]), index(&[1], &[1])])
            .xs(&[&[2, 2], &[1, 2]]),
        x("EnsureShape").attr("shape", graph::PartialShape::from(&Shape::new(&[2, 3]).unwrap_or_default())),
        x("ExpandDims").i(1),
        case("Fill").k(&[2, 3]).x(&[], 0.5, 1.0),
        case("Gather").x(&[4, 2], -2.0, 2.0).k(&[3, 0, 3]),
        case("GatherV2").x(&[4, 2], -2.0, 2.0).k(&[3, 0, 3]).arg(Input::Constant(Tensor::scalar(0i32))),
        case("GatherV2").x(&[2, 4], -2.0, 2.0).k(&[3, 0, 3]).arg(Input::Constant(Tensor::scalar(1i32))),
        case("GatherV2")
            .x(&[2, 3], -2.0, 2.0)
            .matrix(&[2, 0, 1, 1], &[2, 2])
            .arg(Input::Constant(Tensor::scalar(1i32)))
            .attr("batch_dims", 1i64),
        case("GatherNd").x(&[3, 2], -2.0, 2.0).matrix(&[2, 1, 0, 0, 2, 1], &[3, 2]),
        case("ScatterNd").matrix(&[3, 0], &[2, 1]).x(&[2, 2], -2.0, 2.0).c(&[4, 2]),
        case("IdentityN").xs(&[&[2], &[3]]),
        case("MatrixBandPart").x(&[3, 4], -2.0, 2.0).i(1).i(0),
        case("MirrorPad").x(&[3, 3], -2.0, 2.0).matrix(&[1, 2, 0, 1], &[2, 2]).attr("mode", "REFLECT"),
        case("MirrorPad").x(&[2, 3], -2.0, 2.0).matrix(&[1, 2, 0, 1], &[2, 2]).attr("mode", "SYMMETRIC"),
        case("MirrorPadGrad").x(&[6, 4], -2.0, 2.0).matrix(&[1, 2, 0, 1], &[2, 2]).attr("mode", "REFLECT"),
        case("Pack").xs(&[&[2], &[2], &[2]]).attr("axis", 1i64),
        x("Unpack").attr("num", 3i64).attr("axis", 1i64),
        x("Pad").matrix(&[1, 0, 0, 2], &[2, 2]),
        // The padding value has no gradient, like in TensorFlow.
        x("PadV2").matrix(&[1, 0, 0, 2], &[2, 2]).fixed(&[], 0.5, 1.0),
        x("PlaceholderWithDefault")
            .attr("shape", graph::PartialShape::from(&Shape::new(&[2, 3]).unwrap_or_default())),
        x("Reshape").k(&[3, 2]),
        x("Reverse").bools(&[true, false], &[2]),
        x("ReverseV2").k(&[1]),
        x("Slice").k(&[1, 0]).k(&[1, 2]),
        case("Split").i(1).x(&[2, 4], -2.0, 2.0).attr("num_split", 2i64),
        case("SplitV").x(&[2, 4], -2.0, 2.0).k(&[1, 3]).i(1).attr("num_split", 2i64),
        case("Squeeze").x(&[1, 3, 1], -2.0, 2.0),
        strided("StridedSlice", &[1, 0], &[4, 5], &[2, 2]),
        strided("StridedSlice", &[3, 4], &[0, 0], &[-1, -2]),
        strided("StridedSlice", &[1, 0], &[2, 3], &[1, 1])
            .attr("shrink_axis_mask", 1i64)
            .attr("end_mask", 2i64),
        case("StridedSliceGrad").k(&[4, 5]).k(&[1, 0]).k(&[4, 5]).k(&[2, 2]).x(&[2, 3], -2.0, 2.0),
        x("Tile").k(&[2, 1]),
    ]
}

fn reductions() -> Vec<Case> {
    let mut out = Vec::new();
    for op in ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"] {
        for (dims, axes, keep) in [
            (&[2, 3][..], &[0][..], false),
            (&[2, 3], &[1], true),
            (&[2, 2, 2], &[0, -1], false),
            (&[4], &[], false),
        ] {
            let x = case(op).x(dims, 0.5, 2.5);
            let reduced = if op == "Prod" { x.c(axes) } else { x.k(axes) };
            out.push(reduced.attr("keep_dims", keep));
        }
    }
    for op in ["Cumsum", "Cumprod"] {
        for (exclusive, reverse) in [(false, false), (true, false), (true, true)] {
            out.push(
                case(op).x(&[2, 3], 0.5, 2.0).i(1).attr("exclusive", exclusive).attr("reverse", reverse),
            );
        }
    }
    for reverse in [false, true] {
        out.push(case("CumulativeLogsumexp").x(&[2, 3], -2.0, 2.0).i(1).attr("reverse", reverse));
    }
    for op in ["SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"] {
        out.push(case(op).x(&[4, 2], 0.5, 2.5).k(&[0, 0, 1, 1]));
    }
    for op in ["UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"] {
        out.push(case(op).x(&[4, 2], 0.5, 2.5).k(&[1, 0, 1, 0]).i(2));
    }
    out.push(case("TopK").x(&[2, 4], -2.0, 2.0).attr("k", 2i64));
    out.push(case("TopKV2").x(&[2, 4], -2.0, 2.0).i(2));
    out
}

fn networks() -> Vec<Case> {
    let mut out = Vec::new();
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        let a: &[usize] = if ta { &[3, 2] } else { &[2, 3] };
        let b: &[usize] = if tb { &[2, 3] } else { &[3, 2] };
        out.push(
            case("MatMul").x(a, -2.0, 2.0).x(b, -1.0, 2.0).attr("transpose_a", ta).attr("transpose_b", tb),
        );
        for op in ["BatchMatMul", "BatchMatMulV2"] {
            let (a, b) = ([&[2], a].concat(), [&[2], b].concat());
            out.push(case(op).x(&a, -2.0, 2.0).x(&b, -1.0, 2.0).attr("adj_x", ta).attr("adj_y", tb));
        }
    }
    for (tx, ty) in [(false, false), (true, false), (false, true), (true, true)] {
        let factors = case("BatchMatMulV3").x(&[2, 1, 2, 2], -2.0, 2.0).x(&[2, 2, 2], -1.0, 2.0);
        out.push(factors.attr("Tout", DType::Double).attr("adj_x", tx).attr("adj_y", ty));
    }
    for (lower, adjoint) in [(false, false), (true, false), (false, true), (true, true)] {
        for rhs in [&[3, 2][..], &[2, 3, 1]] {
            let systems = case("BandedTriangularSolve").x(&[2, 3], 1.0, 2.0).x(rhs, -1.0, 1.0);
            out.push(systems.attr("lower", lower).attr("adjoint", adjoint));
        }
    }
    out.push(case("BatchMatMulV2").x(&[2, 1, 2, 2], -2.0, 2.0).x(&[2, 2, 1], -1.0, 2.0));
    out.push(case("BiasAdd").x(&[2, 3], -2.0, 2.0).x(&[3], 0.0, 1.0));
    out.push(case("BiasAdd").x(&[1, 3, 2, 1], -2.0, 2.0).x(&[3], 0.0, 1.0).attr("data_format", "NCHW"));
    out.push(case("BiasAddV1").x(&[2, 3], -2.0, 2.0).x(&[3], 0.0, 1.0));
    out.push(case("BiasAddGrad").x(&[2, 3], -2.0, 2.0));
    for (stride, padding) in [(1i64, "SAME"), (2, "VALID")] {
        let rows = if stride == 1 { 4 } else { 1 };
        let attrs = |c: Case| c.attr("strides", vec![1, stride, stride, 1]).attr("padding", padding);
        let (x, w, y) = ([1, 4, 4, 2], [3, 3, 2, 2], [1, rows, rows, 2]);
        out.push(attrs(case("Conv2D").x(&x, -2.0, 2.0).x(&w, -1.0, 1.5)));
        out.push(attrs(case("Conv2DBackpropInput").c(&[1, 4, 4, 2]).x(&w, -2.0, 2.0).x(&y, -1.0, 1.5)));
        out.push(attrs(case("Conv2DBackpropFilter").x(&x, -2.0, 2.0).c(&[3, 3, 2, 2]).x(&y, -1.0, 1.5)));
    }
    for (stride, padding) in [(1i64, "SAME"), (2, "VALID")] {
        let rows = if stride == 1 { 4 } else { 2 };
        let attrs = |c: Case| {
            c.attr("ksize", vec![1, 2, 2, 1])
                .attr("strides", vec![1, stride, stride, 1])
                .attr("padding", padding)
        };
        let y = [1, rows, rows, 1];
        out.push(attrs(case("AvgPool").x(&[1, 4, 4, 1], -2.0, 2.0)));
        out.push(attrs(case("AvgPoolGrad").c(&[1, 4, 4, 1]).x(&y, -2.0, 2.0)));
        out.push(attrs(case("MaxPool").x(&[1, 4, 4, 1], -2.0, 2.0)));
    }
    // Values increase along rows and columns, so each window's maximum is its last element.
    let rising: Vec<f64> = (0..16).map(f64::from).collect();
    let pooled = [5.0, 7.0, 13.0, 15.0];
    let fixed = |values: &[f64], dims: &[usize]| {
        let shape = Shape::new(dims).unwrap_or_default();
        Input::Fixed(Tensor::from_slice(values, shape).unwrap_or_else(|e| panic!("{e}")))
    };
    for (op, rows) in [("MaxPoolGrad", 2), ("MaxPoolGradGrad", 4)] {
        out.push(
            case(op)
                .arg(fixed(&rising, &[1, 4, 4, 1]))
                .arg(fixed(&pooled, &[1, 2, 2, 1]))
                .x(&[1, rows, rows, 1], -2.0, 2.0)
                .attr("ksize", vec![1i64, 2, 2, 1])
                .attr("strides", vec![1i64, 2, 2, 1])
                .attr("padding", "VALID"),
        );
    }
    let labels = fixed(&[0.2, 0.3, 0.5, 0.6, 0.1, 0.3], &[2, 3]);
    out.push(case("SoftmaxCrossEntropyWithLogits").x(&[2, 3], -2.0, 2.0).arg(labels).first_output());
    out.push(case("SparseSoftmaxCrossEntropyWithLogits").x(&[2, 3], -2.0, 2.0).k(&[2, 0]).first_output());
    out.push(
        case("ReadVariableOp")
            .arg(Input::Variable(tensor(&[2, 3], -2.0, 2.0, 1)))
            .attr("dtype", DType::Double),
    );
    out.push(
        case("ResourceGather")
            .arg(Input::Variable(tensor(&[4, 2], -2.0, 2.0, 1)))
            .k(&[3, 0, 3])
            .attr("dtype", DType::Double),
    );
    out.push(
        case("ResourceGatherNd")
            .arg(Input::Variable(tensor(&[4, 2], -2.0, 2.0, 1)))
            .matrix(&[3, 0, 0, 1, 3, 0], &[3, 2])
            .attr("dtype", DType::Double),
    );
    out
}

/// Returns a fed tensor of 64-bit integers, the element type of a sparse tensor's indices.
fn wide(values: &[i64], dims: &[usize]) -> Input {
    let tensor = Shape::new(dims).and_then(|s| Tensor::from_slice(values, s));
    Input::Fixed(tensor.unwrap_or_else(|e| panic!("{e}")))
}

/// Returns a constant of 64-bit integers.
fn wide_constant(values: &[i64], dims: &[usize]) -> Input {
    match wide(values, dims) {
        Input::Fixed(tensor) => Input::Constant(tensor),
        other => other,
    }
}

fn ragged() -> Vec<Case> {
    let splits = |values: &[i64]| Input::Fixed(Tensor::vector(values).unwrap_or_else(|e| panic!("{e}")));
    let gather = |levels: Vec<Input>, indices: &[i32], dims: &[usize]| {
        let rank = levels.len() + dims.len() - 1;
        let call = case("RaggedGather").list(levels).x(&[5, 2], -2.0, 2.0).matrix(indices, dims);
        call.attr("OUTPUT_RAGGED_RANK", rank as i64)
    };
    let dense = |shape: &[i64], default: &[usize], partitions: Vec<Input>, types: &[&'static str]| {
        let types = AttrList::Str(types.iter().map(|name| (*name).into()).collect());
        let call = case("RaggedTensorToTensor").arg(splits(shape)).x(&[5, 2], -2.0, 2.0);
        call.x(default, 0.5, 1.0).list(partitions).attr("row_partition_types", types)
    };
    vec![
        gather(vec![splits(&[0, 2, 2, 5])], &[2, 0, 2, 1], &[4]),
        gather(vec![splits(&[0, 1, 3]), splits(&[0, 2, 2, 5])], &[1, 1, 0, 1], &[2, 2]),
        case("RaggedTensorToSparse").list(vec![splits(&[0, 1, 3]), splits(&[0, 2, 2, 5])]).x(&[5], -2.0, 2.0),
        dense(&[-1, -1, 2], &[], vec![splits(&[0, 2, 2, 5])], &["ROW_SPLITS"]),
        // Rows that are cut, and a default value for each column.
        dense(&[4, 2, 2], &[2], vec![splits(&[0, 2, 2, 5])], &["ROW_SPLITS"]),
        dense(
            &[-1, -1, -1, 2],
            &[2],
            vec![splits(&[0, 1, 3]), splits(&[0, 2, 2, 5])],
            &["ROW_SPLITS", "ROW_SPLITS"],
        ),
        dense(
            &[-1, 3, 2],
            &[1],
            vec![wide(&[4], &[]), splits(&[0, 0, 2, 2, 2])],
            &["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
        ),
    ]
}

/// Images that are moved by whole pixels: for other transformations the gradient is only near the derivative.
fn transformed() -> Vec<Case> {
    let moved = |op: &'static str| {
        let transforms = [1.0f32, 0.0, 1.0, 0.0, 1.0, -2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0];
        let shape = Shape::new(&[2, 8]).unwrap_or_default();
        let transforms = Tensor::from_slice(&transforms, shape).unwrap_or_else(|e| panic!("{e}"));
        // The kernel computes in single precision.
        case(op).x(&[2, 5, 4, 3], -2.0, 2.0).single().arg(Input::Fixed(transforms)).k(&[4, 5])
    };
    let mut out = Vec::new();
    for interpolation in ["NEAREST", "BILINEAR"] {
        out.push(moved("ImageProjectiveTransformV2").attr("interpolation", interpolation));
        let filled = moved("ImageProjectiveTransformV3").arg(Input::Fixed(Tensor::scalar(0.5f32)));
        out.push(filled.attr("interpolation", interpolation).attr("fill_mode", "CONSTANT"));
    }
    out
}

fn sparse() -> Vec<Case> {
    let at = || wide(&[0, 1, 0, 3, 2, 0], &[3, 2]);
    let shape = || wide(&[3, 4], &[2]);
    let mut out = vec![
        case("SparseToDense").arg(at()).arg(wide_constant(&[3, 4], &[2])).x(&[3], -2.0, 2.0).x(&[], 0.5, 1.0),
        case("SparseReorder").arg(wide(&[2, 0, 0, 1, 1, 1], &[3, 2])).x(&[3], -2.0, 2.0).arg(shape()),
        case("SparseSlice")
            .arg(at())
            .x(&[3], -2.0, 2.0)
            .arg(shape())
            .arg(wide(&[0, 1], &[2]))
            .arg(wide(&[3, 2], &[2])),
        case("SparseFillEmptyRows").arg(at()).x(&[3], -2.0, 2.0).arg(shape()).x(&[], 0.5, 1.0),
        case("RaggedFillEmptyRows").arg(wide(&[0, 3, 0], &[3])).x(&[3], -2.0, 2.0).arg(wide(&[5], &[])).x(
            &[],
            0.5,
            1.0,
        ),
        case("SparseAdd")
            .arg(at())
            .x(&[3], 0.5, 2.0)
            .arg(shape())
            .arg(wide(&[0, 0, 0, 3], &[2, 2]))
            .x(&[2], 0.5, 2.0)
            .arg(shape())
            .fixed(&[], 0.0, 0.0),
        case("SparseTensorDenseAdd").arg(at()).x(&[3], -2.0, 2.0).arg(shape()).x(&[3, 4], -2.0, 2.0),
        case("SparseDenseCwiseMul").arg(at()).x(&[3], -2.0, 2.0).arg(shape()).fixed(&[3, 4], 0.5, 2.0),
    ];
    for keep in [false, true] {
        let reduced = case("SparseReduceSum").arg(at()).x(&[3], -2.0, 2.0).arg(wide_constant(&[3, 4], &[2]));
        out.push(reduced.c(&[1]).attr("keep_dims", keep));
    }
    for op in ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"] {
        out.push(case(op).x(&[4, 2], -2.0, 2.0).k(&[3, 0, 0]).k(&[0, 0, 1]));
    }
    for op in [
        "SparseSegmentSumWithNumSegments",
        "SparseSegmentMeanWithNumSegments",
        "SparseSegmentSqrtNWithNumSegments",
    ] {
        out.push(case(op).x(&[4, 2], -2.0, 2.0).k(&[3, 0, 0]).k(&[0, 0, 2]).i(4));
    }
    out
}

/// Returns indices into a vector, as a matrix with one index per row.
fn at(indices: &[i32]) -> Input {
    Input::Fixed(ints(indices, &[indices.len(), 1]))
}

fn matrices() -> Vec<Case> {
    let mut out = vec![
        case("MatrixDeterminant").x(&[2, 2], -2.0, 2.0),
        case("MatrixDiag").x(&[2, 3], -2.0, 2.0),
        case("MatrixDiagPart").x(&[2, 3, 4], -2.0, 2.0),
        case("ReverseSequence").x(&[2, 3], -2.0, 2.0).k(&[2, 3]).attr("seq_dim", 1i64),
        case("Roll").x(&[3, 2], -2.0, 2.0).k(&[1]).k(&[0]),
        case("Cross").x(&[2, 3], -2.0, 2.0).x(&[2, 3], -2.0, 2.0),
        case("Einsum").xs(&[&[2, 3], &[3, 4]]).attr("equation", "ab,bc->ca"),
        case("Einsum").xs(&[&[2, 3], &[2, 3]]).attr("equation", "ab,ab->a"),
        case("TensorScatterUpdate").x(&[4], -2.0, 2.0).arg(at(&[2, 0])).x(&[2], -2.0, 2.0),
        case("TensorScatterAdd").x(&[4], -2.0, 2.0).arg(at(&[2, 2])).x(&[2], -2.0, 2.0),
        case("TensorScatterSub").x(&[4], -2.0, 2.0).arg(at(&[2, 0])).x(&[2], -2.0, 2.0),
        case("TensorScatterMax").x(&[4], -2.0, 2.0).arg(at(&[2, 0])).x(&[2], 1.5, 3.0),
        case("TensorScatterMin").x(&[4], -2.0, 2.0).arg(at(&[2, 0])).x(&[2], -3.0, 1.5),
        case("ScatterNdNonAliasingAdd").x(&[4], -2.0, 2.0).arg(at(&[2, 0])).x(&[2], -2.0, 2.0),
        case("TensorStridedSliceUpdate").x(&[3, 4], -2.0, 2.0).k(&[1, 0]).k(&[3, 4]).k(&[1, 2]).x(
            &[2],
            -2.0,
            2.0,
        ),
        case("Digamma").x(&[2, 4], 0.5, 3.0),
        case("Zeta").fixed(&[2, 4], 1.5, 3.0).x(&[2, 4], 0.5, 3.0),
        case("Igamma").x(&[2, 4], 0.5, 3.0).x(&[4], 0.5, 6.0),
        case("Igammac").x(&[2, 4], 0.5, 3.0).x(&[4], 0.5, 6.0),
        case("Betainc").fixed(&[2, 4], 0.5, 3.0).fixed(&[2, 4], 0.5, 3.0).x(&[2, 4], 0.1, 0.9),
        case("Polygamma").arg(Input::Fixed(Tensor::scalar(2.0f64))).x(&[2, 4], 0.5, 3.0),
    ];
    for adjoint in [false, true] {
        out.push(case("MatrixInverse").x(&[2, 2], -2.0, 2.0).attr("adjoint", adjoint));
        out.push(case("MatrixSolve").x(&[2, 2], -2.0, 2.0).x(&[2, 3], -1.0, 1.0).attr("adjoint", adjoint));
    }
    out
}
