//! Ops without tensor inputs or with generated results: constants, placeholders, fills, ranges, diagonals.

use super::{Gradient, OpDef, Traits};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Const",
        outputs: &["output: dtype"],
        attrs: &["value: tensor", "dtype: type"],
        infer: constant,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Placeholder",
        outputs: &["output: dtype"],
        attrs: &["dtype: type", "shape: shape = ?"],
        infer: placeholder,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "PlaceholderV2",
        outputs: &["output: dtype"],
        attrs: &["dtype: type", "shape: shape"],
        infer: placeholder,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "PlaceholderWithDefault",
        inputs: &["input: dtype"],
        outputs: &["output: dtype"],
        attrs: &["dtype: type", "shape: shape"],
        infer: placeholder_with_default,
        gradient: Gradient::Defined(|_, _, dz| Ok(vec![dz[0]])),
        traits: Traits { passes_reference: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "Empty",
        inputs: &["shape: int32"],
        outputs: &["output: dtype"],
        attrs: &["dtype: type", "init: bool = false"],
        infer: |infer| {
            let shape = infer.value_as_shape(0)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Fill",
        inputs: &["dims: index_type", "value: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "index_type: {int32, int64} = int32"],
        infer: |infer| {
            infer.input_of_rank(1, 0)?;
            let shape = infer.value_as_shape(0)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|scope, _, dz| Ok(vec![None, dz[0].map(|dz| scope.sum_to_scalar(dz))])),
        ..OpDef::NEW
    },
    OpDef {
        name: "Range",
        inputs: &["start: Tidx", "limit: Tidx", "delta: Tidx"],
        outputs: &["output: Tidx"],
        attrs: &[
            "Tidx: {bfloat16, half, float, double, int8, int16, int32, int64, uint16, uint32, uint64} = int32",
        ],
        infer: range,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LinSpace",
        inputs: &["start: T", "stop: T", "num: Tidx"],
        outputs: &["output: T"],
        attrs: &["T: {bfloat16, half, float, double}", "Tidx: {int32, int64} = int32"],
        infer: |infer| {
            for i in 0..3 {
                infer.input_of_rank(i, 0)?;
            }
            let num = scalar(infer, 2)?;
            if let Some(num) = num
                && num <= 0
            {
                crate::invalid!("Requires num > 0: {num}");
            }
            infer.set(0, PartialShape::vector(num.and_then(|n| usize::try_from(n).ok())));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OneHot",
        inputs: &["indices: TI", "depth: int32", "on_value: T", "off_value: T"],
        outputs: &["output: T"],
        attrs: &["axis: int = -1", "T: type", "TI: {uint8, int8, int32, int64} = int64"],
        infer: one_hot,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ZerosLike",
        inputs: &["x: T"],
        outputs: &["y: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OnesLike",
        inputs: &["x: T"],
        outputs: &["y: T"],
        attrs: &[
            "T: {bfloat16, half, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64, complex64, complex128, bool}",
        ],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Diag",
        inputs: &["diagonal: T"],
        outputs: &["output: T"],
        attrs: &["T: {bfloat16, half, float, double, int32, int64, complex64, complex128}"],
        infer: |infer| {
            if let Some(dims) = infer.input(0).dims() {
                let twice: Vec<Dim> = dims.iter().chain(dims).copied().collect();
                infer.set(0, PartialShape::of_dims(twice));
            }
            Ok(())
        },
        gradient: Gradient::Defined(|scope, _, dz| {
            Ok(vec![dz[0].map(|dz| scope.op("DiagPart").input(dz).output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "DiagPart",
        inputs: &["input: T"],
        outputs: &["diagonal: T"],
        attrs: &["T: {bfloat16, half, float, double, int32, int64, complex64, complex128}"],
        infer: diag_part,
        gradient: Gradient::Defined(|scope, _, dz| {
            Ok(vec![dz[0].map(|dz| scope.op("Diag").input(dz).output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixBandPart",
        inputs: &["input: T", "num_lower: int64", "num_upper: int64"],
        outputs: &["band: T"],
        attrs: &["T: type"],
        infer: same,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixBandPart",
        inputs: &["input: T", "num_lower: Tindex", "num_upper: Tindex"],
        outputs: &["band: T"],
        attrs: &["T: type", "Tindex: {int32, int64} = int64"],
        infer: |infer| {
            let input = infer.input(0);
            if input.rank().is_some_and(|r| r < 2) {
                crate::invalid!("Shape must be at least rank 2 but is rank {}", input.rank().unwrap_or(0));
            }
            infer.set(0, input);
            Ok(())
        },
        gradient: Gradient::Defined(|scope, forward, dz| {
            let band = |dz| {
                let call = scope.op("MatrixBandPart").input(dz);
                call.input(forward.input(1)).input(forward.input(2)).output()
            };
            Ok(vec![dz[0].map(band), None, None])
        }),
        ..OpDef::NEW
    },
];

/// Sets the output's shape to the shape of the first input.
pub(super) fn same(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set(0, shape);
    Ok(())
}

/// Returns the value of input `i`, an integer scalar, if it is known.
pub(super) fn scalar(infer: &Infer<'_>, i: usize) -> Result<Option<i64>> {
    let Some(value) = infer.value(i) else { return Ok(None) };
    match *value.to_i64s()? {
        [value] => Ok(Some(value)),
        _ => Err(Error::invalid(format!("input {i} must be a scalar, not of shape {}", value.shape()))),
    }
}

fn constant(infer: &mut Infer<'_>) -> Result<()> {
    let (value, dtype) = (infer.attr::<Tensor>("value")?, infer.attr::<DType>("dtype")?);
    if value.dtype() != dtype {
        crate::invalid!("a Const of {dtype} has a value of {}", value.dtype());
    }
    infer.set(0, value.shape());
    Ok(())
}

fn placeholder(infer: &mut Infer<'_>) -> Result<()> {
    let shape: PartialShape = infer.attr("shape")?;
    infer.set(0, shape);
    Ok(())
}

fn placeholder_with_default(infer: &mut Infer<'_>) -> Result<()> {
    let shape: PartialShape = infer.attr("shape")?;
    infer.input(0).merge(&shape)?;
    infer.set(0, shape);
    Ok(())
}

fn range(infer: &mut Infer<'_>) -> Result<()> {
    for i in 0..3 {
        infer.input_of_rank(i, 0)?;
    }
    let length = match (infer.value(0), infer.value(1), infer.value(2)) {
        (Some(start), Some(limit), Some(delta)) => Some(range_length(&start, &limit, &delta)?),
        _ => None,
    };
    infer.set(0, PartialShape::vector(length));
    Ok(())
}

/// Returns the number of values of `Range`: from `start` in steps of `delta`, excluding `limit`.
///
/// # Errors
/// `InvalidArgument` for a step of 0 or away from the limit, and for a count that does not fit an `i64`.
pub fn range_length(start: &Tensor, limit: &Tensor, delta: &Tensor) -> Result<usize> {
    let length = if start.dtype().is_floating() {
        let (start, limit, delta) = (to_float(start)?, to_float(limit)?, to_float(delta)?);
        check_range(&start, &limit, &delta, &0.0)?;
        let length = ((limit - start) / delta).abs().ceil();
        if length <= i64::MAX as f64 && length.is_finite() {
            i64::try_from(length as i128).ok()
        } else {
            None
        }
    } else {
        let (start, limit, delta) = (to_integer(start)?, to_integer(limit)?, to_integer(delta)?);
        check_range(&start, &limit, &delta, &0)?;
        let (distance, step) = ((limit - start).unsigned_abs(), delta.unsigned_abs());
        i64::try_from(distance.div_ceil(step)).ok()
    };
    length
        .and_then(|l| usize::try_from(l).ok())
        .ok_or_else(|| Error::invalid(format!("Requires ((limit - start) / delta) <= {}", i64::MAX)))
}

fn check_range<T: PartialOrd + std::fmt::Display>(start: &T, limit: &T, delta: &T, zero: &T) -> Result<()> {
    if delta == zero {
        crate::invalid!("Requires delta != 0: {delta}");
    }
    if delta > zero && start > limit {
        crate::invalid!("Requires start <= limit when delta > 0: {start}/{limit}");
    }
    if delta < zero && start < limit {
        crate::invalid!("Requires start >= limit when delta < 0: {start}/{limit}");
    }
    Ok(())
}

fn to_float(t: &Tensor) -> Result<f64> {
    match t.dtype() {
        DType::Float => t.item::<f32>().map(f64::from),
        DType::Double => t.item::<f64>(),
        DType::Half => t.item::<half::f16>().map(f64::from),
        DType::BFloat16 => t.item::<half::bf16>().map(f64::from),
        other => Err(Error::invalid(format!("expected a floating-point scalar, got {other}"))),
    }
}

fn to_integer(t: &Tensor) -> Result<i128> {
    match t.dtype() {
        DType::Int8 => t.item::<i8>().map(i128::from),
        DType::Int16 => t.item::<i16>().map(i128::from),
        DType::Int32 => t.item::<i32>().map(i128::from),
        DType::Int64 => t.item::<i64>().map(i128::from),
        DType::UInt8 => t.item::<u8>().map(i128::from),
        DType::UInt16 => t.item::<u16>().map(i128::from),
        DType::UInt32 => t.item::<u32>().map(i128::from),
        DType::UInt64 => t.item::<u64>().map(i128::from),
        other => Err(Error::invalid(format!("expected an integer scalar, got {other}"))),
    }
}

fn one_hot(infer: &mut Infer<'_>) -> Result<()> {
    for i in 1..4 {
        infer.input_of_rank(i, 0)?;
    }
    let axis: i64 = infer.attr("axis")?;
    if axis < -1 {
        crate::invalid!("axis must be >= -1");
    }
    let depth = scalar(infer, 1)?;
    if let Some(depth) = depth
        && depth < 0
    {
        crate::invalid!("depth must be non-negative, got: {depth}");
    }
    let indices = infer.input(0);
    let Some(dims) = indices.dims() else { return Ok(()) };
    let at = if axis == -1 { dims.len() } else { axis as usize };
    if at > dims.len() {
        crate::invalid!("Expected axis to be -1 or between [0, {}).  But received: {axis}", dims.len() + 1);
    }
    let mut out = dims.to_vec();
    out.insert(at, depth.map(|d| d as usize));
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn diag_part(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    if dims.is_empty() || dims.len() % 2 != 0 {
        crate::invalid!("Input must have even and non-zero rank, input rank is {}", dims.len());
    }
    let (first, second) = dims.split_at(dims.len() / 2);
    let first = PartialShape::of_dims(first.iter().copied());
    infer.set(0, first.merge(&PartialShape::of_dims(second.iter().copied()))?);
    Ok(())
}
