//! Numbers of distributions that draw until they are content: each has a part of the stream of its own, so that what
//! it is does not depend on those before it.

use super::distribution::{Distribution, Group, MOST, RESERVED};
use super::fill::shape_input;
use super::philox::Philox;
use super::source::Source;
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::KernelContext;
use crate::kernels::cpu::dispatch::dispatch;
use crate::kernels::cpu::threads::{PARALLEL, for_chunks};
use crate::kernels::cpu::wide::Lane;
use graph::{DType, Shape, Tensor};
use num_traits::AsPrimitive;
use std::sync::atomic::{AtomicBool, Ordering};

/// How numbers are drawn with certain parameters.
pub(super) trait Draw: Sync {
    /// One number from the beginning of a stream; `None` if [`ATTEMPTS`] did not do, because of senseless parameters.
    fn draw(&self, stream: Philox) -> Option<f64>;
}

/// Far more than sensible parameters ever need.
pub(super) const ATTEMPTS: usize = 1 << 16;

/// Numbers of a distribution one by one, of each group the last one first.
pub(super) struct Backwards<D> {
    distribution: D,
    group: Group<f64>,
    left: usize,
}

impl<D: Distribution<Out = f64>> Backwards<D> {
    pub(super) fn of(distribution: D) -> Backwards<D> {
        Backwards { distribution, group: [0.0; MOST], left: 0 }
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

/// A tensor's numbers, of any real type.
pub(super) fn doubles(tensor: &Tensor) -> Result<Vec<f64>> {
    dispatch!(real, tensor.dtype(), T => Ok(tensor.values::<T>()?.iter().map(|&v| v.to_wide().as_()).collect()))
}

/// The shape of what is drawn with parameters of shape `each`: the numbers of a node's own stream are so many for each
/// parameter; else the shape that is asked for must end with that of the parameters.
pub(super) fn drawn_shape(ctx: &KernelContext<'_>, source: &Source, each: &Shape) -> Result<Shape> {
    let shape = shape_input(ctx, source)?;
    if let Source::Node(_) = source {
        return Ok(Shape::new(&[&shape[..], each].concat())?);
    }
    if !shape.ends_with(each) {
        invalid!("Shape passed in must end with broadcasted shape {each}, got {shape}.");
    }
    Ok(shape)
}

/// Numbers that a thread draws at a time.
const CHUNK: usize = PARALLEL / 32;

/// Draws numbers of this type and shape, those along its last axes with one after the other of the `draws`.
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
    let samples = count / draws.len();
    let stream = source.reserve_outputs(ctx, count)?;
    let is_stuck = AtomicBool::new(false);
    dispatch!(real, dtype, T => {
        for_chunks(out.values_mut::<T>()?, CHUNK, |start, part| {
            for (i, out) in part.iter_mut().enumerate() {
                let (sample, parameters) = ((start + i) / draws.len(), (start + i) % draws.len());
                let place = (parameters * samples + sample) as u64;
                let Some(number) = draws[parameters].draw(stream.at(place.wrapping_mul(RESERVED as u64))) else {
                    is_stuck.store(true, Ordering::Relaxed);
                    return;
                };
                *out = T::of_wide(number.as_());
            }
        });
        Ok::<_, Error>(())
    })?;
    if is_stuck.into_inner() {
        invalid!("no number can be drawn with these parameters");
    }
    Ok(out)
}
