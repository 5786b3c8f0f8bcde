//! Attributes, levels and bounds of the quantisation ops.

use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::Shape;
use std::cmp::Ordering;

/// The lowest and the highest level to which an op quantises values.
#[derive(Clone, Copy, Debug)]
pub struct Levels(pub [f32; 2]);

impl Levels {
    /// Reads the attributes `num_bits` and `narrow_range`.
    pub fn of(init: &KernelInit<'_>) -> Result<Levels> {
        let bits: i64 = init.attr("num_bits")?;
        if !(2..=16).contains(&bits) {
            device::invalid!("num_bits must be between 2 and 16, inclusive");
        }
        let lowest = if init.attr("narrow_range")? { 1.0 } else { 0.0 };
        Ok(Levels([lowest, ((1u32 << bits) - 1) as f32]))
    }
}

/// Returns the least and the greatest value of the quantised range: the attributes `min` and `max`.
pub fn ends(init: &KernelInit<'_>) -> Result<[f32; 2]> {
    let (min, max): (f32, f32) = (init.attr("min")?, init.attr("max")?);
    if min >= max || min.is_nan() || max.is_nan() {
        device::invalid!("min has to be smaller than max, was: {min} >= {max}");
    }
    Ok([min, max])
}

/// Checks that the incoming gradient in input 0 has the shape of the tensor in input 1.
pub fn check_same(ctx: &KernelContext<'_>) -> Result<()> {
    let (dy, x) = (ctx.shape(0)?, ctx.shape(1)?);
    if dy != x {
        device::invalid!("gradient and input must be the same size, got {dy} and {x}");
    }
    Ok(())
}

