//! Fractional pooling: the boundaries of the windows are drawn at random in each step.

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Number;
use crate::random::WordStream;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::ops::pool::Fractional;
use graph::{DType, Shape, Tensor};
use num_traits::AsPrimitive;
use std::ops::Range;

const TYPES: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Double, DType::Int32, DType::Int64])];

macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!(@arms $dtype, $T => $body; Float f32, Double f64, Int32 i32, Int64 i64)
    };
}

pub(super) const MAX: KernelDef = KernelDef::of(
    "FractionalMaxPool",
    TYPES,
    |i| typed!(i.output_type(0), T => forward_kernel(i, write_maxima::<T>)),
);

pub(super) const MEAN: KernelDef = KernelDef::of(
    "FractionalAvgPool",
    TYPES,
    |i| typed!(i.output_type(0), T => forward_kernel(i, write_means::<T>)),
);

pub(super) const MAX_GRAD: KernelDef = KernelDef::of("FractionalMaxPoolGrad", TYPES, |i| {
    let overlapping = i.attr("overlapping")?;
    typed!(i.output_type(0), T => Kernel::sync(move |ctx| max_grad(ctx, overlapping, add_to_maxima::<T>)))
});

pub(super) const MEAN_GRAD: KernelDef = KernelDef {
    host_memory: &["orig_input_tensor_shape"],
    ..KernelDef::of("FractionalAvgPoolGrad", TYPES, |i| {
        let overlapping = i.attr("overlapping")?;
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| mean_grad(ctx, overlapping, divide_equally::<T>)))
    })
};

fn forward_kernel(i: &KernelInit<'_>, fill: Fill) -> Result<Kernel> {
    let attrs = Fractional::of(i.node)?;
    Kernel::sync(move |ctx| forward(ctx, &attrs, fill))
}

