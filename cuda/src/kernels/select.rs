//! Selection of elements by a condition, and clipping.

use super::support::{
    Axes, COPIED, ORDERED, allocate, allocate_or_reuse, copied_type_name, function, launch, read, repeated,
    type_name, write,
};
use crate::engine::{Arguments, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{PartialShape, Shape};
use kernels::plan::select::check_bounds;
use smallvec::SmallVec;

static SOURCE: Source = Source { file: "select.cu", text: include_str!("select.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Select", &[("T", COPIED)], |init| choosing(init, rows)),
    KernelDef::enqueuing("SelectV2", &[("T", COPIED)], |init| choosing(init, broadcast)),
    KernelDef::enqueuing("ClipByValue", &[("T", ORDERED)], clip),
];

/// A function that checks the inputs' shapes, and returns the result's shape and the strides of the condition
/// along the result's axes.
type Plan = fn(&KernelContext<'_>) -> Result<(Shape, SmallVec<[isize; 6]>)>;

/// Makes the kernel of `Select` or `SelectV2`.
fn choosing(init: &KernelInit<'_>, plan: Plan) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let select = function(init, &SOURCE, format!("select<{}>", copied_type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (shape, condition) = plan(ctx)?;
        let (yes, no) = (ctx.device_input(1)?, ctx.device_input(2)?);
        let (of_yes, of_no) = (repeated(&yes.shape, &shape), repeated(&no.shape, &shape));
        let axes = Axes::new((0..shape.rank()).map(|i| (shape[i], [condition[i], of_yes[i], of_no[i]])))?;
        let out = allocate(ctx, dtype, shape)?;
        let n = out.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(ctx.device_input(0)?)?)
            .address(read(yes)?)
            .address(read(no)?)
            .address(write(&out)?)
            .count(n)
            .structure(axes.words());
        launch(ctx, &select, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the plan of `Select`, whose condition has one element for each element of the result, one for each row, or
/// one in all.
fn rows(ctx: &KernelContext<'_>) -> Result<(Shape, SmallVec<[isize; 6]>)> {
    let (condition, shape, other) = (ctx.shape(0)?, ctx.shape(1)?, ctx.shape(2)?);
    if shape != other {
        device::invalid!("'then' and 'else' must have the same size.  but received: {shape} vs. {other}");
    }
    let places = if condition == shape || condition.rank() == 0 {
        repeated(condition, shape)
    } else if condition.rank() == 1 {
        let Some(&rows) = shape.first() else {
            device::invalid!("'then' must be at least a vector, but saw shape: {shape}");
        };
        if rows != condition[0] {
            device::invalid!(
                "Number of batches of 'then' must match size of 'cond', but saw: {rows} vs. {}",
                condition[0]
            );
        }
        (0..shape.rank()).map(|axis| isize::from(axis == 0)).collect()
    } else {
        device::invalid!(
            "Inputs to operation {} of type Select must have the same size and shape.  Input 0: {condition} != input 1: \
             {shape}",
            ctx.node().name
        );
    };
    Ok((shape.clone(), places))
}

/// Returns the plan of `SelectV2`, whose inputs broadcast.
fn broadcast(ctx: &KernelContext<'_>) -> Result<(Shape, SmallVec<[isize; 6]>)> {
    let (condition, yes, no) = (ctx.shape(0)?, ctx.shape(1)?, ctx.shape(2)?);
    let both = PartialShape::broadcast(&yes.into(), &no.into());
    let all = both.and_then(|both| PartialShape::broadcast(&condition.into(), &both));
    let Some(shape) = all.ok().and_then(|all| all.as_shape()) else {
        device::invalid!("condition {condition}, then {yes}, and else {no} must be broadcastable");
    };
    let places = repeated(condition, &shape);
    Ok((shape, places))
}

/// Makes the kernel of `ClipByValue`.
fn clip(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let clip = function(init, &SOURCE, format!("clip<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        check_bounds(ctx)?;
        let mut x = ctx.take_device_input(0)?;
        let (low, high) = (ctx.device_input(1)?, ctx.device_input(2)?);
        let shape = x.shape.clone();
        let y = allocate_or_reuse(ctx, &mut x, dtype, shape)?;
        let n = y.shape.num_elements();
        let step = |bound: &DeviceTensor| usize::from(bound.shape.rank() > 0);
        let arguments = Arguments::new()
            .address(read(&x)?)
            .address(read(low)?)
            .address(read(high)?)
            .address(write(&y)?)
            .count(n)
            .count(step(low))
            .count(step(high));
        launch(ctx, &clip, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}