/// Checks the shapes of the inputs `first` and `first + 1`, the least and the greatest value of the range: scalars, or
/// vectors with one element per channel.
pub fn check_ends(ctx: &KernelContext<'_>, first: usize, channels: Option<usize>) -> Result<()> {
    let count = channels.unwrap_or(1);
    for (name, bound) in [("min", ctx.shape(first)?), ("max", ctx.shape(first + 1)?)] {
        match channels {
            None if bound.rank() != 0 => {
                device::invalid!("`{name}` must be rank 0 but is rank {}", bound.rank())
            }
            Some(_) if bound.dims() != [count] => {
                device::invalid!("{name} has incorrect size, expected {count} was {bound}")
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the number of channels if each channel has its own range, or `None` if all elements share one range.
pub fn channels_of(x: &Shape, per_channel: bool) -> Result<Option<usize>> {
    match (per_channel, x.last()) {
        (false, _) => Ok(None),
        (true, Some(&channels)) => Ok(Some(channels)),
        (true, None) => device::invalid!("inputs must be at least of rank 1"),
    }
}

/// The attributes of an op that quantises and dequantises a tensor.
#[derive(Debug)]
pub struct RoundTrip {
    signed: bool,
    /// The number of bits of a quantised value; `None` if input 3 gives it.
    bits: Option<i64>,
    pub range_given: bool,
    /// The bounds that attributes give; `None` if inputs 1 and 2 give them.
    pub bounds: Option<[f32; 2]>,
    pub half_up: bool,
    narrow: bool,
    axis: i64,
}

impl RoundTrip {
    /// Reads and checks the attributes of the node.
    pub fn of(init: &KernelInit<'_>) -> Result<RoundTrip> {
        let has = |name| init.node.op.attr_spec(name).is_some();
        let signed = init.attr("signed_input")?;
        let bits = if has("num_bits") { Some(init.attr("num_bits")?) } else { None };
        if let Some(bits) = bits {
            check_bits(bits, signed)?;
        }
        let axis = if has("axis") { init.attr("axis")? } else { -1 };
        if axis < -1 {
            device::invalid!("Axis must be at least -1. Found {axis}");
        }
        let range_given = init.attr("range_given")?;
        let bounds = match has("input_min") {
            true => Some([init.attr("input_min")?, init.attr("input_max")?]),
            false => None,
        };
        if let Some([min, max]) = bounds
            && range_given
        {
            check_range(min, max)?;
        }
        Ok(RoundTrip {
            signed,
            bits,
            range_given,
            bounds,
            half_up: has("round_mode") && init.attr::<String>("round_mode")? == "HALF_UP",
            narrow: has("narrow_range") && init.attr("narrow_range")?,
            axis,
        })
    }

    /// Returns the lowest and the highest quantisation level.
    pub fn levels(&self, ctx: &KernelContext<'_>) -> Result<[f64; 2]> {
        let bits = match self.bits {
            Some(bits) => bits,
            None => {
                let bits = i64::from(ctx.scalar(3, "num_bits")?.item::<i32>()?);
                check_bits(bits, self.signed)?;
                bits
            }
        };
        let (lowest, highest) = match (self.signed, self.narrow) {
            (true, narrow) => (-(1i64 << (bits - 1)) + i64::from(narrow), (1i64 << (bits - 1)) - 1),
            (false, _) => (0, (1i64 << bits) - 1),
        };
        Ok([lowest as f64, highest as f64])
    }

    /// Returns the product of the dimensions before the axis, the size of the axis, and the product of the dimensions
    /// after it. Checks the shapes of the bounds in inputs 1 and 2 if the attributes say that they are given.
    pub fn slices(&self, ctx: &KernelContext<'_>) -> Result<[usize; 3]> {
        let slices = slices(ctx.shape(0)?, self.axis)?;
        if self.range_given && self.bounds.is_none() {
            // The op version whose number of bits is an input does not check the rank of a bound with one element.
            check_bounds([ctx.shape(1)?, ctx.shape(2)?], self.axis, slices[1], self.bits.is_none())?;
        }
        Ok(slices)
    }
}

/// Returns sizes like [`RoundTrip::slices`] for the gradient op, and checks the shapes of its bounds.
pub fn gradient_slices(ctx: &KernelContext<'_>, axis: i64) -> Result<[usize; 3]> {
    let (dy, x) = (ctx.shape(0)?, ctx.shape(1)?);
    if dy != x {
        device::invalid!("gradient and input must have the same shape, got {dy} and {x}");
    }
    let slices = slices(x, axis)?;
    check_bounds([ctx.shape(2)?, ctx.shape(3)?], axis, slices[1], true)?;
    Ok(slices)
}

/// Checks that the lower bound of a slice is not above the upper bound.
pub fn check_range<T: PartialOrd>(low: T, high: T) -> Result<()> {
    if !matches!(low.partial_cmp(&high), Some(Ordering::Less | Ordering::Equal)) {
        device::invalid!("Invalid range: input_min must not be greater than input_max");
    }
    Ok(())
}

fn check_bits(bits: i64, signed: bool) -> Result<()> {
    let most = if signed { 61 } else { 62 };
    if !(1..=most).contains(&bits) {
        device::invalid!("num_bits is out of range: {bits} with signed_input {signed}");
    }
    Ok(())
}

pub(crate) fn slices(x: &Shape, axis: i64) -> Result<[usize; 3]> {
    let dims = x.dims();
    if axis == -1 {
        return Ok([1, 1, x.num_elements()]);
    }
    let axis = usize::try_from(axis).ok().filter(|&a| a < dims.len());
    let axis = axis.ok_or_else(|| {
        Error::invalid(format!("Axis should be -1 or 0 or a positive value less than {}", dims.len()))
    })?;
    Ok([dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()])
}

/// Checks that `min` and `max` have one element per index of the axis. For axis -1 they must be scalars or, if
/// `may_be_vector`, any tensors of one element.
fn check_bounds([min, max]: [&Shape; 2], axis: i64, count: usize, may_be_vector: bool) -> Result<()> {
    for (name, bound) in [("input_min", min), ("input_max", max)] {
        let fits = match axis {
            -1 if may_be_vector => bound.num_elements() == 1,
            -1 => bound.rank() == 0,
            _ => bound.dims() == [count],
        };
        if !fits {
            device::invalid!("{name} must have {count} elements, got shape {bound}");
        }
    }
    Ok(())
}
