//! Sums, products and extremes of a sparse tensor and another tensor, sparse or dense.

use super::arrange::placed;
use super::coo::{Coo, matrix, text};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::{Arithmetic, Stored};
use crate::reduce::Modular;
use crate::scatter::has_zero;
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Shape, Tensor};
use half::{bf16, f16};
use num_complex::Complex;
use std::cmp::Ordering;

/// The positions of an index in the values of two sparse tensors; `None` for a tensor that lacks the index.
type Positions = (Option<usize>, Option<usize>);

/// Merges the sorted indices of two sparse tensors: returns the positions of each distinct index.
fn merged(a: &Coo<'_>, b: &Coo<'_>) -> Vec<Positions> {
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::with_capacity(a.len().max(b.len()));
    while i < a.len() || j < b.len() {
        let order = match (i < a.len(), j < b.len()) {
            (true, true) => a.index(i).cmp(b.index(j)),
            (true, false) => Ordering::Less,
            _ => Ordering::Greater,
        };
        let (first, second) = (order.is_le().then_some(i), order.is_ge().then_some(j));
        i += usize::from(first.is_some());
        j += usize::from(second.is_some());
        out.push((first, second));
    }
    out
}

/// Returns a matrix of the indices at `positions`, one row per index.
fn indices_of(a: &Coo<'_>, b: &Coo<'_>, positions: &[Positions]) -> Result<Tensor> {
    let mut rows = Vec::new();
    for (i, j) in positions {
        rows.extend_from_slice(i.map(|i| a.index(i)).or(j.map(|j| b.index(j))).unwrap_or_default());
    }
    matrix(&rows, a.rank(), positions.len())
}

/// A number whose magnitude is compared with a threshold.
trait Magnitude: Arithmetic {
    fn reaches(self, threshold: f64) -> bool;
}

macro_rules! magnitudes {
    ($($t:ty: |$x:ident| $value:expr;)*) => { $(impl Magnitude for $t {
        fn reaches(self, threshold: f64) -> bool {
            let $x = self;
            threshold <= $value
        }
    })* };
}

magnitudes! {
    f32: |x| f64::from(x.abs());
    f64: |x| x.abs();
    f16: |x| x.to_f64().abs();
    bf16: |x| x.to_f64().abs();
    i8: |x| f64::from(x).abs();
    i16: |x| f64::from(x).abs();
    i32: |x| f64::from(x).abs();
    i64: |x| x.unsigned_abs() as f64;
    u8: |x| f64::from(x);
    u16: |x| f64::from(x);
    u32: |x| f64::from(x);
    u64: |x| x as f64;
    Complex<f32>: |x| f64::from(x.norm());
    Complex<f64>: |x| x.norm();
}

fn same_shapes(a: &Coo<'_>, b: &Coo<'_>) -> Result<()> {
    if a.rank() != b.rank() {
        invalid!(
            "Operands do not have the same ranks; got shapes: {} and {}",
            text(&a.shape),
            text(&b.shape)
        );
    }
    if let Some(d) = (0..a.rank()).find(|&d| a.shape[d] != b.shape[d]) {
        invalid!("Operands' shapes do not match: got {} and {} for dimension {d}", a.shape[d], b.shape[d]);
    }
    Ok(())
}

pub(super) fn add(init: &KernelInit<'_>) -> Result<Kernel> {
    let sums = dispatch!(number, init.input_type(1), T => Ok(large_sums::<T> as LargeSums))?;
    Kernel::sync(move |ctx| {
        let (a, b, threshold) = (Coo::of(ctx, 0)?, Coo::of(ctx, 3)?, ctx.input(6)?);
        if threshold.shape().rank() != 0 {
            invalid!("The magnitude threshold must be a scalar: got shape {}", threshold.shape());
        }
        let threshold = dispatch!(real, threshold.dtype(), R => Ok(to_f64(threshold.item::<R>()?)))?;
        same_shapes(&a, &b)?;
        let mut positions = merged(&a, &b);
        let sums = sums(a.values, b.values, &mut positions, threshold)?;
        let (indices, shape) = (indices_of(&a, &b, &positions)?, ctx.input(2)?.clone());
        ctx.set_output(0, indices);
        ctx.set_output(1, sums);
        ctx.set_output(2, shape);
        Ok(())
    })
}

type LargeSums = fn(&Tensor, &Tensor, &mut Vec<Positions>, f64) -> Result<Tensor>;

