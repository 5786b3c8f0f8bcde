//! DecodeRaw and DecodePaddedRaw: tensors of numbers from strings that hold the numbers' bytes.

use device::Result;
use device::kernel::{Kernel, KernelInit};
use graph::{DType, Shape, Tensor};

/// Returns the size in bytes of an element and of the unit whose byte order is swapped: half an element if it is
/// complex, else a whole one.
fn sizes(dtype: DType) -> (usize, usize) {
    let size = dtype.size().unwrap_or(1);
    (size, if dtype.is_complex() { size / 2 } else { size })
}

/// Reverses the bytes of each number unless `is_little` is set, and converts booleans to 0 or 1.
fn normalize(bytes: &mut [u8], dtype: DType, is_little: bool) {
    if !is_little {
        bytes.chunks_exact_mut(sizes(dtype).1).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}

/// Makes the kernel of DecodeRaw: the strings must have equal lengths, and the output's last axis indexes the numbers
/// of a string.
pub(super) fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("out_type")?;
    let is_little = init.attr::<bool>("little_endian")?;
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let strings = input.as_strings()?;
        let length = strings.first().map_or(0, |s| s.len());
        if let Some((i, other)) = strings.iter().enumerate().find(|(_, s)| s.len() != length) {
            device::invalid!(
                "DecodeRaw requires input strings to all be the same size, but element {i} has size {length} != {}",
                other.len()
            );
        }
        let (size, _) = sizes(dtype);
        if length % size != 0 {
            device::invalid!(
                "Input to DecodeRaw has length {length} that is not a multiple of {size}, the size of {dtype}"
            );
        }
        let shape = Shape::new(&[input.shape().dims(), &[length / size]].concat())?;
        let mut out = Tensor::unspecified(dtype, shape)?;
        let bytes = out.bytes_mut()?;
        if length > 0 {
            bytes.chunks_exact_mut(length).zip(strings).for_each(|(to, from)| to.copy_from_slice(from));
        }
        normalize(bytes, dtype, is_little);
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of DecodePaddedRaw, which truncates strings or fills them with zeros to a fixed length.
pub(super) fn decode_padded(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("out_type")?;
    let is_little = init.attr::<bool>("little_endian")?;
    Kernel::sync(move |ctx| {
        let (input, fixed) = (ctx.input(0)?, ctx.input(1)?);
        let (0, &[fixed]) = (fixed.shape().rank(), fixed.values::<i32>()?) else {
            device::invalid!("k must be scalar, got shape {}", fixed.shape());
        };
        let Some(length) = usize::try_from(fixed).ok().filter(|&n| n > 0) else {
            device::invalid!("fixed_length ({fixed}) must be greater than zero.");
        };
        let (size, _) = sizes(dtype);
        if length % size != 0 {
            device::invalid!("fixed_length ({fixed}) must be a multiple of the size of out_type ({size})");
        }
        let shape = Shape::new(&[input.shape().dims(), &[length / size]].concat())?;
        let mut out = Tensor::zeros(dtype, shape)?;
        let bytes = out.bytes_mut()?;
        for (to, from) in bytes.chunks_exact_mut(length).zip(input.as_strings()?) {
            let given = from.len().min(length);
            to[..given].copy_from_slice(&from[..given]);
        }
        normalize(bytes, dtype, is_little);
        ctx.set_output(0, out);
        Ok(())
    })
}
