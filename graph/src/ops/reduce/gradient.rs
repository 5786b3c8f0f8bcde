//! Gradients of reductions: the gradient of a result is distributed over the elements that it was computed from.

use super::super::broadcast::{arrived, constant, number, sizes};
use super::reduced_axes;
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::tensor::Tensor;

type Gradients = Result<Vec<Option<Output>>>;

/// The axes of a reduction: the input that holds the axes, and the axes themselves if they are known when the gradient
/// is built.
struct Axes {
    input: Output,
    /// For each axis of the operand, true if the axis is reduced; `None` if the axes or the rank are known only at run
    /// time.
    reduced: Option<Vec<bool>>,
    keep_dims: bool,
}

impl Axes {
    fn of(scope: &Scope, forward: &Forward) -> Result<Axes> {
        let input = forward.input(1);
        let rank = scope.shape(forward.input(0)).rank();
        let reduced = match (rank, constant_value(scope, input)) {
            (Some(rank), Some(axes)) => Some(reduced_axes(&axes, rank)?),
            _ => None,
        };
        Ok(Axes { input, reduced, keep_dims: forward.attr("keep_dims")? })
    }

    /// Reshapes `y`, which has the reduction's output shape, so that reduced axes of `x` have size 1.
    fn restore(&self, scope: &Scope, x: Output, y: Output) -> Result<Output> {
        if self.keep_dims {
            return Ok(y);
        }
        let Some(reduced) = &self.reduced else { return Ok(self.restore_at_run_time(scope, x, y)) };
        if let Some(shape) = scope.shape(x).as_shape() {
            let kept = shape.iter().zip(reduced).map(|(&d, &reduced)| if reduced { 1 } else { d });
            let kept = sizes(scope, kept)?;
            return Ok(scope.op("Reshape").input(y).input(kept).output());
        }
        // The axes are inserted in ascending order, so that each is inserted at its final position.
        let axes = reduced.iter().enumerate().filter(|(_, r)| **r).map(|(i, _)| i as i32);
        Ok(axes.fold(y, |y, axis| {
            let axis = constant(scope, Tensor::scalar(axis));
            scope.op("ExpandDims").input(y).input(axis).output()
        }))
    }

    /// Like `Axes::restore`, for axes that are known only at run time.
    fn restore_at_run_time(&self, scope: &Scope, x: Output, y: Output) -> Output {
        let scalar = |v: i32| constant(scope, Tensor::scalar(v));
        let shape = scope.op("Shape").input(x).output();
        let rank = scope.op("Size").input(shape).output();
        let axes = scope.op("Reshape").input(self.input);
        let axes =
            axes.input(constant(scope, Tensor::vector(&[-1i32]).unwrap_or(Tensor::scalar(-1i32)))).output();
        let axes = scope.floor_mod(scope.add(scope.cast(axes, DType::Int32), rank), rank);
        let all = scope.op("Range").input(scalar(0)).input(rank).input(scalar(1)).output();
        let ones = scope.op("Fill").input(scope.op("Shape").input(axes).output()).input(scalar(1)).output();
        let kept = scope.op("DynamicStitch").input(vec![all, axes]).input(vec![shape, ones]).output();
        scope.op("Reshape").input(y).input(kept).output()
    }
}

fn constant_value(scope: &Scope, output: Output) -> Option<Tensor> {
    scope.read(|graph, _| {
        let node = graph.node(output.node);
        if node.op.name() == "Const" { node.attr::<Tensor>("value").ok() } else { None }
    })?
}

/// Broadcasts `y` to the shape of `x`.
fn spread(scope: &Scope, x: Output, y: Output) -> Result<Output> {
    let shape = match scope.shape(x).as_shape() {
        Some(shape) if scope.shape(y).as_shape().as_ref() == Some(&shape) => return Ok(y),
        Some(shape) => sizes(scope, shape.iter().copied())?,
        None => scope.op("Shape").input(x).output(),
    };
    Ok(scope.op("BroadcastTo").input(y).input(shape).output())
}

/// Gradient of Sum: `dy` broadcast over the reduced axes.
pub(super) fn sum(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let x = forward.input(0);
    let dy = Axes::of(scope, forward)?.restore(scope, x, arrived(forward, gradients)?)?;
    Ok(vec![Some(spread(scope, x, dy)?), None])
}

