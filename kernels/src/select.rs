//! Selection of elements by a condition, and clipping.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{NUMBERS, dispatch};
use crate::numeric::strided::{Layout, pack};
use crate::plan::select::check_bounds;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result, invalid};
use graph::{Bool8, Element, Shape, Tensor};
use half::{bf16, f16};
use num_complex::Complex;
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of(
        "Select",
        &[("T", COPIED)],
        |init| copied!(init.output_type(0), E => Kernel::sync(select::<E>)),
    ),
    KernelDef::of(
        "SelectV2",
        &[("T", COPIED)],
        |init| copied!(init.output_type(0), E => Kernel::sync(select_broadcast::<E>)),
    ),
    KernelDef::of("ClipByValue", &[("T", NUMBERS)], |_| Kernel::sync(clip)),
];

/// An operand of a selection: one element for all positions, or one per position.
enum Operand<'a, E> {
    One(&'a E),
    Each(&'a [E]),
}

fn choose<E: CopiedElement>(condition: &[Bool8], t: &Operand<'_, E>, e: &Operand<'_, E>, out: &mut [E]) {
    use Operand::{Each, One};
    let pick = |c: &Bool8, t: &E, e: &E| if c.get() { t.clone() } else { e.clone() };
    let places = out.iter_mut().zip(condition);
    match (t, e) {
        (Each(t), Each(e)) => {
            for (((o, c), t), e) in places.zip(*t).zip(*e) {
                *o = pick(c, t, e);
            }
        }
        (Each(t), One(e)) => places.zip(*t).for_each(|((o, c), t)| *o = pick(c, t, e)),
        (One(t), Each(e)) => places.zip(*e).for_each(|((o, c), e)| *o = pick(c, t, e)),
        (One(t), One(e)) => places.for_each(|(o, c)| *o = pick(c, t, e)),
    }
}

/// Outputs one branch unchanged: the first if `condition` is true, else the second.
fn pass(ctx: &mut KernelContext<'_>, condition: bool) -> Result<()> {
    let out = ctx.take_input(if condition { 1 } else { 2 })?;
    ctx.set_output(0, out);
    Ok(())
}

/// The granularity at which the condition of `Select` chooses between the branches.
enum Selection {
    /// A whole branch: the first if true, else the second.
    Branch(bool),
    /// Single elements, each with its own condition.
    Elements,
    /// Rows, each with its own condition, and the number of elements per row.
    Rows(usize),
}

impl Selection {
    /// Returns the selection; an error if the inputs' shapes do not fit.
    fn new(ctx: &KernelContext<'_>) -> Result<Selection> {
        let (condition, t, e) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        let shape = t.shape();
        if shape != e.shape() {
            invalid!("'then' and 'else' must have the same size.  but received: {shape} vs. {}", e.shape());
        }
        if condition.shape().rank() == 0 {
            return Ok(Selection::Branch(condition.item::<Bool8>()?.get()));
        }
        let chosen = condition.values::<Bool8>()?.len();
        if condition.shape() == shape {
            return Ok(Selection::Elements);
        }
        if condition.shape().rank() != 1 {
            invalid!(
                "Inputs to operation {} of type Select must have the same size and shape.  Input 0: {} != input 1: {shape}",
                ctx.node().name,
                condition.shape()
            );
        }
        let Some(&rows) = shape.first() else {
            invalid!("'then' must be at least a vector, but saw shape: {shape}");
        };
        if rows != chosen {
            invalid!("Number of batches of 'then' must match size of 'cond', but saw: {rows} vs. {chosen}");
        }
        Ok(Selection::Rows(shape[1..].iter().product()))
    }
}

fn select<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let selection = Selection::new(ctx)?;
    if let Selection::Branch(condition) = selection {
        return pass(ctx, condition);
    }
    let (t, chosen) = (ctx.input(1)?, ctx.input(0)?.values::<Bool8>()?);
    let (t_values, e_values) = (E::view(t)?, E::view(ctx.input(2)?)?);
    let out = E::build(t.dtype(), t.shape().clone(), |out| {
        match selection {
            Selection::Rows(row) => {
                for (i, c) in chosen.iter().enumerate() {
                    let range = i * row..(i + 1) * row;
                    let from = if c.get() { t_values } else { e_values };
                    out[range.clone()].clone_from_slice(&from[range]);
                }
            }
            _ => choose(chosen, &Operand::Each(t_values), &Operand::Each(e_values), out),
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

fn broadcast_shape(a: &[usize], b: &[usize]) -> Option<SmallVec<[usize; 6]>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

/// Returns the shape to which the inputs of `SelectV2` broadcast. Also returns the condition if it is a single element
/// and chooses a branch that already has this shape.
fn broadcast_inputs(ctx: &KernelContext<'_>) -> Result<(Shape, Option<bool>)> {
    let (condition, t, e) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dims = broadcast_shape(t.shape(), e.shape()).and_then(|d| broadcast_shape(condition.shape(), &d));
    let Some(dims) = dims else {
        invalid!(
            "condition {}, then {}, and else {} must be broadcastable",
            condition.shape(),
            t.shape(),
            e.shape()
        );
    };
    let shape = Shape::new(&dims)?;
    if condition.num_elements() == 1 {
        let condition = condition.values::<Bool8>()?[0].get();
        if (if condition { t } else { e }).shape() == &shape {
            return Ok((shape, Some(condition)));
        }
    }
    Ok((shape, None))
}

/// Returns the layout that broadcasts a tensor of shape `tensor` to `shape`.
fn spread_layout(tensor: &Shape, shape: &Shape) -> Layout {
    let packed = Layout::packed(tensor);
    let mut from = Layout { offset: 0, strides: SmallVec::from_elem(0, shape.rank()) };
    let more = shape.rank() - tensor.rank();
    for (i, &size) in tensor.iter().enumerate() {
        from.strides[more + i] = if size == 1 { 0 } else { packed.strides[i] };
    }
    from
}

/// Returns the elements of a tensor broadcast to `shape`; the tensor's own elements if it already has this shape.
fn spread<'a, E: CopiedElement>(
    tensor: &'a Tensor,
    shape: &Shape,
    full: &'a mut Option<Tensor>,
) -> Result<&'a [E]> {
    if tensor.shape() == shape {
        return E::view(tensor);
    }
    let from = spread_layout(tensor.shape(), shape);
    let values = E::view(tensor)?;
    let built = E::build(tensor.dtype(), shape.clone(), |out| pack(shape, values, &from, out))?;
    E::view(full.insert(built))
}

fn select_broadcast<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (shape, branch) = broadcast_inputs(ctx)?;
    if let Some(condition) = branch {
        return pass(ctx, condition);
    }
    let (condition, t, e) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let (mut full_condition, mut full_t, mut full_e) = (None, None, None);
    let bits = spread::<u8>(condition, &shape, &mut full_condition)?;
    let chosen: &[Bool8] = bytemuck::try_cast_slice(bits)
        .map_err(|e| Error::internal(format!("the condition cannot be read: {e}")))?;
    let operand = |tensor, full| -> Result<Operand<'_, E>> {
        Ok(match E::view(tensor)? {
            [one] => Operand::One(one),
            _ => Operand::Each(spread::<E>(tensor, &shape, full)?),
        })
    };
    let (t_operand, e_operand) = (operand(t, &mut full_t)?, operand(e, &mut full_e)?);
    let out = E::build(t.dtype(), shape.clone(), |out| {
        choose(chosen, &t_operand, &e_operand, out);
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// An element that can be clipped to bounds.
trait Clip: Element {
    /// Clips to the bounds; NaN stays NaN, and if the bounds cross, the lower one wins.
    fn between(self, low: Self, high: Self) -> Self;
}

macro_rules! clip {
    ($($t:ty),*) => { $(impl Clip for $t {
        fn between(self, low: $t, high: $t) -> $t {
            let v = if self > high { high } else { self };
            if v < low { low } else { v }
        }
    })* };
    (complex: $($t:ty),*) => { $(impl Clip for Complex<$t> {
        fn between(self, low: Self, high: Self) -> Self {
            Complex::new(self.re.between(low.re, high.re), self.im.between(low.im, high.im))
        }
    })* };
}

clip!(f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);
clip!(complex: f32, f64);

fn clip(ctx: &mut KernelContext<'_>) -> Result<()> {
    check_bounds(ctx)?;
    let (low, high) = (ctx.input(1)?.clone(), ctx.input(2)?.clone());
    let mut out = ctx.take_input(0)?;
    dispatch!(number, out.dtype(), T => {
        let values = out.values_mut::<T>()?;
        clip_values(values, low.values::<T>()?, high.values::<T>()?);
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// The number of values that are clipped at a time. A single bound is repeated this many times, so that the loop reads
/// one bound per value.
const CLIPPED: usize = 64;

/// Clips each value to its bounds. A single bound applies to all values.
fn clip_values<T: Clip>(values: &mut [T], low: &[T], high: &[T]) {
    if let (&[low], &[high]) = (low, high) {
        return values.iter_mut().for_each(|v| *v = v.between(low, high));
    }
    let block = |bound: &[T]| [bound.first().copied().unwrap_or_else(T::zeroed); CLIPPED];
    let (low_block, high_block) = (block(low), block(high));
    for (i, values) in values.chunks_mut(CLIPPED).enumerate() {
        let range = i * CLIPPED..i * CLIPPED + values.len();
        let low = if low.len() == 1 { &low_block[..] } else { &low[range.clone()] };
        let high = if high.len() == 1 { &high_block[..] } else { &high[range] };
        for ((v, &low), &high) in values.iter_mut().zip(low).zip(high) {
            *v = v.between(low, high);
        }
    }
}
