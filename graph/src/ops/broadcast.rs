//! Broadcasting of two operands: the result's shape, and the reduction of gradients back to the shapes of the
//! operands.

use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;
use num_complex::Complex;

/// Sets the output's shape to the broadcast shape of both inputs.
pub(super) fn broadcast(infer: &mut Infer<'_>) -> Result<()> {
    let shape = PartialShape::broadcast(&infer.input(0), &infer.input(1))?;
    infer.set(0, shape);
    Ok(())
}

/// Returns the gradient with respect to output 0; an error if there is none.
pub(super) fn arrived(forward: &Forward, gradients: &[Option<Output>]) -> Result<Output> {
    gradients.first().copied().flatten().ok_or_else(|| {
        Error::invalid(format!("no gradient arrived at output 0 of {}", forward.node.name))
            .at_node(&forward.node.name)
    })
}

/// Adds a scalar constant of a numeric type.
pub(super) fn number(scope: &Scope, dtype: DType, value: f64) -> Result<Output> {
    let tensor = match dtype {
        DType::Float => Tensor::scalar(value as f32),
        DType::Double => Tensor::scalar(value),
        DType::Half => Tensor::scalar(half::f16::from_f64(value)),
        DType::BFloat16 => Tensor::scalar(half::bf16::from_f64(value)),
        DType::Int8 => Tensor::scalar(value as i8),
        DType::Int16 => Tensor::scalar(value as i16),
        DType::Int32 => Tensor::scalar(value as i32),
        DType::Int64 => Tensor::scalar(value as i64),
        DType::UInt8 => Tensor::scalar(value as u8),
        DType::UInt16 => Tensor::scalar(value as u16),
        DType::UInt32 => Tensor::scalar(value as u32),
        DType::UInt64 => Tensor::scalar(value as u64),
        DType::Complex64 => Tensor::scalar(Complex::new(value as f32, 0.0)),
        DType::Complex128 => Tensor::scalar(Complex::new(value, 0.0)),
        other => return Err(Error::unimplemented(format!("no constant of type {other} for a gradient"))),
    };
    Ok(constant(scope, tensor))
}

/// Adds a `Const` node with this value.
pub(super) fn constant(scope: &Scope, value: Tensor) -> Output {
    let dtype = value.dtype();
    scope.op("Const").attr("value", value).attr("dtype", dtype).output()
}

/// Adds a constant vector of sizes or axes for use as an input of other ops; its type is `int32` if the values fit.
pub(super) fn sizes(scope: &Scope, values: impl IntoIterator<Item = usize>) -> Result<Output> {
    let values: Vec<i64> = values.into_iter().map(|v| v as i64).collect();
    let narrow: Option<Vec<i32>> = values.iter().map(|&v| v.try_into().ok()).collect();
    Ok(constant(
        scope,
        match narrow {
            Some(narrow) => Tensor::vector(&narrow)?,
            None => Tensor::vector(&values)?,
        },
    ))
}

/// Reduces the gradients of two operands from the broadcast shape to the shapes of the operands, by summing each
/// gradient over the axes along which its operand was broadcast. If the shapes are known, the axes are computed while
/// the gradient is built; otherwise a `BroadcastGradientArgs` node computes the axes at run time.
pub(super) fn reduce_gradients(
    scope: &Scope,
    operands: [Output; 2],
    gradients: [Option<Output>; 2],
) -> Result<Vec<Option<Output>>> {
    reduce_leading_gradients(scope, operands, gradients, 0)
}

