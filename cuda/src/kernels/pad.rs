//! Padding with zeros, with a value, and with mirror images.

use super::copy::PACK;
use super::support::{
    Axes, COPIED, NUMBERS, allocate, copied_type_name, function, launch, read, type_name, write,
};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType;
use kernels::plan::pad::{
    MOST_AXES, MOST_MIRRORED, check_mirrored, mirror_offset, padded, paddings, unpadded,
};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "pad.cu", text: include_str!("pad.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("Pad", &[("T", COPIED)], pad) },
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("PadV2", &[("T", COPIED)], pad) },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::enqueuing("MirrorPad", &[("T", COPIED)], |init| mirror(init, false))
    },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::enqueuing("MirrorPadGrad", &[("T", NUMBERS)], |init| mirror(init, true))
    },
];

/// Makes the kernel of mirror padding, or, if `is_back` is set, of the gradient of mirror padding.
fn mirror(init: &KernelInit<'_>, is_back: bool) -> Result<Kernel> {
    let (dtype, offset) = (init.input_type(0), mirror_offset(init)?);
    let name = match is_back {
        false => format!("mirror<{}>", copied_type_name(dtype)?),
        true => format!("mirror_gradient<{}>", type_name(dtype)?),
    };
    let mirror = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let paddings = paddings(ctx, MOST_MIRRORED)?;
        let x = ctx.device_input(0)?;
        let shape = if is_back { unpadded(&x.shape, &paddings)? } else { padded(&x.shape, &paddings)? };
        let inner = if is_back { &shape } else { &x.shape };
        check_mirrored(inner, &paddings, offset)?;
        let out = if shape == x.shape {
            x.clone()
        } else {
            let out = allocate(ctx, dtype, shape.clone())?;
            let n = shape.num_elements();
            let arguments = Arguments::new().address(read(x)?).address(write(&out)?).count(n);
            // The fields of the `Mirror` structure of `pad.cu`: the axes with their paddings, and the offset.
            let both = paddings.iter().map(|&(before, after)| [before as isize, after as isize]);
            let axes = Axes::apart(inner.iter().copied().zip(both))?;
            let words = axes.words().chain([offset as i64]);
            launch(ctx, &mirror, n, arguments.structure(words))?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The kernel that pads tensors of one dtype.
pub(super) struct Padder(Arc<Function>);

/// For each axis, the numbers of elements to add before and after.
pub(super) type Paddings = [(usize, usize)];

impl Padder {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Padder> {
        Ok(Padder(function(init, &SOURCE, format!("pad<{}>", copied_type_name(dtype)?))?))
    }

    /// Returns the tensor padded with `value`, a tensor of one element, or with zeros.
    pub(super) fn pad(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        paddings: &Paddings,
        value: Option<&DeviceTensor>,
    ) -> Result<DeviceTensor> {
        let out = allocate(ctx, x.dtype, padded(&x.shape, paddings)?)?;
        let mut margins = Margins::of(&x.shape, paddings);
        let pack = margins.pack(PACK / x.dtype.size().unwrap_or(PACK));
        let n = out.shape.num_elements() / pack;
        let arguments = Arguments::new().address(read(x)?);
        let arguments = match value {
            Some(value) => arguments.address(read(value)?),
            None => arguments.count(0),
        };
        let arguments = arguments.address(write(&out)?).count(n).flag(pack > 1);
        launch(ctx, &self.0, n, arguments.structure(margins.axes()?.words()))?;
        Ok(out)
    }
}

/// For each axis, the size, the padding before and the padding after: `Margins` of the `.cu` file.
struct Margins(SmallVec<[[usize; 3]; 4]>);

impl Margins {
    /// Returns the margins of a tensor of this shape. An axis without padding is merged with the axis before
    /// it.
    fn of(shape: &[usize], paddings: &Paddings) -> Margins {
        let mut merged: SmallVec<[[usize; 3]; 4]> = SmallVec::new();
        for (&size, &(before, after)) in shape.iter().zip(paddings) {
            match merged.last_mut() {
                Some(outer) if (before, after) == (0, 0) => {
                    outer.iter_mut().for_each(|n| *n = n.saturating_mul(size))
                }
                _ => merged.push([size, before, after]),
            }
        }
        Margins(merged)
    }

    /// Converts the innermost axis to packs of `pack` elements if its size and paddings are multiples of
    /// `pack`. Returns the number of elements per pack, or 1 if nothing was converted.
    fn pack(&mut self, pack: usize) -> usize {
        match self.0.last_mut() {
            Some(inner) if inner.iter().all(|n| n.is_multiple_of(pack)) => {
                inner.iter_mut().for_each(|n| *n /= pack);
                pack
            }
            _ => 1,
        }
    }

    /// Returns the margins in the form of the kernel's argument, with the paddings in place of strides.
    fn axes(&self) -> Result<Axes<2>> {
        Axes::apart(self.0.iter().map(|&[size, before, after]| (size, [before as isize, after as isize])))
    }
}

/// Makes the kernel of `Pad` and `PadV2`.
fn pad(init: &KernelInit<'_>) -> Result<Kernel> {
    let padder = Padder::new(init, init.input_type(0))?;
    Kernel::sync(move |ctx| {
        let paddings = paddings(ctx, MOST_AXES)?;
        let input = ctx.device_input(0)?;
        let has_value = ctx.num_inputs() > 2;
        if has_value && ctx.shape(2)?.num_elements() != 1 {
            device::invalid!("constant_values must be a scalar. Found: {}", ctx.shape(2)?);
        }
        let out = if padded(&input.shape, &paddings)? == input.shape {
            input.clone()
        } else {
            let value = if has_value { Some(ctx.device_input(2)?) } else { None };
            padder.pad(ctx, input, &paddings, value)?
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_without_padding_are_merged_with_the_axis_before_and_counted_in_packs() {
        let mut images = Margins::of(&[8, 5, 6, 12], &[(0, 0), (0, 1), (2, 0), (0, 0)]);
        assert_eq!(images.0.as_slice(), [[8, 0, 0], [5, 0, 1], [72, 24, 0]]);
        assert_eq!((images.pack(16), images.pack(4)), (1, 4));
        assert_eq!(images.0.as_slice(), [[8, 0, 0], [5, 0, 1], [18, 6, 0]]);
        assert_eq!(Margins::of(&[2, 3, 4], &[(1, 0), (0, 0), (0, 0)]).0.as_slice(), [[24, 12, 0]]);
        assert_eq!(Margins::of(&[2, 4], &[(0, 0), (1, 1)]).pack(4), 1);
    }
}
