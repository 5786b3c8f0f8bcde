//! QuantizedConcat and QuantizedReshape.

use super::level::{Level, build, levels};
use super::range::{Dequantizer, Quantizer, Range};
use crate::plan::concat::{ConcatLayout, concat_layout};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::DType;

/// `QuantizedConcat`: input 0 is the axis; the tensors follow, then the least numbers of their ranges, then the
/// greatest. Values of tensors with other ranges than the result are converted.
pub(super) fn concat<T: Level>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let count = (ctx.num_inputs() - 1) / 3;
    let ends = |i: usize| -> Result<f32> {
        match *ctx.input(i)?.values::<f32>()? {
            [end] => Ok(end),
            _ => invalid!("The ends of ranges must be scalars, not of shape {}", ctx.shape(i)?),
        }
    };
    let ranges = (1..=count)
        .map(|i| Ok(Range { min: ends(i + count)?, max: ends(i + 2 * count)? }))
        .collect::<Result<Vec<_>>>()?;
    let axis = ctx.scalar(0, "Concat dim tensor")?.to_i64s()?;
    if axis.iter().any(|&axis| axis < 0) {
        invalid!("ConcatOp : Expected a concatenating dimension of at least 0, but got {axis:?}");
    }
    let ConcatLayout { shape, prefix, rows } = concat_layout(ctx, 1..count + 1, 0)?;
    let least = ranges.iter().fold(f32::MAX, |least, r| least.min(r.min));
    let greatest = ranges.iter().fold(f32::MIN, |greatest, r| greatest.max(r.max));
    let range = if T::DTYPE == DType::QInt32 {
        Range::symmetric(Range { min: least, max: greatest }.magnitude())
    } else {
        Range { min: least.min(0.0), max: greatest }
    };
    let total: usize = rows.iter().sum();
    let out = build(shape, |out: &mut [T]| {
        let mut offset = 0;
        let quantizer = Quantizer::<T>::new(range);
        for (i, &row) in rows.iter().enumerate() {
            let values = levels::<T>(ctx.input(i + 1)?)?;
            let dequantizer = Dequantizer::<T>::new(ranges[i]);
            for p in 0..prefix {
                let to = &mut out[p * total + offset..][..row];
                let from = &values[p * row..][..row];
                if ranges[i] == range {
                    to.copy_from_slice(from);
                } else {
                    let pairs = to.iter_mut().zip(from);
                    pairs.for_each(|(o, &v)| *o = quantizer.apply(dequantizer.apply(v)));
                }
            }
            offset += row;
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

/// `QuantizedReshape`: passes the ends of the range on.
pub(super) fn reshape(ctx: &mut KernelContext<'_>) -> Result<()> {
    let range = Range::of_elements(ctx, 2, "input")?;
    crate::shape::reshape(ctx)?;
    range.set_outputs(ctx, 1);
    Ok(())
}
