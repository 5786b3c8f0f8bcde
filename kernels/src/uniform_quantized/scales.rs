//! Scales and zero points of tensors, and the factors by which values of one scale become values of another.

use device::kernel::{KernelContext, KernelInit};
use device::{Result, invalid};
use graph::Shape;

/// The attributes that describe how a tensor is quantized.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scaling {
    /// The axis along which each index has its own scale and zero point; `None` if all values share one.
    pub(super) axis: Option<usize>,
    /// The least and the greatest value.
    pub(super) bounds: [i64; 2],
}

impl Scaling {
    /// Reads the attributes whose names begin with `prefix`.
    pub(super) fn of(init: &KernelInit<'_>, prefix: &str) -> Result<Scaling> {
        let attr = |name: &str| init.attr::<i64>(&format!("{prefix}quantization_{name}"));
        let (axis, bounds) = (attr("axis")?, [attr("min_val")?, attr("max_val")?]);
        for bound in bounds {
            if i32::try_from(bound).is_err() {
                invalid!("Attr {prefix}quantization bound has value {bound} out of range for an int32");
            }
        }
        if axis < -1 {
            invalid!("{prefix}quantization_axis must be at least -1, got {axis}");
        }
        Ok(Scaling { axis: usize::try_from(axis).ok(), bounds })
    }

    /// Returns the value nearest to `value` within the bounds; the lower bound if the bounds are in the wrong order.
    pub(super) fn clamp(&self, value: i64) -> i64 {
        value.min(self.bounds[1]).max(self.bounds[0])
    }

    /// Returns the scales in input `i`, which must be positive, and the zero points in the next input, of a tensor of this
    /// shape.
    pub(super) fn inputs<'a>(
        &self,
        ctx: &'a KernelContext<'_>,
        i: usize,
        shape: &Shape,
    ) -> Result<Scales<'a>> {
        let scales = self.any_inputs(ctx, i, shape)?;
        if let Some(scale) = scales.scales.iter().find(|scale| **scale <= 0.0 || scale.is_nan()) {
            invalid!("scales must be positive, got {scale}");
        }
        Ok(scales)
    }

    /// Returns scales and zero points like [`Scaling::inputs`]; the scales may be any numbers.
    pub(super) fn any_inputs<'a>(
        &self,
        ctx: &'a KernelContext<'_>,
        i: usize,
        shape: &Shape,
    ) -> Result<Scales<'a>> {
        let (scales, zeros) = (ctx.input(i)?, ctx.input(i + 1)?);
        if scales.shape() != zeros.shape() {
            invalid!(
                "scales and zero_points must have the same shape, got {} and {}",
                scales.shape(),
                zeros.shape()
            );
        }
        self.check_shape(scales.shape(), shape)?;
        Ok(Scales { scales: scales.values()?, zeros: zeros.values()? })
    }

    /// Checks the shape of the scales of a tensor of shape `shape`.
    pub(super) fn check_shape(&self, scales: &Shape, shape: &Shape) -> Result<()> {
        match self.axis {
            None if scales.rank() != 0 => {
                invalid!("scales and zero_points must be scalars if there is no axis, got {scales}")
            }
            Some(axis) if shape.rank() <= axis => {
                invalid!("quantization_axis {axis} is not an axis of a tensor of shape {shape}")
            }
            Some(axis) if scales.dims() != [shape[axis]] => {
                invalid!("scales must have {} elements, got shape {scales}", shape[axis])
            }
            _ => Ok(()),
        }
    }

    /// Returns the function from the index of an element of a tensor of this shape to the index of its scale.
    pub(super) fn slice_of(&self, shape: &Shape) -> impl Fn(usize) -> usize + use<> {
        let (inner, count) = match self.axis {
            Some(axis) => (shape[axis + 1..].iter().product(), shape[axis]),
            None => (1, 1),
        };
        move |i| i / inner % count
    }
}

/// The scales and zero points of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    pub(super) scales: &'a [f32],
    pub(super) zeros: &'a [i32],
}

impl Scales<'_> {
    /// Returns the scale with this index, or the only one.
    pub(super) fn scale(&self, i: usize) -> f32 {
        self.scales.get(i).or(self.scales.first()).copied().unwrap_or(1.0)
    }

    /// Returns the zero point with this index, or the only one.
    pub(super) fn zero(&self, i: usize) -> i32 {
        self.zeros.get(i).or(self.zeros.first()).copied().unwrap_or_default()
    }
}

