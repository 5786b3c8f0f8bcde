//! Inputs for the ops of the GPU's kernel table: random values, extreme values, and unusual shapes.

#[path = "cases/complex.rs"]
mod complex;
#[path = "cases/copies.rs"]
mod copies;
#[path = "cases/images.rs"]
mod images;
#[path = "cases/lists.rs"]
mod lists;
#[path = "cases/matrices.rs"]
mod matrices;
#[path = "cases/rows.rs"]
mod rows;
#[path = "cases/windows.rs"]
mod windows;

use super::Fallible;
use super::variable_cases;
use graph::{AttrList, AttrValue, DType, Node, Shape, Tensor};

/// The generator SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns random numbers in [-3, 3): integers for integer dtypes, both parts in this range for complex dtypes, and
    /// random booleans.
    pub(crate) fn tensor(&mut self, dtype: DType, dims: &[usize]) -> Fallible<Tensor> {
        if let Some(part) = part_of(dtype) {
            return complex(dtype, self.tensor(part, dims)?, self.tensor(part, dims)?);
        }
        let shape = Shape::new(dims)?;
        let count = shape.num_elements();
        let doubles: Vec<f64> =
            (0..count).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * 6.0 - 3.0).collect();
        self.cast(&Tensor::from_slice(&doubles, shape)?, dtype)
    }

    /// Returns random numbers in [0, 3]; for complex dtypes both parts are in this range.
    fn positive(&mut self, dtype: DType, dims: &[usize]) -> Fallible<Tensor> {
        if let Some(part) = part_of(dtype) {
            return complex(dtype, self.positive(part, dims)?, self.positive(part, dims)?);
        }
        let any = self.tensor(dtype, dims)?;
        Ok(kernels::testing::run_op("Abs", &[any], &[("T", dtype.into())])?.remove(0))
    }

    /// Converts a tensor to a dtype with the op `Cast` on the CPU.
    pub(crate) fn cast(&mut self, tensor: &Tensor, dtype: DType) -> Fallible<Tensor> {
        let attrs = [("SrcT", tensor.dtype().into()), ("DstT", dtype.into())];
        Ok(kernels::testing::run_op("Cast", std::slice::from_ref(tensor), &attrs)?.remove(0))
    }

    /// Returns edge values of a dtype in a column: zeros, tiny values, values beyond the range of other dtypes,
    /// infinities and NaN.
    fn edges(&mut self, dtype: DType) -> Fallible<Tensor> {
        let of_floats = [
            0.0,
            -0.0,
            0.5,
            -1.0,
            1.5,
            -2.5,
            3.7,
            1e-41,
            -1e-310,
            1e-4,
            -300.25,
            65_519.0,
            3e9,
            -1e19,
            1e20,
            3e38,
            -1e300,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let of_integers = [0, 1, -1, 2, 127, -128, 32_767, 65_535, i64::from(i32::MAX), i64::MAX, i64::MIN];
        let is_float = matches!(dtype, DType::Float | DType::Double | DType::Half | DType::BFloat16);
        let all = match is_float {
            true => Tensor::from_slice(&of_floats, Shape::new(&[of_floats.len(), 1])?)?,
            false => Tensor::from_slice(&of_integers, Shape::new(&[of_integers.len(), 1])?)?,
        };
        self.cast(&all, dtype)
    }

    /// Returns the edge values of two dtypes as a column and a row, whose broadcast gives all pairs.
    fn edge_pairs(&mut self, dtypes: [DType; 2]) -> Fallible<Vec<Tensor>> {
        let [column, row] = [self.edges(dtypes[0])?, self.edges(dtypes[1])?];
        let shape = Shape::new(&[1, row.num_elements()])?;
        Ok(vec![column, row.reshaped(shape)?])
    }

    /// Returns random integers in `0..limit`.
    pub(crate) fn indices(&mut self, dtype: DType, dims: &[usize], limit: u64) -> Fallible<Tensor> {
        let shape = Shape::new(dims)?;
        let numbers: Vec<i64> =
            (0..shape.num_elements()).map(|_| (self.bits() % limit.max(1)) as i64).collect();
        self.cast(&Tensor::from_slice(&numbers, shape)?, dtype)
    }

    /// Returns random odd numbers from -3 to 3, none of which is 0.
    fn divisors(&mut self, dtype: DType, dims: &[usize]) -> Fallible<Tensor> {
        let shape = Shape::new(dims)?;
        let numbers: Vec<i64> = (0..shape.num_elements()).map(|_| (self.bits() % 4) as i64 * 2 - 3).collect();
        self.cast(&Tensor::from_slice(&numbers, shape)?, dtype)
    }
}

