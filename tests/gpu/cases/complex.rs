//! Inputs of complex numbers, for Fourier transforms and arithmetic.

use super::{Fallible, Random, TWO, numbers};
use graph::{DType, Tensor};

pub(super) fn inputs(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let t = types.first().copied().unwrap_or(DType::Float);
    let is_complex = matches!(t, DType::Complex64 | DType::Complex128);
    let axes = match name {
        name if name.ends_with("FFT2D") => 2,
        name if name.ends_with("FFT3D") => 3,
        _ => 1,
    };
    let mut all = Vec::new();
    match name {
        name if name.starts_with("FFT") || name.starts_with("IFFT") => {
            for dims in [
                &[2, 1, 3, 8][..],
                &[1, 4, 6, 35],
                &[2, 3, 1, 17],
                &[0, 3, 4, 2],
                &[3, 0, 2, 4],
                &[2, 1, 1, 64],
            ] {
                // The first input has only the transformed axes, the second input also has batch axes.
                all.push(vec![random.tensor(t, &dims[dims.len() - axes..])?]);
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        name if name.contains("RFFT") => {
            for lengths in [[3, 4, 8], [2, 5, 7], [1, 1, 1], [2, 3, 0], [4, 6, 12]] {
                let lengths = numbers(&lengths[3 - axes..])?;
                for dims in [&[2, 4, 6, 13][..], &[0, 4, 6, 12]] {
                    all.push(vec![random.tensor(t, dims)?, lengths.clone()]);
                }
            }
        }
        "ConjugateTranspose" => {
            for (dims, perm) in [(&[3, 5][..], &[1, 0][..]), (&[2, 3, 4], &[0, 2, 1]), (&[1, 4], &[1, 0])] {
                all.push(vec![random.tensor(t, dims)?, super::WithInt::with_int(numbers(perm)?, types[1])?]);
            }
        }
        "Add" | "AddV2" | "Sub" | "Mul" | "Div" | "RealDiv" if is_complex => {
            for (x, y) in TWO {
                all.push(vec![random.tensor(t, x)?, random.tensor(t, y)?]);
            }
        }
        "Real" | "Imag" | "ComplexAbs" | "Angle" | "Conj" | "Neg" | "Square" if is_complex => {
            for dims in super::ONE {
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(all))
}