/// Returns the sums whose magnitude reaches the threshold, and removes the positions of all smaller sums.
fn large_sums<T: Magnitude>(
    x: &Tensor,
    y: &Tensor,
    positions: &mut Vec<Positions>,
    threshold: f64,
) -> Result<Tensor> {
    let (x, y) = (x.values::<T>()?, y.values::<T>()?);
    let mut sums = Vec::new();
    positions.retain(|&(i, j)| {
        let sum = match (i, j) {
            (Some(i), Some(j)) => x[i].plus(y[j]),
            (Some(i), None) => x[i],
            (_, Some(j)) => y[j],
            (None, None) => return false,
        };
        let is_large = sum.reaches(threshold);
        if is_large {
            sums.push(sum);
        }
        is_large
    });
    Ok(Tensor::vector(&sums)?)
}

fn to_f64<R: num_traits::ToPrimitive>(value: R) -> f64 {
    value.to_f64().unwrap_or(f64::NAN)
}

/// Outputs the gradient of each value of both operands: the gradient of its sum, or 0 if the sum was below the
/// threshold and dropped.
pub(super) fn add_grad(ctx: &mut KernelContext<'_>) -> Result<()> {
    let grad = ctx.input(0)?;
    if grad.shape().rank() != 1 {
        invalid!("Input backprop_val_grad should be a vector but received shape: {}", grad.shape());
    }
    let mut tables = Vec::new();
    for i in 1..4 {
        let table = ctx.input(i)?;
        let [count, rank] = *table.shape().dims() else {
            invalid!("Input indices should be matrices but received shape: {}", table.shape());
        };
        tables.push((table.values::<i64>()?, count, rank));
    }
    let (sums, sum_count, rank) = tables[2];
    if tables.iter().any(|t| t.2 != rank) {
        invalid!("The densities of indices differ: {} {} {rank}", tables[0].2, tables[1].2);
    }
    if grad.num_elements() != sum_count {
        invalid!(
            "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): got {} and \
            {sum_count}",
            grad.num_elements()
        );
    }
    let mut out = Vec::new();
    for &(rows, count, _) in &tables[..2] {
        let mut next = 0;
        let mut sources = Vec::with_capacity(count);
        for i in 0..count {
            let index = &rows[i * rank..(i + 1) * rank];
            let sum = |k: usize| &sums[k * rank..(k + 1) * rank];
            while next < sum_count && sum(next) < index {
                next += 1;
            }
            // If several values of an operand have equal indices, only the first gets the gradient.
            let is_found = next < sum_count && sum(next) == index;
            sources.push(is_found.then_some(next));
            next += usize::from(is_found);
        }
        out.push(placed(grad, &sources)?);
    }
    for (i, grad) in out.into_iter().enumerate() {
        ctx.set_output(i, grad);
    }
    Ok(())
}

