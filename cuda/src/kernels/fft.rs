//! Fourier transforms along the innermost axes.

use super::copy::zeros;
use super::support::{Axes, allocate, function, launch, read, type_name, write};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType::{self, Complex128, Double, Float};
use graph::Shape;
use graph::ops::fft::half_of;
use kernels::numeric::dispatch::COMPLEX;
use kernels::plan::fft::{check_lengths, check_rank, lengths};
use std::sync::Arc;

static SOURCE: Source = Source { file: "fft.cu", text: include_str!("fft.cu") };

const WHOLE: &[(&str, &[DType])] = &[("Tcomplex", COMPLEX)];
const REAL: &[(&str, &[DType])] = &[("Treal", &[Float, Double]), ("Tcomplex", COMPLEX)];

macro_rules! kernels {
    ($($op:literal $inverse:literal $of_real:literal $to_real:literal $axes:literal;)*) => {
        &[$(
            KernelDef::enqueuing($op, WHOLE, |init| complex_transform(init, $axes, FORWARD)),
            KernelDef::enqueuing($inverse, WHOLE, |init| complex_transform(init, $axes, INVERSE)),
            KernelDef {
                host_memory: &["fft_length"],
                ..KernelDef::enqueuing($of_real, REAL, |init| of_real(init, $axes))
            },
            KernelDef {
                host_memory: &["fft_length"],
                ..KernelDef::enqueuing($to_real, REAL, |init| to_real(init, $axes))
            },
        )*]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "FFT" "IFFT" "RFFT" "IRFFT" 1;
    "FFT2D" "IFFT2D" "RFFT2D" "IRFFT2D" 2;
    "FFT3D" "IFFT3D" "RFFT3D" "IRFFT3D" 3;
};

/// The sign of the exponent in a forward and in an inverse transform.
const FORWARD: f64 = -1.0;
const INVERSE: f64 = 1.0;

/// The kernels of a Fourier transform node.
struct Transform {
    load: Arc<Function>,
    pass: Arc<Function>,
    mirror: Arc<Function>,
    store: Arc<Function>,
}

/// The working memory of a transform: the current values, and a buffer of equal size for the next pass.
struct WorkBuffers {
    shape: Shape,
    values: DeviceTensor,
    spare: DeviceTensor,
}

impl WorkBuffers {
    /// Allocates working memory for a shape.
    fn new(ctx: &KernelContext<'_>, shape: Shape) -> Result<WorkBuffers> {
        let of = |shape: &Shape| allocate(ctx, Complex128, shape.clone());
        Ok(WorkBuffers { values: of(&shape)?, spare: of(&shape)?, shape })
    }
}

/// Returns the axes of an iteration over a box of shape `taken` that begins at index 0 of each axis of a tensor
/// of shape `whole`.
fn within(taken: &Shape, whole: &Shape) -> Result<Axes<1>> {
    let strides = whole.strides();
    Axes::new(taken.iter().zip(strides).map(|(&size, step)| (size, [step as isize])))
}

impl Transform {
    /// Loads the kernels of a transform for the node's dtypes.
    fn new(init: &KernelInit<'_>) -> Result<Transform> {
        let of = |named: &str| function(init, &SOURCE, named.to_owned());
        Ok(Transform {
            load: of(&format!("take<{}>", type_name(init.input_type(0))?))?,
            pass: of("pass")?,
            mirror: of("mirror")?,
            store: of(&format!("give<{}>", type_name(init.output_type(0))?))?,
        })
    }

    /// Copies a box of the input, which has this shape and begins at index 0 of each axis, to new working
    /// memory.
    fn load(&self, ctx: &KernelContext<'_>, x: &DeviceTensor, shape: Shape) -> Result<WorkBuffers> {
        let axes = within(&shape, &x.shape)?;
        let work = WorkBuffers::new(ctx, shape)?;
        let n = work.shape.num_elements();
        let arguments = Arguments::new().address(read(x)?).address(write(&work.values)?).count(n);
        launch(ctx, &self.load, n, arguments.structure(axes.words()))?;
        Ok(work)
    }

    /// Transforms the values along an axis.
    fn transform_axis(
        &self,
        ctx: &KernelContext<'_>,
        work: &mut WorkBuffers,
        axis: usize,
        sign: f64,
    ) -> Result<()> {
        let (length, inner) = (work.shape[axis], work.shape[axis + 1..].iter().product());
        let (n, mut done) = (work.shape.num_elements(), 1);
        for factor in factors(length) {
            let arguments = Arguments::new()
                .address(read(&work.values)?)
                .address(write(&work.spare)?)
                .count(n)
                .count(length)
                .count(inner)
                .count(factor)
                .count(done)
                .real(sign);
            launch(ctx, &self.pass, n, arguments)?;
            std::mem::swap(&mut work.values, &mut work.spare);
            done *= factor;
        }
        Ok(())
    }

    /// Returns complete rows, of `shape`, for rows whose first halves are in `work`; a second half is the
    /// mirror image of the first.
    fn mirror(&self, ctx: &KernelContext<'_>, work: &WorkBuffers, shape: Shape) -> Result<WorkBuffers> {
        let whole = WorkBuffers::new(ctx, shape)?;
        let n = whole.shape.num_elements();
        let [length, half] = [&whole.shape, &work.shape].map(|shape| shape.last().copied().unwrap_or(1));
        let arguments = Arguments::new().address(read(&work.values)?).address(write(&whole.values)?);
        launch(ctx, &self.mirror, n, arguments.count(n).count(length).count(half))?;
        Ok(whole)
    }

    /// Copies a box of the working memory, which begins at index 0 of each axis, to `out`, divided by `by`, and
    /// sets output 0 to `out`.
    fn store(
        &self,
        ctx: &mut KernelContext<'_>,
        work: &WorkBuffers,
        out: DeviceTensor,
        by: usize,
    ) -> Result<()> {
        let (axes, n) = (within(&out.shape, &work.shape)?, out.shape.num_elements());
        let arguments = Arguments::new().address(read(&work.values)?).address(write(&out)?).count(n);
        launch(ctx, &self.store, n, arguments.real(by as f64).structure(axes.words()))?;
        ctx.set_output(0, out);
        Ok(())
    }
}

/// Returns the factors of a length, one per pass: eights first, because larger factors take fewer passes over
/// memory, then primes.
fn factors(mut length: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    let mut factor = 8;
    while length > 1 {
        if length.is_multiple_of(factor) {
            factors.push(factor);
            length /= factor;
        } else {
            factor = match factor {
                8 => 4,
                4 => 2,
                2 => 3,
                // A number without a factor up to its square root is prime.
                odd if odd * odd > length => length,
                odd => odd + 2,
            };
        }
    }
    factors
}

/// Makes the kernel of a transform of complex numbers along the last `axes` axes.
fn complex_transform(init: &KernelInit<'_>, axes: usize, sign: f64) -> Result<Kernel> {
    let (transform, dtype) = (Transform::new(init)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        check_rank(&x.shape, axes)?;
        let (first, rank) = (x.shape.rank() - axes, x.shape.rank());
        let out = allocate(ctx, dtype, x.shape.clone())?;
        let by = if sign == INVERSE { x.shape[first..].iter().product() } else { 1 };
        let mut work = transform.load(ctx, x, x.shape.clone())?;
        for axis in first..rank {
            transform.transform_axis(ctx, &mut work, axis, sign)?;
        }
        transform.store(ctx, &work, out, by)
    })
}