/// Returns the dtype of the real and imaginary parts of a complex dtype, or `None` for any other dtype.
fn part_of(dtype: DType) -> Option<DType> {
    match dtype {
        DType::Complex64 => Some(DType::Float),
        DType::Complex128 => Some(DType::Double),
        _ => None,
    }
}

fn complex(dtype: DType, real: Tensor, imaginary: Tensor) -> Fallible<Tensor> {
    let attrs = [("T", real.dtype().into()), ("Tout", dtype.into())];
    Ok(kernels::testing::run_op("Complex", &[real, imaginary], &attrs)?.remove(0))
}

fn numbers(values: &[i32]) -> Fallible<Tensor> {
    Ok(Tensor::vector(values)?)
}

/// Shapes of the operand of unary ops.
pub(super) const ONE: &[&[usize]] = &[&[], &[0], &[7], &[3, 5], &[1027], &[2, 0, 3]];
/// Pairs of shapes of the operands of binary ops, which broadcast.
const TWO: &[(&[usize], &[usize])] = &[
    (&[], &[]),
    (&[7], &[7]),
    (&[3, 5], &[5]),
    (&[3, 1], &[1, 5]),
    (&[0, 3], &[3]),
    (&[2, 3, 4], &[3, 1]),
    (&[1025], &[]),
    (&[], &[1025]),
    (&[2, 1, 3, 1, 2], &[1, 4, 1, 5, 1]),
];
const MATRICES: &[&[usize]] = &[&[1, 1], &[4, 3], &[0, 3], &[33, 257], &[5, 1500]];

/// Returns whether the op uses state that outlives a step, or is an argument or result of a function.
fn is_kept(op: &str) -> bool {
    let kept = ["staging", "session_tensor", "mutex", "checkpoint", "queue", "iterator", "dataset_transform"];
    let families = graph::ops::families().iter().filter(|(name, _)| kept.contains(name));
    let mut of_families = families.flat_map(|(_, ops)| ops.iter());
    ["TemporaryVariable", "DestroyTemporaryVariable", "_Arg", "_Retval"].contains(&op)
        || of_families.any(|def| def.name == op)
}

