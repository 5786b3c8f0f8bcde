//! Executes enqueued work for the recording driver: kernels by interpreting their PTX, and calls of NVIDIA's
//! libraries by plain loops.

use super::recording::{Memories, slice, slice_mut};
use cuda::engine::Arguments;
use cuda::engine::driver::{Address, Convolution, ConvolutionMemory, Direction, Grid, Image, Product};
use graph::DType;
use half::{bf16, f16};
use num_complex::Complex;
use ptx::{Kernel, Memory};

/// The result of executing a piece of work; the error is a description.
type Outcome = Result<(), String>;

pub(crate) fn launch(kernel: &Kernel, grid: Grid, arguments: &Arguments, memories: &mut Memories) -> Outcome {
    let arguments: Vec<&[u64]> = arguments.iter().collect();
    let parts = memories.iter_mut().map(|(&start, memory)| (start, &mut *memory.bytes));
    let grid = ptx::Grid { blocks: grid.blocks, threads: grid.threads };
    kernel.run(grid, &arguments, &mut Memory::new(parts)).map_err(|fault| fault.to_string())
}

pub(crate) fn product(product: &Product, memories: &mut Memories) -> Outcome {
    let Product { dtype, m, n, k, flips, steps, .. } = *product;
    let numbers = |at: Address, step: usize, one: usize| {
        let count = if product.count == 0 { 0 } else { (product.count - 1) * step + one };
        read_complex(memories, dtype, at, count)
    };
    let a = numbers(product.a, steps[0], m * k)?;
    let b = numbers(product.b, steps[1], k * n)?;
    let mut c = numbers(product.c, steps[2], m * n)?;
    let bias = product.epilogue.and_then(|epilogue| epilogue.bias);
    let bias = bias.map(|at| read_complex(memories, dtype, at, n)).transpose()?;
    let factor = |value: Complex<f64>, flip: bool| match flip && product.conjugates {
        true => value.conj(),
        false => value,
    };
    let is_relu = product.epilogue.is_some_and(|epilogue| epilogue.relu);
    for matrix in 0..product.count {
        let (a, b) = (&a[matrix * steps[0]..], &b[matrix * steps[1]..]);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let of = |p: usize| {
                let left = factor(a[if flips[0] { p * m + i } else { i * k + p }], flips[0]);
                left * factor(b[if flips[1] { j * k + p } else { p * n + j }], flips[1])
            };
            let sum = (0..k).map(of).sum::<Complex<f64>>();
            let sum = bias.as_ref().map_or(sum, |bias| sum + bias[j]);
            c[matrix * steps[2] + i * n + j] = if is_relu { sum.re.max(0.0).into() } else { sum };
        }
    }
    write_complex(memories, dtype, product.c, &c)
}

/// Returns the index in memory of an element of a batch of images, or of filters; `is_last` means that channels
/// are innermost.
fn place([_, channels, height, width]: [usize; 4], is_last: bool, [n, c, h, w]: [usize; 4]) -> usize {
    if is_last {
        ((n * height + h) * width + w) * channels + c
    } else {
        ((n * channels + c) * height + h) * width + w
    }
}