/// Makes the kernel of a transform of real numbers. The output has only the first half of the last axis,
/// because the second half is the conjugate mirror image of the first.
fn of_real(init: &KernelInit<'_>, axes: usize) -> Result<Kernel> {
    let (transform, dtype) = (Transform::new(init)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        check_rank(&x.shape, axes)?;
        let lengths = lengths(ctx, axes)?;
        check_lengths(&x.shape, &lengths)?;
        let first = x.shape.rank() - axes;
        let taken = Shape::new(&[&x.shape[..first], &lengths].concat())?;
        let half = half_of(lengths[axes - 1]);
        let shape = Shape::new(&[&taken[..first + axes - 1], &[half]].concat())?;
        if x.shape.num_elements() == 0 || taken.num_elements() == 0 {
            let out = zeros(ctx, dtype, shape)?;
            ctx.set_output(0, out);
            return Ok(());
        }
        let out = allocate(ctx, dtype, shape)?;
        let mut work = transform.load(ctx, x, taken)?;
        for axis in first..first + axes {
            transform.transform_axis(ctx, &mut work, axis, FORWARD)?;
        }
        transform.store(ctx, &work, out, 1)
    })
}

/// Makes the kernel of the inverse transform whose result is real, along the last `axes` axes.
fn to_real(init: &KernelInit<'_>, axes: usize) -> Result<Kernel> {
    let (transform, dtype) = (Transform::new(init)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        check_rank(&x.shape, axes)?;
        let lengths = lengths(ctx, axes)?;
        let mut halves = lengths.clone();
        halves[axes - 1] = lengths[axes - 1] / 2 + 1;
        check_lengths(&x.shape, &halves)?;
        let (first, last) = (x.shape.rank() - axes, x.shape.rank() - 1);
        let [shape, taken] =
            [&lengths, &halves].map(|sizes| Shape::new(&[&x.shape[..first], sizes].concat()));
        let (shape, taken) = (shape?, taken?);
        if x.shape.num_elements() == 0 || shape.num_elements() == 0 {
            let out = zeros(ctx, dtype, shape)?;
            ctx.set_output(0, out);
            return Ok(());
        }
        let out = allocate(ctx, dtype, shape.clone())?;
        let mut work = transform.load(ctx, x, taken)?;
        for axis in first..last {
            transform.transform_axis(ctx, &mut work, axis, INVERSE)?;
        }
        let mut work = transform.mirror(ctx, &work, shape)?;
        transform.transform_axis(ctx, &mut work, last, INVERSE)?;
        transform.store(ctx, &work, out, lengths.iter().product())
    })
}

#[cfg(test)]
mod tests {
    use super::factors;

    #[test]
    fn factors_multiply_to_the_length() {
        for (length, expected) in [
            (1, &[][..]),
            (2, &[2]),
            (512, &[8, 8, 8]),
            (1024, &[8, 8, 8, 2]),
            (360, &[8, 3, 3, 5]),
            (49, &[7, 7]),
            (2 * 1009, &[2, 1009]),
        ] {
            assert_eq!(factors(length), expected, "{length}");
        }
    }
}
