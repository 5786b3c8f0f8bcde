//! Substrings by position and length.

use super::{Unit, is_start};
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Shape, Tensor};

pub(super) fn substr(init: &KernelInit<'_>) -> Result<Kernel> {
    let unit = Unit::of(init)?;
    Kernel::sync(move |ctx| parts(ctx, unit))
}

fn parts(ctx: &mut KernelContext<'_>, unit: Unit) -> Result<()> {
    let (input, position, length) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if position.shape() != length.shape() {
        device::invalid!(
            "pos and len should have the same shape, got: {} vs. {}",
            position.shape(),
            length.shape()
        );
    }
    let rank = input.shape().rank().max(position.shape().rank());
    let size = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map_or(1, |i| shape[i]);
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        dims.push(match (size(input.shape(), axis), size(position.shape(), axis)) {
            (1, d) | (d, 1) => d,
            (a, b) if a == b => a,
            _ => device::invalid!("Incompatible shapes: {} vs. {}", input.shape(), position.shape()),
        });
    }
    let out_shape = Shape::new(&dims)?;
    // Returns the index of the element, in a tensor of shape `shape`, that is broadcast to element `i` of the output.
    let at = |shape: &Shape, mut i: usize| {
        let (mut place, mut stride) = (0, 1);
        for axis in (0..rank).rev() {
            let (index, own) = (i % dims[axis], size(shape, axis));
            i /= dims[axis];
            place += if own == 1 { 0 } else { index * stride };
            stride *= own;
        }
        place
    };
    let (strings, positions, lengths) = (input.as_strings()?, position.to_i64s()?, length.to_i64s()?);
    let part = |i: usize| {
        let (s, p) = (&strings[at(input.shape(), i)], at(position.shape(), i));
        cut(s, positions[p], lengths[p], unit).ok_or_else(|| {
            let shown = match unit {
                Unit::Byte => format!(" b'{}'", s.escape_ascii()),
                Unit::Character => String::new(),
            };
            Error::invalid(format!("pos {} out of range for string{shown} at index {i}", positions[p]))
        })
    };
    let out = (0..out_shape.num_elements()).map(part).collect::<Result<Vec<_>>>()?;
    let out = Tensor::strings(out, out_shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns `length` units of `s` from `position`, which counts from the end if it is negative, or fewer units if the
/// string ends before; `None` if the position is outside the string. A negative length selects all remaining bytes.
/// With characters as the unit, a negative length selects nothing after a position from the start, and gives `None`
/// after a position from the end.
fn cut(s: &Bytes, position: i64, length: i64, unit: Unit) -> Option<Bytes> {
    let total = unit.length(s);
    let start = match usize::try_from(position) {
        Ok(start) => start,
        Err(_) => total.checked_sub(usize::try_from(position.unsigned_abs()).ok()?)?,
    };
    if start > total {
        return None;
    }
    let length = match (usize::try_from(length), unit) {
        (Ok(length), _) => length,
        (Err(_), Unit::Byte) => total,
        (Err(_), Unit::Character) if position >= 0 => 0,
        (Err(_), Unit::Character) => return None,
    };
    let end = start.saturating_add(length).min(total);
    Some(match unit {
        Unit::Byte => s.slice(start..end),
        Unit::Character => {
            let mut starts = s.iter().enumerate().filter(|(_, b)| is_start(**b)).map(|(i, _)| i);
            let from = starts.clone().nth(start).unwrap_or(s.len());
            s.slice(from..starts.nth(end).unwrap_or(s.len()))
        }
    })
}