/// Returns the boundaries of `output` windows over `input` elements: `output + 1` positions from 0 to `input`.
fn boundaries(input: usize, output: usize, pseudo_random: bool, stream: &WordStream) -> Vec<i64> {
    let (whole, extra) = (input / output, input % output);
    let mut widths = vec![whole as i64; output];
    // A number is drawn even if all widths are equal, so that the stream advances like TensorFlow's.
    if pseudo_random {
        let spread = spread_widths(input, output, whole, stream);
        if extra > 0 {
            widths = spread;
        }
    } else {
        widths[..extra].iter_mut().for_each(|w| *w += 1);
        let mut words = stream.reserve(output);
        for i in 0..output - 1 {
            widths.swap(i, i + words.below((output - i) as u32) as usize);
        }
    }
    let ends = widths.iter().scan(0, |sum, w| {
        *sum += w;
        Some(*sum)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Returns the widths of `output` windows over `input` elements, spread as evenly as possible from a random phase. The
/// phase is bounded so that the first and the last width differ from the others by at most one.
fn spread_widths(input: usize, output: usize, whole: usize, stream: &WordStream) -> Vec<i64> {
    let alpha = input as f64 / output as f64;
    let first = (whole + 2) as f64 / alpha - 1.0;
    let last = (input + 1 - whole) as f64 / alpha - (output - 1) as f64;
    let phase = stream.reserve(1).unit_f64() * first.min(last);
    let at = |i: usize| match i {
        0 => 1,
        i if i == output => input as i64 + 1,
        i => (alpha * (i as f64 + phase)).ceil() as i64,
    };
    (0..output).map(|i| at(i + 1) - at(i)).collect()
}

/// The sizes of an image, and the boundaries of its windows on both axes.
struct Windows<'a> {
    /// Rows, columns and channels of an image.
    sizes: [usize; 3],
    rows: &'a [i64],
    columns: &'a [i64],
    overlapping: bool,
}

impl<'a> Windows<'a> {
    /// Returns the windows whose boundaries are in `rows` and `columns`, after checking the boundaries.
    fn checked(
        shape: &Shape,
        pooled: &Shape,
        rows: &'a Tensor,
        columns: &'a Tensor,
        overlapping: bool,
    ) -> Result<Windows<'a>> {
        let (&[n, h, w, c], &[pooled_n, pooled_h, pooled_w, pooled_c]) = (shape.dims(), pooled.dims()) else {
            device::invalid!("orig_input and out_backprop must be 4-dimensional, got {shape} and {pooled}");
        };
        if n != pooled_n || c != pooled_c {
            device::invalid!("out_backprop has shape {pooled}, which does not fit orig_input's {shape}");
        }
        for (name, given, outputs, size) in [("row", rows, pooled_h, h), ("col", columns, pooled_w, w)] {
            if given.shape().dims() != [outputs + 1] {
                device::invalid!(
                    "{name}_pooling_sequence must have {} elements, has shape {}",
                    outputs + 1,
                    given.shape()
                );
            }
            let ends = given.values::<i64>()?;
            let is_rising = ends.windows(2).all(|w| w[0] < w[1]);
            if !is_rising
                || ends.first().is_some_and(|&f| f < 0)
                || ends.last().is_some_and(|&l| l > size as i64)
            {
                device::invalid!("{name}_pooling_sequence must rise from 0 to {size}, is {ends:?}");
            }
        }
        let (rows, columns) = (rows.values::<i64>()?, columns.values::<i64>()?);
        Ok(Windows { sizes: [h, w, c], rows, columns, overlapping })
    }

    fn range(&self, ends: &[i64], i: usize, size: usize) -> Range<usize> {
        let end = ends[i + 1] as usize + usize::from(self.overlapping);
        ends[i] as usize..end.min(size)
    }

    /// Calls `visit` for each window of each image with the window's number and the offsets of its pixels.
    fn each(&self, batch: usize, visit: &mut dyn FnMut(usize, &[usize])) {
        let [h, w, c] = self.sizes;
        let (mut number, mut pixels) = (0, Vec::new());
        for image in 0..batch {
            for row in 0..self.rows.len() - 1 {
                for column in 0..self.columns.len() - 1 {
                    pixels.clear();
                    for y in self.range(self.rows, row, h) {
                        let columns = self.range(self.columns, column, w);
                        pixels.extend(columns.map(|x| ((image * h + y) * w + x) * c));
                    }
                    visit(number, &pixels);
                    number += 1;
                }
            }
        }
    }
}

/// A function `(windows, batch size, input, out)` that computes a pooling or the gradient of mean pooling.
type Fill = fn(&Windows<'_>, usize, &Tensor, &mut Tensor) -> Result<()>;

fn write_maxima<T: Number>(
    windows: &Windows<'_>,
    batch: usize,
    input: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (values, out, c) = (input.values::<T>()?, out.values_mut::<T>()?, windows.sizes[2]);
    windows.each(batch, &mut |i, pixels| {
        let out = &mut out[i * c..(i + 1) * c];
        out.fill(T::LEAST);
        for &at in pixels {
            out.iter_mut().zip(&values[at..]).for_each(|(o, &v)| *o = if v > *o { v } else { *o });
        }
    });
    Ok(())
}

fn write_means<T: Number>(
    windows: &Windows<'_>,
    batch: usize,
    input: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (values, out, c) = (input.values::<T>()?, out.values_mut::<T>()?, windows.sizes[2]);
    windows.each(batch, &mut |i, pixels| {
        let out = &mut out[i * c..(i + 1) * c];
        out.fill(T::ZERO);
        for &at in pixels {
            out.iter_mut().zip(&values[at..]).for_each(|(o, &v)| *o = o.plus(v));
        }
        out.iter_mut().for_each(|o| *o = o.over_count(pixels.len().max(1)));
    });
    Ok(())
}

fn forward(ctx: &mut KernelContext<'_>, attrs: &Fractional, fill: Fill) -> Result<()> {
    let input = ctx.input(0)?;
    let &[batch, h, w, c] = input.shape().dims() else {
        device::invalid!("tensor_in must be 4-dimensional, got {}", input.shape());
    };
    let outputs = [0, 1].map(|i| attrs.output_size([h, w][i], i));
    let ratios = [1.0, attrs.ratios[0], attrs.ratios[1], 1.0];
    for (i, output) in [batch, outputs[0], outputs[1], c].into_iter().enumerate() {
        if output == 0 {
            device::invalid!(
                "Pooling ratio is higher than input dimension size for dimension {i}. Input dim size: {} pooling \
                 ratio: {}",
                input.shape()[i],
                ratios[i]
            );
        }
    }
    let stream = WordStream::seeded(attrs.seeds);
    let [rows, columns] =
        [(h, outputs[0]), (w, outputs[1])].map(|(i, o)| boundaries(i, o, attrs.pseudo_random, &stream));
    let mut out = ctx.allocate(input.dtype(), Shape::new(&[batch, outputs[0], outputs[1], c])?)?;
    if out.num_elements() > 0 {
        let windows =
            Windows { sizes: [h, w, c], rows: &rows, columns: &columns, overlapping: attrs.overlapping };
        fill(&windows, batch, input, &mut out)?;
    }
    ctx.set_output(0, out);
    for (i, ends) in [(1, rows), (2, columns)] {
        ctx.set_output(i, Tensor::from_slice(&ends, Shape::new(&[ends.len()])?)?);
    }
    Ok(())
}

/// A function `(windows, [images, pooled images, gradients], out)` that adds the gradient of each window to the element
/// of `out` at the window's maximum. Returns whether the pooled images are the maxima of the images.
type AddToMaxima = fn(&Windows<'_>, [&Tensor; 3], &mut Tensor) -> Result<bool>;

fn max_grad(ctx: &mut KernelContext<'_>, overlapping: bool, add_to_maxima: AddToMaxima) -> Result<()> {
    let (input, pooled, grad) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if pooled.shape() != grad.shape() {
        device::invalid!("orig_output has shape {}, out_backprop {}", pooled.shape(), grad.shape());
    }
    let windows = Windows::checked(input.shape(), grad.shape(), ctx.input(3)?, ctx.input(4)?, overlapping)?;
    let mut out = Tensor::zeros(grad.dtype(), input.shape().clone())?;
    if !add_to_maxima(&windows, [input, pooled, grad], &mut out)? {
        device::invalid!("tensor_out_dup is not the same as tensor_out");
    }
    ctx.set_output(0, out);
    Ok(())
}

fn add_to_maxima<T: Number>(
    windows: &Windows<'_>,
    [input, pooled, grad]: [&Tensor; 3],
    out: &mut Tensor,
) -> Result<bool> {
    let (values, grads, sums) = (input.values::<T>()?, grad.values::<T>()?, out.values_mut::<T>()?);
    let (c, largest, mut are_maxima) = (windows.sizes[2], pooled.values::<T>()?, true);
    windows.each(input.shape()[0], &mut |i, pixels| {
        for channel in 0..c {
            // The offset of the window's largest element; of equal elements, the first.
            let first =
                pixels.iter().map(|p| p + channel).reduce(|a, b| if values[b] > values[a] { b } else { a });
            if let Some(at) = first {
                if values[at] != largest[i * c + channel] {
                    are_maxima = false;
                }
                sums[at] = sums[at].plus(grads[i * c + channel]);
            }
        }
    });
    Ok(are_maxima)
}

/// Computes the gradient of mean pooling; shares of gradients are summed in `f64` for every dtype.
fn mean_grad(ctx: &mut KernelContext<'_>, overlapping: bool, divide_equally: Fill) -> Result<()> {
    let (shape, grad) = (ctx.input(0)?, ctx.input(1)?);
    if shape.shape().dims() != [4] {
        device::invalid!(
            "orig_input_tensor_shape must be 1-dimensional and 4 elements, got {}",
            shape.shape()
        );
    }
    let shape = Shape::from_i64(&shape.to_i64s()?)?;
    let windows = Windows::checked(&shape, grad.shape(), ctx.input(2)?, ctx.input(3)?, overlapping)?;
    let mut out = ctx.allocate(grad.dtype(), shape.clone())?;
    divide_equally(&windows, shape[0], grad, &mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

fn divide_equally<T: Number + AsPrimitive<f64>>(
    windows: &Windows<'_>,
    batch: usize,
    grad: &Tensor,
    out: &mut Tensor,
) -> Result<()>
where
    f64: AsPrimitive<T>,
{
    let mut sums = Tensor::zeros(DType::Double, out.shape().clone())?;
    let (grads, sums) = (grad.values::<T>()?, sums.values_mut::<f64>()?);
    let c = windows.sizes[2];
    windows.each(batch, &mut |i, pixels| {
        for &at in pixels {
            for (s, g) in sums[at..at + c].iter_mut().zip(&grads[i * c..]) {
                *s += g.as_() / pixels.len() as f64;
            }
        }
    });
    out.values_mut::<T>()?.iter_mut().zip(&*sums).for_each(|(o, s)| *o = s.as_());
    Ok(())
}
