//! Fourier transforms along the innermost axes, computed in double precision.

use crate::numeric::dispatch::COMPLEX;
use crate::plan::fft::{check_lengths, check_rank, lengths};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::DType::{self, *};
use graph::ops::fft::half_of;
use graph::{Shape, Tensor};
use num_complex::Complex;
use rustfft::{FftDirection, FftPlanner};

type C = Complex<f64>;

const WHOLE: &[(&str, &[DType])] = &[("Tcomplex", COMPLEX)];
const REAL: &[(&str, &[DType])] = &[("Treal", &[Float, Double]), ("Tcomplex", COMPLEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("FFT", WHOLE, |_| complex_to_complex(1, FftDirection::Forward)),
    KernelDef::of("FFT2D", WHOLE, |_| complex_to_complex(2, FftDirection::Forward)),
    KernelDef::of("FFT3D", WHOLE, |_| complex_to_complex(3, FftDirection::Forward)),
    KernelDef::of("IFFT", WHOLE, |_| complex_to_complex(1, FftDirection::Inverse)),
    KernelDef::of("IFFT2D", WHOLE, |_| complex_to_complex(2, FftDirection::Inverse)),
    KernelDef::of("IFFT3D", WHOLE, |_| complex_to_complex(3, FftDirection::Inverse)),
    KernelDef::of("RFFT", REAL, |i| real_to_complex(i, 1)),
    KernelDef::of("RFFT2D", REAL, |i| real_to_complex(i, 2)),
    KernelDef::of("RFFT3D", REAL, |i| real_to_complex(i, 3)),
    KernelDef::of("IRFFT", REAL, |i| complex_to_real(i, 1)),
    KernelDef::of("IRFFT2D", REAL, |i| complex_to_real(i, 2)),
    KernelDef::of("IRFFT3D", REAL, |i| complex_to_real(i, 3)),
];

/// Applies the one-dimensional transform to every line of elements along `axis`, in place.
fn transform(values: &mut [C], dims: &[usize], axis: usize, direction: FftDirection) {
    let (len, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    if values.is_empty() {
        return;
    }
    let plan = FftPlanner::new().plan_fft(len, direction);
    let mut scratch = vec![C::default(); plan.get_inplace_scratch_len()];
    let mut line = vec![C::default(); len];
    for block in values.chunks_exact_mut(len * inner) {
        for first in 0..inner {
            line.iter_mut().zip(block[first..].iter().step_by(inner)).for_each(|(l, v)| *l = *v);
            plan.process_with_scratch(&mut line, &mut scratch);
            block[first..].iter_mut().step_by(inner).zip(&line).for_each(|(v, l)| *v = *l);
        }
    }
}

/// Returns the elements of a tensor of any float or complex type as complex numbers in double precision.
fn read(input: &Tensor) -> Result<Vec<C>> {
    Ok(match input.dtype() {
        Float => input.values::<f32>()?.iter().map(|&v| C::new(v.into(), 0.0)).collect(),
        Double => input.values::<f64>()?.iter().map(|&v| C::new(v, 0.0)).collect(),
        Complex64 => {
            input.values::<Complex<f32>>()?.iter().map(|v| C::new(v.re.into(), v.im.into())).collect()
        }
        _ => input.values::<C>()?.to_vec(),
    })
}

/// Returns `values`, divided by `by`, as a tensor of dtype `dtype`; a real dtype keeps only the real parts.
fn write(dtype: DType, shape: Shape, values: &[C], by: f64) -> Result<Tensor> {
    let mut out = Tensor::unspecified(dtype, shape)?;
    match dtype {
        Float => out.values_mut::<f32>()?.iter_mut().zip(values).for_each(|(o, v)| *o = (v.re / by) as f32),
        Double => out.values_mut::<f64>()?.iter_mut().zip(values).for_each(|(o, v)| *o = v.re / by),
        Complex64 => {
            let narrow = |v: &C| Complex::new((v.re / by) as f32, (v.im / by) as f32);
            out.values_mut::<Complex<f32>>()?.iter_mut().zip(values).for_each(|(o, v)| *o = narrow(v));
        }
        _ => out.values_mut::<C>()?.iter_mut().zip(values).for_each(|(o, v)| *o = v / by),
    }
    Ok(out)
}

/// Makes the kernel of a transform of complex tensors.
fn complex_to_complex(axes: usize, direction: FftDirection) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        check_rank(input.shape(), axes)?;
        let shape = input.shape();
        let mut values = read(input)?;
        let first = shape.rank() - axes;
        (first..shape.rank()).for_each(|axis| transform(&mut values, shape, axis, direction));
        let by = match direction {
            FftDirection::Forward => 1.0,
            FftDirection::Inverse => shape[first..].iter().product::<usize>() as f64,
        };
        let out = write(input.dtype(), shape.clone(), &values, by)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns `values` with each of the innermost axes cut to the size in `taken`.
fn cropped(values: &[C], shape: &[usize], taken: &[usize]) -> Vec<C> {
    let first = shape.len() - taken.len();
    let mut dims = shape.to_vec();
    let mut values = values.to_vec();
    for (axis, &keep) in (first..).zip(taken) {
        let inner: usize = dims[axis + 1..].iter().product();
        let step = dims[axis] * inner;
        if keep < dims[axis] && step > 0 {
            values = values.chunks_exact(step).flat_map(|block| &block[..keep * inner]).copied().collect();
        }
        dims[axis] = keep;
    }
    values
}

/// Makes the kernel of a transform of real tensors. Only the first half of the last axis is computed, because the other
/// half is its complex conjugate in reverse.
fn real_to_complex(init: &KernelInit<'_>, axes: usize) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        check_rank(input.shape(), axes)?;
        let lengths = lengths(ctx, axes)?;
        check_lengths(input.shape(), &lengths)?;
        let first = input.shape().rank() - axes;
        let mut dims = [&input.shape()[..first], &lengths].concat();
        let last = dims.len() - 1;
        let half = half_of(lengths[axes - 1]);
        let shape = Shape::new(&[&dims[..last], &[half]].concat())?;
        if input.num_elements() == 0 || shape.num_elements() == 0 || lengths.contains(&0) {
            ctx.set_output(0, Tensor::zeros(dtype, shape)?);
            return Ok(());
        }
        let mut values = cropped(&read(input)?, input.shape(), &lengths);
        transform(&mut values, &dims, last, FftDirection::Forward);
        values = cropped(&values, &dims, &[half]);
        dims[last] = half;
        (first..last).for_each(|axis| transform(&mut values, &dims, axis, FftDirection::Forward));
        let out = write(dtype, shape, &values, 1.0)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of the inverse of [`real_to_complex`].
fn complex_to_real(init: &KernelInit<'_>, axes: usize) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        check_rank(input.shape(), axes)?;
        let lengths = lengths(ctx, axes)?;
        let len = lengths[axes - 1];
        let half = len / 2 + 1;
        let mut taken = lengths.clone();
        taken[axes - 1] = half;
        check_lengths(input.shape(), &taken)?;
        let first = input.shape().rank() - axes;
        let shape = Shape::new(&[&input.shape()[..first], &lengths].concat())?;
        if input.num_elements() == 0 || shape.num_elements() == 0 {
            ctx.set_output(0, Tensor::zeros(dtype, shape)?);
            return Ok(());
        }
        let mut dims = [&input.shape()[..first], &taken].concat();
        let last = dims.len() - 1;
        let mut values = cropped(&read(input)?, input.shape(), &taken);
        (first..last).for_each(|axis| transform(&mut values, &dims, axis, FftDirection::Inverse));
        let full = |row: &[C]| {
            (0..len).map(|k| if k < half { row[k] } else { row[len - k].conj() }).collect::<Vec<_>>()
        };
        let mut values: Vec<C> = values.chunks_exact(half).flat_map(full).collect();
        dims[last] = len;
        transform(&mut values, &dims, last, FftDirection::Inverse);
        let count: usize = lengths.iter().product();
        let out = write(dtype, shape, &values, count as f64)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