/// Like [`reduce_gradients`], except that the last `trailing` axes are not broadcast, such as the two matrix axes of a
/// batched matrix product.
pub(super) fn reduce_leading_gradients(
    scope: &Scope,
    operands: [Output; 2],
    gradients: [Option<Output>; 2],
    trailing: usize,
) -> Result<Vec<Option<Output>>> {
    let shapes = operands.map(|o| scope.shape(o));
    let mut at_run_time: Option<Vec<Output>> = None;
    let mut out = Vec::with_capacity(2);
    for i in 0..2 {
        let Some(gradient) = gradients[i] else {
            out.push(None);
            continue;
        };
        if let Some(repeats) = static_repeats(&shapes[i], &shapes[1 - i], trailing) {
            out.push(Some(sum_repeats(scope, gradient, operands[i], &repeats)?));
            continue;
        }
        if at_run_time.is_none() {
            let [x, y] = operands.map(|o| leading_sizes(scope, o, trailing));
            let axes = scope.op("BroadcastGradientArgs").input(x?).input(y?).outputs();
            at_run_time = Some(axes);
        }
        let axes = at_run_time.as_ref().and_then(|a| a.get(i)).copied();
        let Some(axes) = axes else { return Ok(gradients.to_vec()) };
        let sum = scope.op("Sum").input(gradient).input(axes).output();
        let shape = scope.op("Shape").input(operands[i]).output();
        out.push(Some(scope.op("Reshape").input(sum).input(shape).output()));
    }
    Ok(out)
}

/// Adds nodes that compute the sizes of all axes of `operand` except the last `trailing` axes.
fn leading_sizes(scope: &Scope, operand: Output, trailing: usize) -> Result<Output> {
    let sizes = scope.op("Shape").input(operand).output();
    if trailing == 0 {
        return Ok(sizes);
    }
    let vector = |v: i32| Ok::<_, Error>(constant(scope, Tensor::vector(&[v])?));
    let (begin, end, step) = (vector(0)?, vector(-(trailing as i32))?, vector(1)?);
    let slice = scope.op("StridedSlice").input(sizes).input(begin).input(end).input(step);
    Ok(slice.attr("begin_mask", 1i64).output())
}

/// The axes along which an operand was broadcast.
struct Repeats {
    /// The number of leading axes that the operand lacks.
    missing: usize,
    /// Axes of the broadcast result along which the operand has size 1.
    single: Vec<usize>,
}

/// Returns the axes along which `own` was broadcast against `other`, if the shapes determine them.
fn static_repeats(own: &PartialShape, other: &PartialShape, trailing: usize) -> Option<Repeats> {
    let leading = |s: &PartialShape| -> Option<Vec<Dim>> {
        let dims = s.dims()?;
        Some(dims[..dims.len().checked_sub(trailing)?].to_vec())
    };
    let (own, other) = (leading(own)?, leading(other)?);
    let rank = own.len().max(other.len());
    let missing = rank - own.len();
    let mut single = Vec::new();
    for axis in missing..rank {
        let theirs = match (axis + other.len()).checked_sub(rank) {
            Some(i) => other[i],
            None => Some(1),
        };
        match (own[axis - missing], theirs) {
            (_, Some(1)) => {}
            (Some(1), _) => single.push(axis),
            (Some(_), _) => {}
            (None, _) => return None,
        }
    }
    Some(Repeats { missing, single })
}

fn sum_repeats(scope: &Scope, gradient: Output, operand: Output, repeats: &Repeats) -> Result<Output> {
    let sum = |x, axes: Vec<usize>, keep_dims: bool| -> Result<Output> {
        let axes = sizes(scope, axes)?;
        Ok(scope.op("Sum").input(x).input(axes).attr("keep_dims", keep_dims).output())
    };
    let Repeats { missing, single } = repeats;
    match (*missing, single.is_empty()) {
        (0, true) => Ok(gradient),
        (0, false) => sum(gradient, single.clone(), true),
        (_, true) => sum(gradient, (0..*missing).collect(), false),
        (_, false) => match scope.shape(operand).as_shape() {
            Some(shape) => {
                let flat = sum(gradient, (0..*missing).chain(single.iter().copied()).collect(), false)?;
                let shape = sizes(scope, shape.iter().copied())?;
                Ok(scope.op("Reshape").input(flat).input(shape).output())
            }
            None => {
                let kept = sum(gradient, single.clone(), true)?;
                sum(kept, (0..*missing).collect(), false)
            }
        },
    }
}