/// Checks that two tensors of the same shape do not have scales along different axes.
pub(super) fn check_pair([input, output]: [Scaling; 2]) -> Result<()> {
    if let (Some(a), Some(b)) = (input.axis, output.axis)
        && a != b
    {
        invalid!("quantization axes must be equal if both are given, got {a} and {b}");
    }
    Ok(())
}

/// Returns the scaling of the right factor of a product whose columns may have scales of their own.
pub(super) fn of_factor(init: &KernelInit<'_>, axis: usize) -> Result<Scaling> {
    let rhs = Scaling::of(init, "rhs_")?;
    if rhs.axis.is_some_and(|given| given != axis) {
        invalid!("rhs_quantization_axis must be -1 or {axis}");
    }
    Ok(rhs)
}

/// Returns the scalings of the factors and the result of a product whose columns may have scales of their own.
pub(super) fn of_product(init: &KernelInit<'_>, axis: usize) -> Result<[Scaling; 3]> {
    let (lhs, rhs) = (Scaling::of(init, "lhs_")?, of_factor(init, axis)?);
    let out = Scaling::of(init, "output_")?;
    check_product(lhs, rhs, out, axis)?;
    Ok([lhs, rhs, out])
}

/// Checks that only the columns of a product have scales of their own.
pub(super) fn check_product(lhs: Scaling, rhs: Scaling, out: Scaling, axis: usize) -> Result<()> {
    if lhs.axis.is_some() {
        invalid!("lhs_quantization_axis must be -1");
    }
    if out.axis.is_some_and(|given| given != axis) {
        invalid!("output_quantization_axis must be -1 or {axis}");
    }
    if out.axis.is_some() && rhs.axis.is_none() {
        invalid!("rhs must have a scale for each column if the output has");
    }
    Ok(())
}

/// A positive factor as an integer of 31 bits, and the power of two by which it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Multiplier {
    fraction: i32,
    places: i32,
}

impl Multiplier {
    pub(super) fn new(factor: f64) -> Result<Multiplier> {
        if factor <= 0.0 || !factor.is_finite() {
            invalid!("The ratio of scales must be a positive finite number, got {factor}");
        }
        // The fraction is in [0.5, 1).
        let mut exponent = factor.log2().floor() as i32 + 1;
        let mut fraction = factor / 2f64.powi(exponent);
        if fraction >= 1.0 {
            (exponent, fraction) = (exponent + 1, fraction / 2.0);
        } else if fraction < 0.5 {
            (exponent, fraction) = (exponent - 1, fraction * 2.0);
        }
        let mut rounded = (fraction * f64::from(1u32 << 31) + 0.5).floor() as i64;
        if rounded == 1 << 31 {
            (exponent, rounded) = (exponent + 1, rounded / 2);
        }
        if exponent < -31 {
            return Ok(Multiplier { fraction: 0, places: 31 });
        }
        Ok(Multiplier { fraction: rounded as i32, places: 31 - exponent })
    }

    /// Returns the product with `value`, rounded to the nearest integer and upwards from halfway.
    pub(super) fn times(self, value: i64) -> i64 {
        let product = i128::from(value) * i128::from(self.fraction);
        let shifted = if self.places > 0 {
            (product + (1 << (self.places - 1))) >> self.places
        } else {
            product << (-self.places).min(60)
        };
        shifted.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded() -> Result<()> {
        for factor in [0.1, 0.5, 1.0, 1.5, 3.0, 100.0, 1e-5] {
            let multiplier = Multiplier::new(factor)?;
            for value in [0i64, 1, -1, 1000, -12345, 1 << 30] {
                let exact = value as f64 * factor;
                assert!(
                    (multiplier.times(value) as f64 - exact).abs() <= 0.5 + exact.abs() * 1e-9,
                    "{value} {factor}"
                );
            }
        }
        assert_eq!(Multiplier::new(0.5)?.times(-1), 0);
        assert_eq!(Multiplier::new(0.5)?.times(1), 1);
        assert!(Multiplier::new(0.0).is_err());
        Ok(())
    }
}