pub(crate) fn convolve(
    convolution: &Convolution,
    at: &ConvolutionMemory,
    memories: &mut Memories,
) -> Outcome {
    let Convolution { direction, dtype, input, filter, output, padding, strides, dilations, groups, .. } =
        *convolution;
    let count = |sizes: [usize; 4]| sizes.iter().product::<usize>();
    let mut x = read(memories, dtype, at.input, count(input.sizes))?;
    let mut f = read(memories, dtype, at.filter, count(filter))?;
    let mut y = read(memories, dtype, at.output, count(output.sizes))?;
    match direction {
        Direction::Forward => y.fill(0.0),
        Direction::Input => x.fill(0.0),
        Direction::Filter => f.fill(0.0),
    }
    let [batch, outs, height, width] = output.sizes;
    let [_, ins, filter_height, filter_width] = filter;
    let of = |image: Image, index| place(image.sizes, image.channels_last, index);
    let within = |i: usize, axis: usize, tap: usize| {
        let at = (i * strides[axis] + tap * dilations[axis]).checked_sub(padding[axis])?;
        (at < input.sizes[2 + axis]).then_some(at)
    };
    let every = [batch, outs, height, width, ins, filter_height, filter_width];
    for i in 0..every.iter().product() {
        let mut rest = i;
        let [n, o, h, w, c, r, s] = {
            let mut index = [0; 7];
            for (index, size) in index.iter_mut().zip(every).rev() {
                (*index, rest) = (rest % size, rest / size);
            }
            index
        };
        let (Some(row), Some(column)) = (within(h, 0, r), within(w, 1, s)) else { continue };
        let group = o / (outs / groups);
        let (x, f, y) = (
            &mut x[of(input, [n, group * ins + c, row, column])],
            &mut f[place(filter, input.channels_last, [o, c, r, s])],
            &mut y[of(output, [n, o, h, w])],
        );
        match direction {
            Direction::Forward => *y += *x * *f,
            Direction::Input => *x += *y * *f,
            Direction::Filter => *f += *x * *y,
        }
    }
    match direction {
        Direction::Forward => write(memories, dtype, at.output, &y),
        Direction::Input => write(memories, dtype, at.input, &x),
        Direction::Filter => write(memories, dtype, at.filter, &f),
    }
}

/// Returns the dtype of the real and imaginary parts of a complex dtype; `None` for other dtypes.
fn part_type(dtype: DType) -> Option<DType> {
    match dtype {
        DType::Complex64 => Some(DType::Float),
        DType::Complex128 => Some(DType::Double),
        _ => None,
    }
}

fn read_complex(
    memories: &Memories,
    dtype: DType,
    at: Address,
    count: usize,
) -> Result<Vec<Complex<f64>>, String> {
    match part_type(dtype) {
        Some(part) => {
            let parts = read(memories, part, at, 2 * count)?;
            Ok(parts.chunks_exact(2).map(|parts| Complex::new(parts[0], parts[1])).collect())
        }
        None => Ok(read(memories, dtype, at, count)?.into_iter().map(Complex::from).collect()),
    }
}

fn write_complex(memories: &mut Memories, dtype: DType, at: Address, values: &[Complex<f64>]) -> Outcome {
    match part_type(dtype) {
        Some(part) => {
            let parts: Vec<f64> = values.iter().flat_map(|value| [value.re, value.im]).collect();
            write(memories, part, at, &parts)
        }
        None => write(memories, dtype, at, &values.iter().map(|value| value.re).collect::<Vec<_>>()),
    }
}

fn read(memories: &Memories, dtype: DType, at: Address, count: usize) -> Result<Vec<f64>, String> {
    let size = dtype.size().unwrap_or(1);
    let bytes = slice(memories, at.0, count * size)?;
    let values = bytes.chunks_exact(size).map(|bytes| match (dtype, bytes) {
        (DType::Float, &[a, b, c, d]) => Ok(f64::from(f32::from_ne_bytes([a, b, c, d]))),
        (DType::Double, _) => Ok(bytes.try_into().map_or(f64::NAN, f64::from_ne_bytes)),
        (DType::Half, &[a, b]) => Ok(f16::from_ne_bytes([a, b]).to_f64()),
        (DType::BFloat16, &[a, b]) => Ok(bf16::from_ne_bytes([a, b]).to_f64()),
        _ => Err(format!("the library has none of {dtype}")),
    });
    values.collect()
}

fn write(memories: &mut Memories, dtype: DType, at: Address, values: &[f64]) -> Outcome {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|&value| match dtype {
            DType::Float => (value as f32).to_ne_bytes().to_vec(),
            DType::Half => f16::from_f64(value).to_ne_bytes().to_vec(),
            DType::BFloat16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
            _ => value.to_ne_bytes().to_vec(),
        })
        .collect();
    slice_mut(memories, at.0, bytes.len())?.copy_from_slice(&bytes);
    Ok(())
}