pub(super) fn add_to_dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let add = dispatch!(number, init.output_type(0), T => Ok(add_at::<T> as AddAt))?;
    Kernel::sync(move |ctx| {
        let (indices, shape) = (widened(ctx.input(0)?)?, widened(ctx.input(2)?)?);
        let a = Coo::new(&indices, ctx.input(1)?, &shape)?;
        let dense = ctx.input(3)?;
        let rank = dense.shape().rank();
        if a.rank() != rank || !(1..=5).contains(&rank) {
            invalid!("Two operands have different ranks; received: {} and {rank}", a.rank());
        }
        if let Some(d) = (0..rank).find(|&d| a.shape[d] != dense.shape()[d] as i64) {
            invalid!(
                "Dimension {d} does not equal (no broadcasting is supported): sparse side {} vs dense side {}",
                a.shape[d],
                dense.shape()[d]
            );
        }
        a.check_bounds()?;
        let places: Vec<usize> = a.rows().map(|index| a.position(index)).collect();
        let values = a.values.clone();
        let mut out = ctx.take_input(3)?;
        add(&mut out, &places, &values)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

type AddAt = fn(&mut Tensor, &[usize], &Tensor) -> Result<()>;

/// Adds each value to the element of `out` at its position in `places`.
fn add_at<T: Modular>(out: &mut Tensor, places: &[usize], values: &Tensor) -> Result<()> {
    fn add<T: Arithmetic>(out: &mut [T], places: &[usize], values: &[T]) {
        for (&place, &value) in places.iter().zip(values) {
            out[place] = out[place].plus(value);
        }
    }
    let (out, values) = (out.values_mut::<T>()?, values.values::<T>()?);
    add::<T::Bits>(bytemuck::cast_slice_mut(out), places, bytemuck::cast_slice(values));
    Ok(())
}

/// Returns indices or sizes as `int64`.
pub(super) fn widened(indices: &Tensor) -> Result<Tensor> {
    match indices.dtype() {
        graph::DType::Int64 => Ok(indices.clone()),
        _ => Ok(Tensor::from_slice(&indices.to_i64s()?, indices.shape().clone())?),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Mul,
    Div,
}

pub(super) fn with_dense(init: &KernelInit<'_>, operation: Operation) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let combine = dispatch!(real, dtype, T => Ok(combine::<T> as Combine))?;
    Kernel::sync(move |ctx| {
        let (a, dense) = (Coo::of(ctx, 0)?, ctx.input(3)?);
        let places = broadcast_places(&a, dense.shape())?;
        if operation == Operation::Div && a.len() > 0 && has_zero(dense)? {
            invalid!("SparseDenseCwiseDiv cannot divide by zero, but input dense tensor contains zero");
        }
        let mut out = ctx.allocate(dtype, Shape::new(&[a.len()])?)?;
        combine(&mut out, a.values, dense, &places, operation)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns, for each value of the sparse operand, its position in the dense operand. The dense operand is broadcast;
/// broadcasting the sparse operand is refused.
fn broadcast_places(a: &Coo<'_>, dims: &Shape) -> Result<Vec<usize>> {
    let rank = a.rank();
    let fits = dims.rank() <= rank
        && dims.iter().rev().zip(a.shape.iter().rev()).all(|(&d, &s)| d == 1 || d as i64 == s);
    if !fits {
        invalid!(
            "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: {} vs. {dims}",
            text(&a.shape)
        );
    }
    a.check_bounds()?;
    let strides = dims.strides();
    let place = |index: &[i64]| {
        let axes = index[rank - dims.rank()..].iter().zip(dims.iter()).zip(&strides);
        axes.filter(|((_, d), _)| **d != 1).map(|((&i, _), &s)| i as usize * s).sum()
    };
    Ok(a.rows().map(place).collect())
}

type Combine = fn(&mut Tensor, &Tensor, &Tensor, &[usize], Operation) -> Result<()>;

/// Combines each value of `x` with the value of `y` at its position in `places`.
fn combine<T: Arithmetic>(
    out: &mut Tensor,
    x: &Tensor,
    y: &Tensor,
    places: &[usize],
    operation: Operation,
) -> Result<()> {
    let (x, y) = (x.values::<T>()?, y.values::<T>()?);
    for ((o, &x), &place) in out.values_mut::<T>()?.iter_mut().zip(x).zip(places) {
        let y = y[place];
        *o = match operation {
            Operation::Add => x.plus(y),
            Operation::Mul => x.times(y),
            Operation::Div => x.over(y),
        };
    }
    Ok(())
}

pub(super) fn extreme(init: &KernelInit<'_>, greatest: bool) -> Result<Kernel> {
    let extremes = dispatch!(real, init.output_type(1), T => Ok(extremes::<T> as Extremes))?;
    Kernel::sync(move |ctx| {
        let operand = |at| Coo::with_any_sizes(ctx.input(at)?, ctx.input(at + 1)?, ctx.input(at + 2)?);
        let (a, b) = (operand(0)?, operand(3)?);
        same_shapes(&a, &b)?;
        if a.rank() == 0 {
            device::invalid!("Tensors must not be empty");
        }
        a.check_bounds()?;
        b.check_bounds()?;
        let positions = merged(&a, &b);
        let values = extremes(a.values, b.values, &positions, greatest)?;
        let indices = indices_of(&a, &b, &positions)?;
        ctx.set_output(0, indices);
        ctx.set_output(1, values);
        Ok(())
    })
}

type Extremes = fn(&Tensor, &Tensor, &[Positions], bool) -> Result<Tensor>;

/// Returns, for each position, the larger or the smaller of the two operands' values; a value that one operand lacks
/// counts as zero.
fn extremes<T: Stored>(x: &Tensor, y: &Tensor, positions: &[Positions], greatest: bool) -> Result<Tensor> {
    let (x, y) = (x.values::<T>()?, y.values::<T>()?);
    let mut values = Vec::with_capacity(positions.len());
    for &(i, j) in positions {
        let (x, y) = (i.map_or(T::ZERO, |i| x[i]), j.map_or(T::ZERO, |j| y[j]));
        // NaN is propagated from either operand.
        let second = if greatest { y > x } else { y < x } || y.partial_cmp(&y).is_none();
        values.push(if second { y } else { x });
    }
    Ok(Tensor::vector(&values)?)
}
