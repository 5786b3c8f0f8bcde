//! Sampling of distributions that reject candidates: each number has its own part of the stream, so it does not
//! depend on the numbers before it.

use super::distribution::{Distribution, Group, MOST};
use crate::numeric::broadcast::Plan;
use crate::numeric::dispatch::dispatch;
use crate::numeric::philox::Philox;
use crate::numeric::threads::{PARALLEL, for_chunks};
use crate::numeric::widen::Lane;
use crate::plan::random::{RESERVED, Source, shape_input};
use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};
use half::f16;
use num_traits::AsPrimitive;
use std::sync::atomic::{AtomicBool, Ordering};

/// A distribution, with its parameters, from which single numbers are drawn.
pub(super) trait Draw: Sync {
    /// Draws one number from the beginning of a stream; `None` if [`ATTEMPTS`] candidates were rejected, because the
    /// parameters are meaningless.
    fn draw(&self, stream: Philox) -> Option<f64>;

    /// Returns the number of groups of random words between the beginnings of two numbers.
    fn reserved(&self) -> u64 {
        RESERVED as u64
    }
}

/// The maximum number of candidates per number, far more than meaningful parameters ever need.
pub(super) const ATTEMPTS: usize = 1 << 16;

/// Numbers of a distribution, read one at a time; each group is read from its last number to its first, like in
/// TensorFlow.
pub(super) struct ReversedGroups<D> {
    distribution: D,
    group: Group<f64>,
    left: usize,
}

impl<D: Distribution<Out = f64>> ReversedGroups<D> {
    pub(super) fn of(distribution: D) -> ReversedGroups<D> {
        ReversedGroups { distribution, group: [0.0; MOST], left: 0 }
    }

    pub(super) fn next(&mut self, stream: &mut Philox) -> f64 {
        if self.left == 0 {
            self.group = self.distribution.make(stream.next());
            self.left = D::COUNT;
        }
        self.left -= 1;
        self.group[self.left]
    }
}

/// Returns a tensor's numbers, of a dtype in [`super::COUNTED`], as `f64`.
pub(super) fn doubles(tensor: &Tensor) -> Result<Vec<f64>> {
    dispatch!(@arms tensor.dtype(), T => {
        Ok(tensor.values::<T>()?.iter().map(|&v| v.to_wide().as_()).collect())
    }; Half f16, Float f32, Double f64, Int32 i32, Int64 i64)
}

/// Returns the shape of the numbers to draw with parameters of shape `each`. For a stateful op, the shape input is the
/// shape of the numbers per parameter; otherwise, it is the whole shape, which must end with `each`.
pub(super) fn drawn_shape(ctx: &KernelContext<'_>, source: &Source, each: &Shape) -> Result<Shape> {
    let shape = shape_input(ctx, source)?;
    if let Source::Node(_) = source {
        return Ok(Shape::new(&[&shape[..], each].concat())?);
    }
    if shape.num_elements() > 0 && !shape.ends_with(each) {
        invalid!("Shape passed in must end with broadcasted shape {each}, got {shape}.");
    }
    Ok(shape)
}

/// The number of elements of one work item of the thread pool.
const CHUNK: usize = PARALLEL / 32;

/// Returns a tensor of `shape` with a dtype in [`super::COUNTED`]; consecutive elements are drawn from the
/// distributions `draws` in rotation.
pub(super) fn drawn<D: Draw>(
    ctx: &KernelContext<'_>,
    source: &Source,
    dtype: DType,
    shape: Shape,
    draws: &[D],
) -> Result<Tensor> {
    let mut out = ctx.allocate(dtype, shape)?;
    let count = out.num_elements();
    if count == 0 {
        source.check(ctx)?;
        return Ok(out);
    }
    let stream = source.reserve_outputs(ctx, count)?;
    draw_all(stream, &mut out, draws)?;
    Ok(out)
}

/// Fills a tensor like [`drawn`], with numbers from a stream.
pub(super) fn draw_all<D: Draw>(stream: Philox, out: &mut Tensor, draws: &[D]) -> Result<()> {
    let samples = out.num_elements() / draws.len().max(1);
    let has_failed = AtomicBool::new(false);
    dispatch!(@arms out.dtype(), T => {
        for_chunks(out.values_mut::<T>()?, CHUNK, |start, part| {
            for (i, out) in part.iter_mut().enumerate() {
                let (sample, parameters) = ((start + i) / draws.len(), (start + i) % draws.len());
                let place = (parameters * samples + sample) as u64;
                let draw = &draws[parameters];
                let Some(number) = draw.draw(stream.at(place.wrapping_mul(draw.reserved()))) else {
                    has_failed.store(true, Ordering::Relaxed);
                    return;
                };
                *out = T::of_wide(number.as_());
            }
        });
        Ok::<_, Error>(())
    }; Half f16, Float f32, Double f64, Int32 i32, Int64 i64)?;
    if has_failed.into_inner() {
        invalid!("no number can be drawn with these parameters");
    }
    Ok(())
}

/// Returns the shape to which tensors of parameters are broadcast.
pub(super) fn broadcast_shape(parameters: &[&Tensor]) -> Result<Shape> {
    let both = |a: Shape, b: &&Tensor| match Plan::fit(&a, b.shape())? {
        Some(plan) => Ok(plan.shape().clone()),
        None => Err(Error::invalid(format!(
            "Shape of parameters should be broadcastable, got {a} and {}",
            b.shape()
        ))),
    };
    parameters.iter().try_fold(Shape::scalar(), both)
}

/// Returns the index in a tensor of shape `of` of element `at` of the shape to which it is broadcast.
pub(super) fn place_in(of: &Shape, broadcast: &Shape, mut at: usize) -> usize {
    let (mut place, mut stride) = (0, 1);
    let missing = broadcast.rank() - of.rank();
    for axis in (0..broadcast.rank()).rev() {
        let index = at % broadcast[axis];
        at /= broadcast[axis];
        if axis >= missing {
            let size = of[axis - missing];
            place += if size == 1 { 0 } else { index * stride };
            stride *= size;
        }
    }
    place
}

/// Returns the shape of the numbers of an op without a stream of its own, which must end with the shape to which the
/// parameters are broadcast.
pub(super) fn shape_after(ctx: &KernelContext<'_>, source: &Source, each: &Shape) -> Result<Shape> {
    let shape = shape_input(ctx, source)?;
    if !shape.ends_with(each) {
        invalid!("Shape passed in must end with broadcasted shape {each}, got {shape}.");
    }
    Ok(shape)
}
