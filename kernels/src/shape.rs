//! Kernels that return shapes, or pass their input on with another shape. They read no elements of input 0, so they
//! serve as GPU kernels too.

use crate::numeric::copied::COPIED;
use crate::numeric::dispatch::INDEX;
use crate::numeric::strided::box_kernel;
use crate::plan::shape::{broadcast_to, integers};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result, invalid};
use graph::ops::shape::{pairs, reduced_axes, squeezed_axes};
use graph::shape::resolve_axis;
use graph::{DType, PartialShape, Shape, Tensor};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Shape", &[("out_type", INDEX)], shape),
    KernelDef::of("ShapeN", &[("out_type", INDEX)], shape),
    KernelDef::of("Size", &[("out_type", INDEX)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| {
            let count = ctx.shape(0)?.num_elements();
            let out = integers(dtype, &[count as i64])?.reshaped(Shape::scalar())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef {
        op: "Rank",
        make: |_| {
            Kernel::sync(|ctx| {
                let rank = ctx.shape(0)?.rank() as i32;
                ctx.set_output(0, Tensor::scalar(rank));
                Ok(())
            })
        },
        ..KernelDef::NEW
    },
    KernelDef::of("Reshape", &[("Tshape", INDEX)], |_| Kernel::sync(reshape)),
    KernelDef::of("ExpandDims", &[("Tdim", INDEX)], |_| Kernel::sync(expand_dims)),
    KernelDef { op: "Squeeze", make: squeeze, ..KernelDef::NEW },
    KernelDef::of("BroadcastTo", &[("T", COPIED), ("Tidx", INDEX)], |init| box_kernel(init, broadcast_to)),
    KernelDef::of("BroadcastArgs", &[("T", INDEX)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| {
            let (a, b) = shape_vectors(ctx)?;
            let out: Vec<i64> = pairs(&a, &b)?.into_iter().map(|(a, b)| if a == 1 { b } else { a }).collect();
            ctx.set_output(0, integers(dtype, &out)?);
            Ok(())
        })
    }),
    KernelDef::of("BroadcastGradientArgs", &[("T", INDEX)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| {
            let (a, b) = shape_vectors(ctx)?;
            let (first, second) = reduced_axes(&a, &b)?;
            ctx.set_output(0, integers(dtype, &first)?);
            ctx.set_output(1, integers(dtype, &second)?);
            Ok(())
        })
    }),
    KernelDef { op: "EnsureShape", make: ensure_shape, ..KernelDef::NEW },
];

fn shape(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("out_type")?;
    Kernel::sync(move |ctx| {
        for i in 0..ctx.num_inputs() {
            let sizes: SmallVec<[i64; 6]> = ctx.shape(i)?.iter().map(|&d| d as i64).collect();
            let sizes = integers(dtype, &sizes)?;
            ctx.set_output(i, sizes);
        }
        Ok(())
    })
}

/// Returns the shape of input 0, which [`pass`] passes on; the input may be a reference.
fn passed_shape(ctx: &KernelContext<'_>) -> Result<Shape> {
    let no_tensor = || Error::internal("input 0 has no value");
    ctx.value(0).and_then(Value::shape).ok_or_else(no_tensor)
}

/// Passes input 0 on with another shape, without a copy.
fn pass(ctx: &mut KernelContext<'_>, shape: Shape) -> Result<()> {
    let out = ctx.take_value(0).reshaped(shape)?;
    ctx.set_output(0, out);
    Ok(())
}

pub(crate) fn reshape(ctx: &mut KernelContext<'_>) -> Result<()> {
    let sizes = ctx.input(1)?;
    let elements = passed_shape(ctx)?.num_elements();
    let wanted = sizes.to_i64s()?;
    // A scalar is accepted too, as a vector of one size.
    if sizes.shape().rank() > 1 {
        invalid!("sizes input must be 1-D, not {}", sizes.shape());
    }
    let mut open = None;
    let mut known = 1usize;
    let mut dims: SmallVec<[usize; 6]> = SmallVec::with_capacity(wanted.len());
    for (i, &size) in wanted.iter().enumerate() {
        dims.push(match (size, open) {
            (-1, Some(first)) => invalid!("Only one input size may be -1, not both {first} and {i}"),
            (-1, None) => {
                open = Some(i);
                1
            }
            (size, _) => usize::try_from(size)
                .map_err(|_| Error::invalid(format!("Size {i} must be non-negative, not {size}")))?,
        });
        known = known
            .checked_mul(dims[i])
            .ok_or_else(|| Error::invalid(format!("Shape {wanted:?} has too many elements")))?;
    }
    if let Some(open) = open
        && known > 0
    {
        if elements % known != 0 {
            invalid!(
                "Input to reshape is a tensor with {elements} values, but the requested shape requires a multiple of {known}"
            );
        }
        dims[open] = elements / known;
    }
    let shape = Shape::new(&dims)?;
    if shape.num_elements() != elements {
        invalid!(
            "Input to reshape is a tensor with {elements} values, but the requested shape has {}",
            shape.num_elements()
        );
    }
    pass(ctx, shape)
}

fn expand_dims(ctx: &mut KernelContext<'_>) -> Result<()> {
    let &[axis] = ctx.input(1)?.to_i64s()?.as_slice() else {
        invalid!("'dim' must be a tensor with a single value");
    };
    let input = passed_shape(ctx)?;
    let Some(at) = resolve_axis(axis, input.rank() + 1) else {
        invalid!("Tried to expand dim index {axis} for tensor with {} dimensions.", input.rank());
    };
    let mut dims: SmallVec<[usize; 6]> = input.dims().into();
    dims.insert(at, 1);
    pass(ctx, Shape::new(&dims)?)
}

fn squeeze(init: &KernelInit<'_>) -> Result<Kernel> {
    let named: Vec<i64> = init.attr("squeeze_dims")?;
    Kernel::sync(move |ctx| {
        let input = passed_shape(ctx)?;
        let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
        if named.is_empty() {
            dims.extend(input.iter().copied().filter(|&d| d != 1));
        } else {
            let dropped = squeezed_axes(input.rank(), &named)?;
            for (i, (&d, drop)) in input.iter().zip(dropped).enumerate() {
                if drop && d != 1 {
                    invalid!("Can not squeeze dim[{i}], expected a dimension of 1, got {d}");
                }
                if !drop {
                    dims.push(d);
                }
            }
        }
        pass(ctx, Shape::new(&dims)?)
    })
}

fn ensure_shape(init: &KernelInit<'_>) -> Result<Kernel> {
    let expected: PartialShape = init.attr("shape")?;
    let name = init.node.name.clone();
    Kernel::sync(move |ctx| {
        let shape = passed_shape(ctx)?;
        if !expected.accepts(&shape) {
            invalid!("Shape of tensor {name} {shape} is not compatible with expected shape {expected}.");
        }
        pass(ctx, shape)
    })
}

/// Returns both inputs as lists of sizes. The sizes are not checked like a tensor's shape, because no tensor of such a
/// shape is made.
fn shape_vectors(ctx: &KernelContext<'_>) -> Result<(Vec<i64>, Vec<i64>)> {
    let read = |i: usize| -> Result<Vec<i64>> {
        let sizes = ctx.input(i)?;
        if sizes.shape().rank() != 1 {
            invalid!("In[{i}] must be a vector.{}", sizes.shape());
        }
        Ok(sizes.to_i64s()?.to_vec())
    };
    Ok((read(0)?, read(1)?))
}
