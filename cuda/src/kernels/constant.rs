//! Constants, fills and diagonals.

use super::copy::{Filler, Mover, SOURCE, make_box_copy, zeros};
use super::support::{
    COPIED, NUMBERS, allocate, allocate_or_reuse, copied_type_name, function, launch, read, type_name, write,
};
use crate::engine::{Arguments, engine_of};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::DType::{self, BFloat16, Complex64, Complex128, Double, Float, Half, Int32, Int64, UInt8};
use graph::{Shape, Tensor};
use kernels::numeric::dispatch::INDEX;
use kernels::numeric::strided::Layout;
use kernels::plan::constant::{along_diagonal, band, diag_part, with_diagonal};

/// Dtypes of `Diag` and `DiagPart`.
const DIAGONAL: &[DType] = &[Float, Double, Half, BFloat16, Int64, Complex64, Complex128];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Const", &[("dtype", COPIED)], constant),
    KernelDef { host_memory: &["dims"], ..KernelDef::enqueuing("Fill", &[("T", COPIED)], fill) },
    KernelDef::enqueuing("ZerosLike", &[("T", COPIED)], |_| {
        Kernel::sync(|ctx| {
            let x = ctx.device_input(0)?;
            let out = zeros(ctx, x.dtype, x.shape.clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::enqueuing("OnesLike", &[("T", NUMBERS)], ones_like),
    KernelDef {
        host_memory: &["depth"],
        ..KernelDef::enqueuing("OneHot", &[("T", COPIED), ("TI", &[UInt8, Int32, Int64])], one_hot)
    },
    KernelDef::enqueuing("Diag", &[("T", DIAGONAL)], diagonal),
    KernelDef::enqueuing("DiagPart", &[("T", DIAGONAL)], |init| make_box_copy(init, diag_part)),
    KernelDef {
        host_memory: &["num_lower", "num_upper"],
        ..KernelDef::enqueuing("MatrixBandPart", &[("T", COPIED), ("Tindex", INDEX)], band_part)
    },
];

/// Makes the kernel of `Const`, whose value is uploaded once and shared by all steps.
fn constant(init: &KernelInit<'_>) -> Result<Kernel> {
    let (value, dtype) = (init.attr::<Tensor>("value")?, init.attr::<DType>("dtype")?);
    if value.dtype() != dtype {
        device::invalid!("a Const of {dtype} has a value of {}", value.dtype());
    }
    let value = engine_of(&**init.device)?.upload(&init.node.name, &value)?;
    Kernel::sync(move |ctx| {
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

fn fill(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let filler = Filler::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (dims, value) = (ctx.input(0)?, ctx.device_input(1)?);
        if dims.shape().rank() > 1 {
            device::invalid!("dims must represent a vector, got shape {}", dims.shape());
        }
        if value.shape.num_elements() != 1 {
            device::invalid!("value must represent a scalar, got shape {}", value.shape);
        }
        let out = allocate(ctx, dtype, Shape::from_i64(&dims.to_i64s()?)?)?;
        filler.fill(ctx, value, &out)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn ones_like(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let ones = function(init, &SOURCE, format!("ones<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let out = allocate(ctx, dtype, ctx.shape(0)?.clone())?;
        let n = out.shape.num_elements();
        launch(ctx, &ones, n, Arguments::new().address(write(&out)?).count(n))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `OneHot`.
fn one_hot(init: &KernelInit<'_>) -> Result<Kernel> {
    let axis: i64 = init.attr("axis")?;
    let (dtype, index) = (init.output_type(0), init.input_type(0));
    let name = format!("one_hot<{}, {}>", copied_type_name(dtype)?, type_name(index)?);
    let one_hot = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (indices, on, off) = (ctx.device_input(0)?, ctx.device_input(2)?, ctx.device_input(3)?);
        let rank = indices.shape.rank();
        let at = if axis == -1 { rank } else { usize::try_from(axis).unwrap_or(usize::MAX) };
        if at > rank {
            device::invalid!("Expected axis to be -1 or between [0, {}).  But received: {axis}", rank + 1);
        }
        for (i, name) in [(1, "depth"), (2, "on_value"), (3, "off_value")] {
            if ctx.shape(i)?.rank() != 0 {
                device::invalid!("{name} must be a scalar, but got: {}", ctx.shape(i)?);
            }
        }
        let depth = ctx.input(1)?.item::<i32>()?;
        let Ok(depth) = usize::try_from(depth) else {
            device::invalid!("depth must be non-negative, got: {depth}");
        };
        let mut dims = indices.shape.dims().to_vec();
        let inner: usize = dims[at..].iter().product();
        dims.insert(at, depth);
        let out = allocate(ctx, dtype, Shape::new(&dims)?)?;
        let n = out.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(indices)?)
            .address(read(on)?)
            .address(read(off)?)
            .address(write(&out)?)
            .count(n)
            .count(depth)
            .count(inner);
        launch(ctx, &one_hot, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `Diag`.
fn diagonal(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = Mover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let shape = with_diagonal(ctx)?;
        let x = ctx.device_input(0)?;
        let n = x.shape.num_elements();
        let out = zeros(ctx, dtype, shape)?;
        mover.copy(ctx, &[n], (x, &Layout::packed(&[n])), (&out, &along_diagonal(n)))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `MatrixBandPart`.
fn band_part(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let keep = function(init, &SOURCE, format!("band<{}>", copied_type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let ([rows, columns], [lower, upper]) = band(ctx)?;
        let mut x = ctx.take_device_input(0)?;
        let (shape, n) = (x.shape.clone(), x.shape.num_elements());
        let y = allocate_or_reuse(ctx, &mut x, dtype, shape)?;
        let arguments = Arguments::new()
            .address(read(&x)?)
            .address(write(&y)?)
            .count(n)
            .count(rows)
            .count(columns)
            .integer(lower)
            .integer(upper);
        launch(ctx, &keep, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}
