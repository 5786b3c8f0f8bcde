//! Greyscale dilation: in each window and channel, the maximum of pixel plus filter element. The gradient goes to the
//! first pixel, or filter element, that gave the maximum. Sums of 16-bit floats are computed in 32 bits, so they are
//! more exact than TensorFlow's.

use crate::numeric::dispatch::{REALS, dispatch};
use crate::numeric::scalar::{Semiring, Stored};
use crate::numeric::threads::for_rows;
use crate::numeric::widen::{Lane, narrowed};
use crate::plan::morphology::Sizes;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::morphology::{Dilation, Reach};
use graph::{DType, Element, Shape, Tensor};

const REAL: &[(&str, &[DType])] = &[("T", REALS)];

macro_rules! kernel {
    ($op:literal, $compute:ident) => {
        KernelDef::of($op, REAL, |i| {
            let dilation = Dilation::of(i.node)?;
            dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| $compute::<T>(ctx, &dilation)))
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Dilation2D", dilate),
    kernel!("Dilation2DBackpropInput", input_gradient),
    kernel!("Dilation2DBackpropFilter", filter_gradient),
];

impl Sizes {
    /// Returns the image, row and column of an output pixel.
    fn place(&self, pixel: usize) -> (usize, usize, usize) {
        let (line, column) = (pixel / self.columns.output, pixel % self.columns.output);
        (line / self.rows.output, line % self.rows.output, column)
    }

    /// Returns, for each input pixel under the filter at an output pixel, the offset of the filter element's channels
    /// and the offset of the input pixel's channels.
    fn taps(&self, (image, row, column): (usize, usize, usize)) -> impl Iterator<Item = (usize, usize)> {
        self.rows.taps(row).flat_map(move |(tap_y, y)| {
            let line = (image * self.rows.input + y) * self.columns.input;
            self.columns.taps(column).map(move |(tap_x, x)| {
                ((tap_y * self.columns.filter + tap_x) * self.depth, (line + x) * self.depth)
            })
        })
    }

    /// Returns the offset of the pixel that gets the gradient of a window in which no tap is a maximum: the window's
    /// first tap, moved to row or column 0 if it lies before the image. `None` if that pixel lies outside the image.
    fn default(&self, (image, row, column): (usize, usize, usize)) -> Option<usize> {
        let inside = |reach: &Reach, output: usize| {
            usize::try_from(reach.start(output).max(0)).ok().filter(|&at| at < reach.input)
        };
        let (y, x) = (inside(&self.rows, row)?, inside(&self.columns, column)?);
        Some(((image * self.rows.input + y) * self.columns.input + x) * self.depth)
    }
}

fn dilate<T: Stored>(ctx: &mut KernelContext<'_>, dilation: &Dilation) -> Result<()> {
    let sizes = Sizes::of(ctx, dilation)?;
    let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
    let mut out = ctx.allocate(T::DTYPE, sizes.output()?)?;
    if out.num_elements() > 0 {
        let (input, filter) = (input.values::<T>()?, filter.values::<T>()?);
        for_rows(out.values_mut::<T>()?, sizes.depth, |first, out| {
            for (i, out) in out.chunks_exact_mut(sizes.depth).enumerate() {
                out.fill(T::LEAST);
                for (tap, pixel) in sizes.taps(sizes.place(first + i)) {
                    let sums = input[pixel..].iter().zip(&filter[tap..]).map(|(&x, &w)| x.plus(w));
                    for (greatest, sum) in out.iter_mut().zip(sums) {
                        if sum > *greatest {
                            *greatest = sum;
                        }
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

fn input_gradient<T: Stored + Lane<Wide: Semiring>>(
    ctx: &mut KernelContext<'_>,
    dilation: &Dilation,
) -> Result<()> {
    let shape = ctx.input(0)?.shape().clone();
    gradient::<T>(ctx, dilation, shape, |sizes, place, winner| {
        winner.map(|(_, pixel)| pixel).or_else(|| sizes.default(place))
    })
}

fn filter_gradient<T: Stored + Lane<Wide: Semiring>>(
    ctx: &mut KernelContext<'_>,
    dilation: &Dilation,
) -> Result<()> {
    let shape = ctx.input(1)?.shape().clone();
    gradient::<T>(ctx, dilation, shape, |_, _, winner| Some(winner.map_or(0, |(tap, _)| tap)))
}

/// Adds each element of `out_backprop` to an element of the result. `goes_to` returns the offset of that element's
/// channels, given the filter offset and the pixel offset of the maximum.
fn gradient<T: Stored + Lane<Wide: Semiring>>(
    ctx: &mut KernelContext<'_>,
    dilation: &Dilation,
    shape: Shape,
    goes_to: impl Fn(&Sizes, (usize, usize, usize), Option<(usize, usize)>) -> Option<usize>,
) -> Result<()> {
    let sizes = Sizes::of(ctx, dilation)?;
    sizes.check_out_backprop(ctx)?;
    let (input, filter, arrived) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let mut sums = Tensor::zeros(T::Wide::DTYPE, shape)?;
    if arrived.num_elements() > 0 && sums.num_elements() > 0 {
        let to = sums.values_mut::<T::Wide>()?;
        let (input, filter) = (input.values::<T>()?, filter.values::<T>()?);
        for (pixel, arrived) in arrived.values::<T>()?.chunks_exact(sizes.depth).enumerate() {
            let place = sizes.place(pixel);
            for (channel, &arrived) in arrived.iter().enumerate() {
                let (mut greatest, mut winner) = (T::LEAST, None);
                for (tap, pixel) in sizes.taps(place) {
                    let sum = input[pixel + channel].plus(filter[tap + channel]);
                    if sum > greatest {
                        (greatest, winner) = (sum, Some((tap, pixel)));
                    }
                }
                if let Some(at) = goes_to(&sizes, place, winner) {
                    to[at + channel] = to[at + channel].plus(arrived.to_wide());
                }
            }
        }
    }
    ctx.set_output(0, narrowed::<T>(sums)?);
    Ok(())
}