/// Returns sets of inputs for a node; an input that is a variable is given as the variable's value before the node
/// runs. Returns `None` for ops without a result to compare.
pub(crate) fn inputs(node: &Node, random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let types: Vec<DType> = node.input_types()?.iter().map(|port| port.dtype).collect();
    // Collectives need several GPUs and have no CPU kernels.
    if node.op.name().starts_with("Nccl") {
        return Ok(None);
    }
    // Collectives need a group of devices in the session of a server.
    if node.op.name().starts_with("Collective") {
        return Ok(None);
    }
    // State that outlives a step is tested in `device_state.rs` and `elements.rs`.
    if is_kept(node.op.name()) {
        return Ok(None);
    }
    if node.input_types()?.iter().any(|port| port.is_ref_or_resource()) {
        return variable_cases::inputs(node, random).map(Some);
    }
    let t = types.first().copied().unwrap_or(DType::Float);
    let second = types.get(1).copied().unwrap_or(t);
    if let Some(sets) = windows::inputs(node, random)? {
        return Ok(Some(sets));
    }
    if let Some(sets) = lists::inputs(node, random)? {
        return Ok(Some(sets));
    }
    if let Some(sets) = of_family(node.op.name(), &types, random)? {
        return Ok(Some(sets));
    }
    let mut all = Vec::new();
    match node.op.name() {
        // Ops without results to compare: placeholders, variables, and ops without outputs.
        "NoOp" | "Placeholder" | "PlaceholderV2" | "VarHandleOp" | "VariableV2" | "Variable" | "Assert" => {
            return Ok(None);
        }
        // The op's result is the number of the device, so it differs between devices.
        "DeviceIndex" => return Ok(None),
        // Handles cannot be compared; `arrays.rs` compares the contents of the arrays and stacks.
        name if name.starts_with("TensorArray") || name.starts_with("Stack") => return Ok(None),
        "Const" => all.push(vec![]),
        "Sum" | "Prod" | "Max" | "Min" | "Mean" | "EuclideanNorm" | "All" | "Any" => {
            let cases: &[(&[usize], &[i32])] = &[
                (&[], &[]),
                (&[7], &[0]),
                (&[3, 5], &[0]),
                (&[3, 5], &[1]),
                (&[33, 300], &[0]),
                (&[33, 300], &[1]),
                (&[4, 3, 5, 2], &[0, 2]),
                (&[4, 3, 5, 2], &[1, 3]),
                (&[0, 3], &[0]),
                (&[2, 1500], &[-1]),
                // These shapes are so large that the GPU kernel divides the reduction into parts.
                (&[2, 5000], &[-1]),
                (&[300, 35], &[0]),
            ];
            for (dims, axes) in cases {
                let mut x = random.tensor(t, dims)?;
                // With overflows, a product would be infinite or NaN depending on the order of the factors, so all
                // factors have absolute value 1 or are 0.
                if node.op.name() == "Prod" && t.is_complex() {
                    x = kernels::testing::run_op("Sign", &[x], &[("T", t.into())])?.remove(0);
                }
                all.push(vec![x, numbers(axes)?]);
            }
        }
        "ArgMax" | "ArgMin" => {
            for (dims, axis) in [(&[7][..], 0), (&[3, 5], 0), (&[3, 5], -1), (&[2, 3, 4], 1)] {
                all.push(vec![random.tensor(t, dims)?, Tensor::scalar(axis)]);
            }
        }
        "Bitcast" => {
            // If the target dtype is larger, the innermost axis holds the elements that form one element of the target
            // dtype.
            let to = node.attr::<DType>("type")?;
            let ratio = to.size().unwrap_or(1) / t.size().unwrap_or(1);
            all.push(vec![random.tensor(t, &[3, ratio.max(1)])?]);
        }
        "MatMul" => {
            for dims in [[[4, 4]; 2], [[1, 1]; 2], [[0, 0]; 2], [[65, 65]; 2]] {
                all.push(vec![random.tensor(t, &dims[0])?, random.tensor(t, &dims[1])?]);
            }
        }
        "_FusedMatMul" => {
            let factor = |flip, rows, columns| -> Fallible<[usize; 2]> {
                Ok(if node.attr(flip)? { [columns, rows] } else { [rows, columns] })
            };
            for [m, k, n] in [[4, 4, 4], [3, 5, 7], [1, 1, 1], [0, 3, 2], [2, 0, 3], [64, 32, 48]] {
                let dims = [factor("transpose_a", m, k)?, factor("transpose_b", k, n)?];
                let mut inputs = vec![random.tensor(t, &dims[0])?, random.tensor(t, &dims[1])?];
                if types.len() > 2 {
                    inputs.push(random.tensor(t, &[n])?);
                }
                all.push(inputs);
            }
        }
        "_FusedElementwise" => {
            let AttrValue::List(AttrList::Str(ops)) = node.attr("ops")? else { return Ok(None) };
            let has = |part: &[u8]| ops.iter().any(|op| op.ends_with(part));
            let sets: &[&[&[usize]]] = match types.len() {
                1 => &[&[&[]], &[&[0]], &[&[7]], &[&[3, 5]], &[&[1027]]],
                2 if has(b"Grad") => &[&[&[3, 5], &[3, 5]], &[&[1027], &[1027]], &[&[], &[]]],
                2 => &[
                    &[&[7], &[7]],
                    &[&[3, 5], &[5]],
                    &[&[3, 1], &[1, 5]],
                    &[&[2, 3, 4], &[3, 1]],
                    &[&[1025], &[]],
                    &[&[0, 3], &[3]],
                    &[&[2, 1, 3, 1, 2], &[1, 4, 1, 5, 1]],
                ],
                _ if has(b"BiasAdd") => {
                    &[&[&[4, 7], &[7], &[]], &[&[0, 3], &[3], &[]], &[&[33, 257], &[257], &[257]]]
                }
                _ => &[&[&[4, 7], &[7], &[1]], &[&[3, 5, 2], &[5, 1], &[3, 1, 1]], &[&[9], &[9], &[9]]],
            };
            for set in sets {
                all.push(set.iter().map(|dims| random.tensor(t, dims)).collect::<Fallible<_>>()?);
            }
        }
        "BatchMatMul" | "BatchMatMulV2" => {
            let mut dims = vec![[vec![2, 3, 4], vec![2, 4, 5]], [vec![2, 0, 4], vec![2, 4, 5]]];
            if node.op.name() == "BatchMatMulV2" {
                dims.push([vec![3, 1, 2, 4], vec![2, 4, 3]]);
            }
            for mut factors in dims {
                for (dims, flip) in factors.iter_mut().zip(["adj_x", "adj_y"]) {
                    let last = dims.len() - 1;
                    if node.attr(flip)? {
                        dims.swap(last - 1, last);
                    }
                }
                all.push(vec![random.tensor(t, &factors[0])?, random.tensor(t, &factors[1])?]);
            }
        }
        "Softmax" | "LogSoftmax" => {
            for dims in MATRICES {
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        "SoftmaxCrossEntropyWithLogits" => {
            // Labels are probability distributions; with other labels the gradients would differ by large rounding
            // errors.
            let labels = |random: &mut Random, dims: &[usize]| -> Fallible<Tensor> {
                Ok(kernels::testing::run_op("Softmax", &[random.tensor(t, dims)?], &[("T", t.into())])?
                    .remove(0))
            };
            for dims in MATRICES {
                all.push(vec![random.tensor(t, dims)?, labels(random, dims)?]);
            }
            all.push(vec![random.tensor(t, &[4, 3])?, labels(random, &[1, 3])?]);
        }
        "SparseSoftmaxCrossEntropyWithLogits" => {
            for dims in MATRICES {
                all.push(vec![random.tensor(t, dims)?, random.indices(second, &dims[..1], dims[1] as u64)?]);
            }
        }
        "BiasAdd" | "BiasAddV1" => {
            for dims in [&[4, 3][..], &[0, 3], &[2, 5, 4, 7]] {
                let channels = dims.last().copied().unwrap_or(1);
                all.push(vec![random.tensor(t, dims)?, random.tensor(t, &[channels])?]);
            }
        }
        "BiasAddGrad" => {
            for dims in [&[4, 3][..], &[0, 3], &[300, 70], &[2, 5, 4, 7]] {
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        "Transpose" => {
            for (dims, perm) in
                [(&[3, 5][..], &[1, 0][..]), (&[2, 3, 4, 5], &[3, 1, 0, 2]), (&[0, 3], &[1, 0]), (&[7], &[0])]
            {
                all.push(vec![random.tensor(t, dims)?, numbers(perm)?.with_int(second)?]);
            }
        }
        "Tile" => all.push(vec![random.tensor(t, &[2, 3])?, numbers(&[3, 2])?.with_int(second)?]),
        "ReverseV2" => all.push(vec![random.tensor(t, &[2, 3, 4])?, numbers(&[0, 2])?.with_int(second)?]),
        "BroadcastTo" => all.push(vec![random.tensor(t, &[3, 1])?, numbers(&[2, 3, 4])?.with_int(second)?]),
        "Slice" => {
            let (begin, size) = (numbers(&[1, 0])?.with_int(second)?, numbers(&[2, -1])?.with_int(second)?);
            all.push(vec![random.tensor(t, &[4, 5])?, begin, size]);
        }
        "StridedSlice" => {
            let of = |values: &[i32]| numbers(values)?.with_int(second);
            all.push(vec![random.tensor(t, &[6, 5])?, of(&[4, 0])?, of(&[0, 4])?, of(&[-2, 3])?]);
        }
        "StridedSliceGrad" => {
            let of = |values: &[i32]| numbers(values)?.with_int(t);
            let dy = types.get(4).copied().unwrap_or(DType::Float);
            all.push(vec![
                of(&[6, 5])?,
                of(&[4, 0])?,
                of(&[0, 4])?,
                of(&[-2, 3])?,
                random.tensor(dy, &[2, 2])?,
            ]);
        }
        "Pad" | "PadV2" => {
            let paddings = Tensor::from_slice(&[1i32, 2, 0, 3], Shape::new(&[2, 2])?)?.with_int(second)?;
            let mut inputs = vec![random.tensor(t, &[2, 3])?, paddings];
            if node.op.name() == "PadV2" {
                inputs.push(random.tensor(t, &[])?);
            }
            all.push(inputs);
        }
        "ConcatV2" => {
            for (x, y, at) in
                [([2, 3], [2, 5], 1), ([2, 3], [4, 3], 0), ([2, 0], [2, 3], 1), ([3, 16], [3, 32], 1)]
            {
                let at = Tensor::scalar::<i32>(at).with_int(types.last().copied().unwrap_or(DType::Int32))?;
                all.push(vec![random.tensor(t, &x)?, random.tensor(t, &y)?, at]);
            }
        }
        "Concat" => all.push(vec![
            Tensor::scalar(1i32),
            random.tensor(second, &[2, 3])?,
            random.tensor(second, &[2, 4])?,
        ]),
        "Pack" => all.push(vec![random.tensor(t, &[2, 3, 2])?, random.tensor(t, &[2, 3, 2])?]),
        "Unpack" => all.push(vec![random.tensor(t, &[2, 4, 3])?]),
        "Split" => {
            for dims in [[3, 4], [3, 64]] {
                all.push(vec![Tensor::scalar(1i32), random.tensor(second, &dims)?]);
            }
        }
        "SplitV" => all.push(vec![
            random.tensor(t, &[3, 5])?,
            numbers(&[2, -1])?.with_int(second)?,
            Tensor::scalar(1i32),
        ]),
        "Select" => {
            for condition in [&[3, 4][..], &[3], &[]] {
                let condition = random.tensor(DType::Bool, condition)?;
                all.push(vec![condition, random.tensor(second, &[3, 4])?, random.tensor(second, &[3, 4])?]);
            }
        }
        "SelectV2" => {
            let condition = random.tensor(DType::Bool, &[3, 1])?;
            all.push(vec![condition, random.tensor(second, &[4])?, random.tensor(second, &[2, 1, 1])?]);
        }
        "Gather" | "GatherV2" | "GatherNd" => {
            for (dims, at) in [(&[5][..], &[3, 1][..]), (&[5, 4], &[7, 1]), (&[5, 4], &[0, 1])] {
                let mut inputs = vec![random.tensor(t, dims)?, random.indices(second, at, 5)?];
                if node.op.name() == "GatherV2" {
                    inputs.push(Tensor::scalar(0i32).with_int(types[2])?);
                }
                all.push(inputs);
            }
        }
        "ScatterNd" => {
            let shape = numbers(&[5, 2])?.with_int(t)?;
            all.push(vec![random.indices(t, &[4, 1], 5)?, random.tensor(second, &[4, 2])?, shape]);
        }
        "Fill" => all.push(vec![numbers(&[3, 4])?.with_int(t)?, random.tensor(second, &[])?]),
        "OneHot" => {
            let value = types.get(2).copied().unwrap_or(DType::Float);
            let on_off = [random.tensor(value, &[])?, random.tensor(value, &[])?];
            let [on, off] = on_off;
            all.push(vec![random.indices(t, &[3, 2], 4)?, Tensor::scalar(4i32), on, off]);
        }
        "Reshape" => all.push(vec![random.tensor(t, &[2, 6])?, numbers(&[-1, 3])?.with_int(second)?]),
        "ExpandDims" => all.push(vec![random.tensor(t, &[2, 6])?, Tensor::scalar(1i32).with_int(second)?]),
        "EnsureShape" | "PlaceholderWithDefault" => all.push(vec![random.tensor(t, &[2])?]),
        "RandomUniform" | "RandomStandardNormal" | "TruncatedNormal" => {
            for dims in [&[0][..], &[1], &[7], &[1000, 3]] {
                all.push(vec![numbers(dims)?.with_int(t)?]);
            }
        }
        "StatelessRandomUniformInt" => {
            let bound = |value: i32| Tensor::scalar(value).with_int(types[2]);
            let seed = numbers(&[3, 4])?.with_int(second)?;
            all.push(vec![numbers(&[1001])?.with_int(t)?, seed, bound(-5)?, bound(1000)?]);
        }
        "StatelessRandomUniformV2"
        | "StatelessRandomUniformFullIntV2"
        | "StatelessRandomNormalV2"
        | "StatelessTruncatedNormalV2"
        | "StatelessRandomUniformIntV2" => {
            let key = [Tensor::vector(&[7u64])?, Tensor::vector(&[1u64, 2])?, Tensor::scalar(1i32)];
            let mut inputs = vec![numbers(&[1001])?.with_int(t)?];
            inputs.extend(key);
            if node.op.name() == "StatelessRandomUniformIntV2" {
                let bound = |value: i32| Tensor::scalar(value).with_int(types[4]);
                inputs.extend([bound(-5)?, bound(1000)?]);
            }
            all.push(inputs);
        }
        "RandomUniformInt" => {
            let bound = |value: i32| Tensor::scalar(value).with_int(second);
            all.push(vec![numbers(&[1001])?.with_int(t)?, bound(-5)?, bound(1000)?]);
        }
        "StatelessRandomUniform"
        | "StatelessRandomNormal"
        | "StatelessTruncatedNormal"
        | "StatelessRandomUniformFullInt" => {
            all.push(vec![numbers(&[1001])?.with_int(t)?, numbers(&[3, 4])?.with_int(second)?]);
        }
        name if name.trim_start_matches('_').starts_with("FusedBatchNorm") => {
            let axis = if node.attr::<String>("data_format")? == "NCHW" { 1 } else { 3 };
            let sides = node.attr::<i64>("num_side_inputs").unwrap_or(0);
            // The shapes are a small one, one whose elements a thread loads several at a time and always from the same
            // channels, and one that the kernel divides into parts.
            for dims in [&[4, 3, 2, 5][..], &[2, 36, 2, 32], &[8, 3, 200, 3]] {
                let channels = [dims[axis]];
                let x = random.tensor(t, dims)?;
                let mut of = || random.tensor(DType::Float, &channels);
                let (scale, second, third) = (of()?, of()?, of()?);
                let variance: Vec<f32> = (0..channels[0]).map(|c| 0.5 + (c % 7) as f32 * 0.5).collect();
                let variance = Tensor::vector(&variance)?;
                if !name.contains("Grad") {
                    let last = if node.attr("is_training")? { of()? } else { variance };
                    let mut inputs = vec![x, scale, second, third, last];
                    // Each side input has the shape of `x`, or one value per channel.
                    if sides > 0 {
                        let channels = vec![random.tensor(t, &channels)?; sides as usize];
                        all.push([&inputs[..], &channels].concat());
                    }
                    for _ in 0..sides {
                        inputs.push(random.tensor(t, dims)?);
                    }
                    all.push(inputs);
                    continue;
                }
                let mut inputs = vec![random.tensor(t, dims)?, x, scale, second, variance];
                if name == "_FusedBatchNormActivationGrad" {
                    inputs.push(third);
                } else if types.len() > 5 {
                    inputs.push(Tensor::zeros(DType::Float, Shape::scalar())?);
                }
                all.push(inputs);
            }
        }
        "AddN" => all.push(vec![random.tensor(t, &[3, 5])?, random.tensor(t, &[3, 5])?]),
        "BroadcastGradientArgs" | "BroadcastArgs" => {
            all.push(vec![numbers(&[2, 1])?.with_int(t)?, numbers(&[3])?.with_int(t)?]);
        }
        "ConcatOffset" => {
            let of = |values: &[i32]| numbers(values)?.with_int(second);
            all.push(vec![Tensor::scalar(1i32), of(&[2, 3])?, of(&[2, 4])?]);
        }
        "InvertPermutation" => all.push(vec![numbers(&[2, 0, 1])?.with_int(t)?]),
        "Range" => {
            let of = |value: i32| Tensor::scalar(value);
            all.push(vec![of(1), of(9), of(2)]);
        }
        "LinSpace" => {
            let num = Tensor::scalar(7i32).with_int(types[2])?;
            all.push(vec![random.tensor(t, &[])?, random.tensor(t, &[])?, num]);
        }
        "ClipByValue" => {
            let (low, high) = (Tensor::scalar(0i32).with_int(t)?, Tensor::scalar(2i32).with_int(t)?);
            for dims in ONE {
                let x = random.tensor(t, dims)?;
                all.push(vec![x.clone(), low.clone(), high.clone()]);
                all.push(vec![x, random.tensor(t, dims)?, high.clone()]);
            }
            all.push(vec![random.edges(t)?, random.edges(t)?, high]);
        }
        "StatelessRandomGetKeyCounter" | "StatelessRandomGetKeyCounterAlg" => {
            all.push(vec![numbers(&[3, 4])?.with_int(t)?])
        }
        "StatelessRandomGetAlg" => all.push(vec![]),
        name if name.starts_with("QuantizeAndDequantizeV") => {
            for (dims, ends) in [([3, 2, 70], [-1.0, 2.0]), ([2, 3, 1], [0.0, 1.5]), ([4, 2, 0], [-2.5, 1.0])]
            {
                let count = if node.attr::<i64>("axis")? == -1 { None } else { Some(dims[1]) };
                let bound = |end: f64, random: &mut Random| {
                    let bounds: Vec<f64> = (0..count.unwrap_or(1)).map(|i| end * (1.0 + i as f64)).collect();
                    let shape = count.map_or(Ok(Shape::scalar()), |count| Shape::new(&[count]))?;
                    random.cast(&Tensor::from_slice(&bounds, shape)?, t)
                };
                let mut set =
                    vec![random.tensor(t, &dims)?, bound(ends[0], random)?, bound(ends[1], random)?];
                if name.ends_with("Grad") {
                    set.insert(0, random.tensor(t, &dims)?);
                }
                if types.len() > set.len() {
                    set.push(Tensor::scalar(5i32));
                }
                all.push(set);
            }
        }
        name if name.ends_with("Grad") => {
            for dims in ONE {
                all.push(vec![random.tensor(t, dims)?, random.tensor(t, dims)?]);
            }
            let edges = random.edges(t)?;
            let count = edges.num_elements();
            all.push(vec![edges.clone(), random.tensor(t, &[count, 1])?]);
            all.push(vec![random.tensor(t, &[count, 1])?, edges]);
        }
        // A GPU kernel cannot report an integer division by zero or a negative integer exponent, so no input has one.
        "Div" | "FloorDiv" | "TruncateDiv" | "Mod" | "FloorMod" | "TruncateMod" => {
            for (x, y) in TWO {
                all.push(vec![random.tensor(t, x)?, random.divisors(t, y)?]);
            }
        }
        "Pow" if matches!(t, DType::Int32 | DType::Int64) => {
            for (x, y) in TWO {
                all.push(vec![random.tensor(t, x)?, random.indices(t, y, 4)?]);
            }
        }
        "Einsum" => {
            let equation: String = node.attr("equation")?;
            let terms = equation.split("->").next().unwrap_or_default().split(',');
            // The axes with the same label have the same size in all terms.
            let size = |c: char| 2 + c as usize % 4;
            let operand = |term: &str| {
                let dims = term.replace("...", "yz").chars().map(size).collect::<Vec<usize>>();
                random.tensor(t, &dims)
            };
            all.push(terms.map(operand).collect::<Fallible<_>>()?);
        }
        "ApproximateEqual" => {
            for dims in ONE {
                let x = random.tensor(t, dims)?;
                all.extend([vec![x.clone(), x.clone()], vec![x, random.tensor(t, dims)?]]);
            }
            all.push(vec![random.edges(t)?, random.edges(t)?]);
        }
        // The random arguments are positive, so that the terms of the function do not cancel each other.
        "Zeta" | "Polygamma" | "Igamma" | "Igammac" | "IgammaGradA" | "RandomGammaGrad" => {
            for (x, y) in TWO {
                all.push(vec![random.positive(t, x)?, random.positive(t, y)?]);
            }
            let ends =
                [0.0, -1.0, -2.5, 0.5, 1.0, 3.0, 4.0, 40.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            let ends = random.cast(&Tensor::vector(&ends)?, t)?;
            let count = ends.num_elements();
            all.push(vec![ends.clone(), ends.reshaped(Shape::new(&[count, 1])?)?]);
        }
        // The inputs are finite, because the op fails on infinities and NaN.
        "CheckNumerics" | "CheckNumericsV2" => {
            for dims in ONE {
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        "ShapeN" => all.push(vec![random.tensor(t, &[2, 3])?, random.tensor(t, &[4])?]),
        _ => match types.len() {
            1 => {
                for dims in ONE {
                    all.push(vec![random.tensor(t, dims)?]);
                }
                all.push(vec![random.edges(t)?]);
            }
            2 => {
                for (x, y) in TWO {
                    all.push(vec![random.tensor(t, x)?, random.tensor(t, y)?]);
                }
                all.push(random.edge_pairs([t, second])?);
            }
            _ => return Err(format!("no inputs are known for {}", node.op.name()).into()),
        },
    }
    Ok(Some(all))
}

/// Returns the sets of inputs that the op's family in `cases/` provides, or `None` if no family has the op.
fn of_family(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    for family in [copies::inputs, rows::inputs, images::inputs, matrices::inputs, complex::inputs] {
        if let Some(sets) = family(name, types, random)? {
            return Ok(Some(sets));
        }
    }
    Ok(None)
}

/// Conversion of a tensor of integers to another dtype.
trait WithInt: Sized {
    fn with_int(self, dtype: DType) -> Fallible<Tensor>;
}

impl WithInt for Tensor {
    fn with_int(self, dtype: DType) -> Fallible<Tensor> {
        Random(0).cast(&self, dtype)
    }
}
