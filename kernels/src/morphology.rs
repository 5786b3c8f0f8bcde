//! Greyscale dilation: in each window and channel, the maximum of pixel plus filter element. The gradient goes to the
//! first pixel, or filter element, that gave the maximum. Sums of 16-bit floats are computed in 32 bits, so they are
//! more exact than TensorFlow's.

use crate::numeric::dispatch::{REALS, dispatch};
use crate::numeric::scalar::{Semiring, Stored};
use crate::numeric::threads::for_rows;
use crate::numeric::widen::{Lane, narrowed};
use crate::plan::morphology::Sizes;
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::ops::morphology::{Dilation, DilationAxis};
use graph::{DType, Element, Shape, Tensor};

const REAL: &[(&str, &[DType])] = &[("T", REALS)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of(
        "Dilation2D",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => dilation_kernel(i, write_maxima::<T>)),
    ),
    KernelDef::of(
        "Dilation2DBackpropInput",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => gradient_kernel(i, Operand::Image, gradient::<T>)),
    ),
    KernelDef::of(
        "Dilation2DBackpropFilter",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => gradient_kernel(i, Operand::Filter, gradient::<T>)),
    ),
];

/// A tap of a filter at an output pixel: the offsets of the channels of the input pixel and of the filter element,
/// indexed by [`Operand`].
type Tap = [usize; 2];

/// An input of a dilation, with respect to which a gradient can be computed.
#[derive(Clone, Copy)]
enum Operand {
    Image = 0,
    Filter = 1,
}

impl Sizes {
    /// Returns the image, row and column of an output pixel.
    fn place(&self, pixel: usize) -> (usize, usize, usize) {
        let (line, column) = (pixel / self.columns.output, pixel % self.columns.output);
        (line / self.rows.output, line % self.rows.output, column)
    }

    /// Sets `taps` to the taps of the filter at an output pixel that lie inside the image.
    fn find_taps(&self, pixel: usize, taps: &mut Vec<Tap>) {
        taps.clear();
        let (image, row, column) = self.place(pixel);
        for (tap_y, y) in self.rows.taps(row) {
            let line = (image * self.rows.input + y) * self.columns.input;
            taps.extend(self.columns.taps(column).map(|(tap_x, x)| {
                [(line + x) * self.depth, (tap_y * self.columns.filter + tap_x) * self.depth]
            }));
        }
    }

    /// Returns the offset of the channels that get the gradient of a window in which no tap is a maximum: in the
    /// filter, the channels of the first element; in the image, the channels of the window's first pixel, with negative
    /// coordinates replaced by 0. `None` if that pixel lies outside the image.
    fn default(&self, operand: Operand, pixel: usize) -> Option<usize> {
        if matches!(operand, Operand::Filter) {
            return Some(0);
        }
        let inside = |reach: &DilationAxis, output: usize| {
            usize::try_from(reach.start(output).max(0)).ok().filter(|&at| at < reach.input)
        };
        let (image, row, column) = self.place(pixel);
        let (y, x) = (inside(&self.rows, row)?, inside(&self.columns, column)?);
        Some(((image * self.rows.input + y) * self.columns.input + x) * self.depth)
    }
}

/// A function `(sizes, [image, filter], out)` that sets `out` to the maximum of each window and channel.
type WriteMaxima = fn(&Sizes, [&Tensor; 2], &mut Tensor) -> Result<()>;

fn dilation_kernel(init: &KernelInit<'_>, write_maxima: WriteMaxima) -> Result<Kernel> {
    let dilation = Dilation::of(init.node)?;
    Kernel::sync(move |ctx| {
        let sizes = Sizes::of(ctx, &dilation)?;
        let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
        let mut out = ctx.allocate(input.dtype(), sizes.output()?)?;
        if out.num_elements() > 0 {
            write_maxima(&sizes, [input, filter], &mut out)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

fn write_maxima<T: Stored>(sizes: &Sizes, [input, filter]: [&Tensor; 2], out: &mut Tensor) -> Result<()> {
    let (input, filter) = (input.values::<T>()?, filter.values::<T>()?);
    for_rows(out.values_mut::<T>()?, sizes.depth, |first, out| {
        let mut taps = Vec::new();
        for (i, out) in out.chunks_exact_mut(sizes.depth).enumerate() {
            sizes.find_taps(first + i, &mut taps);
            out.fill(T::LEAST);
            for &[pixel, tap] in &taps {
                for ((greatest, &x), &w) in out.iter_mut().zip(&input[pixel..]).zip(&filter[tap..]) {
                    let sum = x.plus(w);
                    if sum > *greatest {
                        *greatest = sum;
                    }
                }
            }
        }
    });
    Ok(())
}

/// A function `(sizes, operand, shape, [image, filter, output gradient])` that returns the gradient of `operand`, whose
/// shape is `shape`.
type Gradient = fn(&Sizes, Operand, Shape, [&Tensor; 3]) -> Result<Tensor>;

fn gradient_kernel(init: &KernelInit<'_>, operand: Operand, gradient: Gradient) -> Result<Kernel> {
    let dilation = Dilation::of(init.node)?;
    Kernel::sync(move |ctx| {
        let shape = ctx.input(operand as usize)?.shape().clone();
        let sizes = Sizes::of(ctx, &dilation)?;
        sizes.check_out_backprop(ctx)?;
        let inputs = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
        let gradient = gradient(&sizes, operand, shape, inputs)?;
        ctx.set_output(0, gradient);
        Ok(())
    })
}

/// Adds each element of the output's gradient to the element of the operand that gave the maximum.
fn gradient<T: Stored + Lane<Wide: Semiring>>(
    sizes: &Sizes,
    operand: Operand,
    shape: Shape,
    [input, filter, arrived]: [&Tensor; 3],
) -> Result<Tensor> {
    let mut sums = Tensor::zeros(T::Wide::DTYPE, shape)?;
    if arrived.num_elements() > 0 && sums.num_elements() > 0 {
        let to = sums.values_mut::<T::Wide>()?;
        let (input, filter) = (input.values::<T>()?, filter.values::<T>()?);
        let mut taps = Vec::new();
        for (pixel, arrived) in arrived.values::<T>()?.chunks_exact(sizes.depth).enumerate() {
            sizes.find_taps(pixel, &mut taps);
            let default = sizes.default(operand, pixel);
            for (channel, &arrived) in arrived.iter().enumerate() {
                let (mut greatest, mut at) = (T::LEAST, default);
                for tap in &taps {
                    let [pixel, element] = *tap;
                    let sum = input[pixel + channel].plus(filter[element + channel]);
                    if sum > greatest {
                        (greatest, at) = (sum, Some(tap[operand as usize]));
                    }
                }
                if let Some(at) = at {
                    to[at + channel] = to[at + channel].plus(arrived.to_wide());
                }
            }
        }
    }
    narrowed::<T>(sums)
}