/// Gradient of Mean: the gradient of Sum divided by the number of elements per result.
pub(super) fn mean(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let (x, y) = (forward.input(0), forward.output(0));
    let dtype = scope.dtype(x);
    let counts = (scope.shape(x).num_elements(), scope.shape(y).num_elements());
    let count = match counts {
        (Some(inputs), Some(outputs)) => number(scope, dtype, (inputs / outputs.max(1)) as f64)?,
        _ => {
            let elements = |of: Output| {
                let sizes = scope.op("Shape").input(of).attr("out_type", DType::Int64).output();
                let axis = constant(scope, Tensor::scalar(0i32));
                scope.op("Prod").input(sizes).input(axis).output()
            };
            let outputs = scope.maximum(elements(y), constant(scope, Tensor::scalar(1i64)));
            scope.cast(scope.floor_div(elements(x), outputs), dtype)
        }
    };
    let dy = Axes::of(scope, forward)?.restore(scope, x, arrived(forward, gradients)?)?;
    Ok(vec![Some(scope.div(spread(scope, x, dy)?, count)), None])
}

/// Gradient of Max and Min: `dy` divided equally among the elements that equal the result.
pub(super) fn extreme(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let x = forward.input(0);
    let axes = Axes::of(scope, forward)?;
    let y = axes.restore(scope, x, forward.output(0))?;
    let dy = axes.restore(scope, x, arrived(forward, gradients)?)?;
    let chosen = scope.cast(scope.equal(y, x), scope.dtype(x));
    let count = scope.op("Sum").input(chosen).input(axes.input).attr("keep_dims", true).output();
    Ok(vec![Some(scope.mul(scope.div(chosen, count), dy)), None])
}

/// Gradient of EuclideanNorm: `dy * x / y`.
pub(super) fn euclidean_norm(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let x = forward.input(0);
    let axes = Axes::of(scope, forward)?;
    let y = axes.restore(scope, x, forward.output(0))?;
    let dy = axes.restore(scope, x, arrived(forward, gradients)?)?;
    Ok(vec![Some(scope.div(x, scope.div(y, dy))), None])
}

/// Gradient of Prod: `dy` times the product of all other elements. To allow zeros, the products are computed without
/// division: axis by axis, the product of all elements before an element is multiplied by the product of all elements
/// after it.
pub(super) fn prod(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let x = forward.input(0);
    let axes = Axes::of(scope, forward)?;
    let Some(constant_axes) = constant_value(scope, axes.input) else {
        return Err(
            Error::unimplemented("The gradient of Prod needs constant axes").at_node(&forward.node.name)
        );
    };
    let mut partial = scope.conj(x);
    let mut steps = Vec::new();
    for axis in constant_axes.to_i64s()? {
        let axis = constant(scope, Tensor::scalar(axis));
        steps.push((partial, axis));
        partial = scope.op("Prod").input(partial).input(axis).attr("keep_dims", true).output();
    }
    let mut gradient = axes.restore(scope, x, arrived(forward, gradients)?)?;
    for (x, axis) in steps.into_iter().rev() {
        let others = |reverse: bool| {
            let scan = scope.op("Cumprod").input(x).input(axis);
            scan.attr("exclusive", true).attr("reverse", reverse).output()
        };
        gradient = scope.mul(gradient, scope.mul(others(false), others(true)));
    }
    Ok(vec![Some(gradient), None])
}

/// Returns the scan of `x` in the opposite direction.
fn scan_again(scope: &Scope, forward: &Forward, op: &str, x: Output) -> Result<Output> {
    let (exclusive, reverse) = (forward.attr::<bool>("exclusive")?, forward.attr::<bool>("reverse")?);
    let scan = scope.op(op).input(x).input(forward.input(1));
    Ok(scan.attr("exclusive", exclusive).attr("reverse", !reverse).output())
}

/// Gradient of Cumsum: the cumulative sum in the opposite direction.
pub(super) fn cumsum(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    Ok(vec![Some(scan_again(scope, forward, "Cumsum", arrived(forward, gradients)?)?), None])
}

/// Gradient of CumulativeLogsumexp: the reversed sum of `dy * exp(x - y)`. The positive and the negative part of `dy` are
/// summed by their logarithms, because the exponentials may overflow.
pub(super) fn cumulative_logsumexp(
    scope: &Scope,
    forward: &Forward,
    gradients: &[Option<Output>],
) -> Gradients {
    let (x, y, dy) = (forward.input(0), forward.output(0), arrived(forward, gradients)?);
    let zero = number(scope, scope.dtype(x), 0.0)?;
    let part = |dy: Output| -> Result<Output> {
        let log = scope.op("Log").input(scope.op("Maximum").input(dy).input(zero).output()).output();
        Ok(scope.exp(scope.add(scan_again(scope, forward, "CumulativeLogsumexp", scope.sub(log, y))?, x)))
    };
    let dx = scope.sub(part(dy)?, part(scope.neg(dy))?);
    Ok(vec![Some(dx), None])
}

/// Gradient of Cumprod: the reversed cumulative sum of `y * dy`, divided by `x`.
pub(super) fn cumprod(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let weighted = scope.mul(forward.output(0), arrived(forward, gradients)?);
    let sums = scan_again(scope, forward, "Cumsum", weighted)?;
    Ok(vec![Some(scope.div_no_nan(sums, forward.input(0))), None])
}
