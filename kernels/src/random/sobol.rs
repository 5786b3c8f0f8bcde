//! Quasi-random points: the Sobol sequence with the direction numbers of S. Joe and F. Y. Kuo, "Constructing Sobol sequences
//! with better two-dimensional projections" (2008).

use device::Result;
use device::kernel::{Kernel, KernelContext};
use graph::{Element, Shape, Tensor};
use num_traits::AsPrimitive;

/// The parameters of the dimensions after the first one, in ascending order of the degrees of their polynomials, as a
/// sequence of bits, the lowest bit of each byte first. A dimension of degree `d` has the `d - 1` inner coefficients of
/// a primitive polynomial over the field of two elements, and the first `d` direction numbers, all odd: of the number
/// `i`, counted from 0, the `i` bits above the lowest one.
const PARAMETERS: &[u8] = include_bytes!("sobol.bin");

/// The number of dimensions with a polynomial of each degree, from 1 on.
const DIMENSIONS_OF_DEGREE: [usize; 18] =
    [1, 1, 2, 2, 6, 6, 18, 16, 48, 60, 176, 144, 630, 756, 1800, 2048, 7710, 7775];

/// The largest number of dimensions.
const MAX_DIMENSIONS: usize = 21200;

/// The number of binary digits of a coordinate.
const DIGITS: usize = 31;

/// The changes of a coordinate, one for each digit of the number of a point.
type Directions = [u32; DIGITS];

/// Returns the directions of the first `count` dimensions.
fn directions(count: usize) -> Vec<Directions> {
    let mut at = 0;
    let mut take = |bits: usize| {
        let value = (0..bits).fold(0, |all, i| {
            let bit = PARAMETERS[(at + i) / 8] >> ((at + i) % 8) & 1;
            all | u32::from(bit) << i
        });
        at += bits;
        value
    };
    let degrees =
        (1..).zip(DIMENSIONS_OF_DEGREE).flat_map(|(degree, count)| std::iter::repeat_n(degree, count));
    // The first dimension has the number 1 for each digit.
    std::iter::once([1; DIGITS])
        .chain(degrees.map(|degree: usize| {
            let coefficients = take(degree - 1);
            let mut numbers = [1; DIGITS];
            for (bits, number) in numbers[..degree].iter_mut().enumerate() {
                *number |= take(bits) << 1;
            }
            for k in degree..DIGITS {
                let oldest = numbers[k - degree];
                numbers[k] = (1..degree)
                    .filter(|i| coefficients >> (degree - 1 - i) & 1 == 1)
                    .fold(oldest ^ oldest << degree, |all, i| all ^ numbers[k - i] << i);
            }
            numbers
        }))
        .take(count)
        .map(|mut numbers| {
            for (k, number) in numbers.iter_mut().enumerate() {
                *number <<= DIGITS - 1 - k;
            }
            numbers
        })
        .collect()
}

/// Makes the kernel of `SobolSample` for one element type: the points with the numbers `skip + 1` to
/// `skip + num_results`, a matrix with a row for each point.
pub(in super::super) fn sobol<T: Element>() -> Result<Kernel>
where
    f64: AsPrimitive<T>,
{
    Kernel::sync(sample::<T>)
}

fn sample<T: Element>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    f64: AsPrimitive<T>,
{
    let read = |i: usize, name: &str| Ok::<i32, device::Error>(ctx.scalar(i, name)?.item::<i32>()?);
    let (dim, count, skip) = (read(0, "dim")?, read(1, "num_results")?, read(2, "skip")?);
    if dim < 1 {
        device::invalid!("dim must be at least one");
    }
    if dim as usize > MAX_DIMENSIONS {
        device::invalid!("dim must be at most {MAX_DIMENSIONS}");
    }
    if count < 1 {
        device::invalid!("num_results must be at least one");
    }
    if skip < 0 {
        device::invalid!("skip must be non-negative");
    }
    if count >= i32::MAX - skip {
        device::invalid!("num_results+skip must be less than {}", i32::MAX);
    }
    let (dim, count, skip) = (dim as usize, count as usize, skip as u32);
    let mut samples = Tensor::unspecified(T::DTYPE, Shape::new(&[count, dim])?)?;
    let directions = directions(dim);
    let first = skip + 1;
    let gray = first ^ first >> 1;
    let mut point: Vec<u32> = directions
        .iter()
        .map(|of| (0..DIGITS).filter(|k| gray >> k & 1 == 1).fold(0, |x, k| x ^ of[k]))
        .collect();
    let unit = 1.0 / (1u32 << DIGITS) as f64;
    for (number, row) in (first..).zip(samples.values_mut::<T>()?.chunks_exact_mut(dim)) {
        if number % 4096 == 0 {
            ctx.check_cancelled()?;
        }
        // Consecutive points differ by the direction of the lowest zero digit of the number.
        let changed = (number as usize).trailing_ones() as usize;
        for ((x, of), out) in point.iter_mut().zip(&directions).zip(row) {
            *out = (f64::from(*x) * unit).as_();
            *x ^= of.get(changed).copied().unwrap_or(0);
        }
    }
    ctx.set_output(0, samples);
    Ok(())
}
