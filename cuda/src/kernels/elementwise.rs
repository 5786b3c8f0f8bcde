//! Kernels of element-wise functions: the templates `map`, `zip` and `zip_axes` of `prelude.cu`, instantiated
//! with the structure of a `.cu` file that defines the function.

use super::support::{Axes, allocate_or_reuse, function, launch, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Shape;
use kernels::numeric::broadcast::Plan;

/// Makes a kernel whose output 0 is the function `named` of input 0, element by element; `parameter` is passed
/// to the function.
pub(super) fn map(init: &KernelInit<'_>, source: &Source, named: &str, parameter: f64) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    let name = format!("map<{named}, {}, {}>", type_name(from)?, type_name(to)?);
    let function = function(init, source, name)?;
    Kernel::sync(move |ctx| {
        let mut x = ctx.take_device_input(0)?;
        let shape = x.shape.clone();
        let y = allocate_or_reuse(ctx, &mut x, to, shape)?;
        let n = y.shape.num_elements();
        let arguments = Arguments::new().address(read(&x)?).address(write(&y)?).count(n).real(parameter);
        launch(ctx, &function, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// A function that checks the shapes of two operands and returns how they broadcast.
pub(super) type ShapeCheck = fn(&KernelContext<'_>, &Shape, &Shape) -> Result<Plan>;

/// Returns how two shapes broadcast; fails if they do not.
pub(super) fn broadcast(_: &KernelContext<'_>, x: &Shape, y: &Shape) -> Result<Plan> {
    Plan::new(x, y)
}

/// Returns the plan of an op on two operands without broadcasting; fails if their numbers of elements differ.
pub(super) fn same_size(_: &KernelContext<'_>, x: &Shape, y: &Shape) -> Result<Plan> {
    if x.num_elements() != y.num_elements() {
        device::invalid!(
            "The two arguments to a cwise op must have same number of elements, got {} and {}",
            x.num_elements(),
            y.num_elements()
        );
    }
    Ok(Plan::flat(x))
}

/// Returns the plan of an op on two operands without broadcasting; fails if their shapes differ.
pub(super) fn same_shape(ctx: &KernelContext<'_>, x: &Shape, y: &Shape) -> Result<Plan> {
    if x != y {
        let (name, op) = (&ctx.node().name, ctx.node().op.name());
        device::invalid!(
            "Inputs to operation {name} of type {op} must have the same size and shape.  Input 0: {x} != input 1: {y}"
        );
    }
    Ok(Plan::flat(x))
}

/// Makes a kernel whose output 0 is the function `named` of inputs 0 and 1, element by element.
pub(super) fn zip(
    init: &KernelInit<'_>,
    source: &Source,
    named: &str,
    parameter: f64,
    check_shapes: ShapeCheck,
) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    let types = format!("<{named}, {}, {}>", type_name(from)?, type_name(to)?);
    let flat = function(init, source, format!("zip{types}"))?;
    let repeating = function(init, source, format!("zip_axes{types}"))?;
    Kernel::sync(move |ctx| {
        let (mut x, mut y) = (ctx.take_device_input(0)?, ctx.take_device_input(1)?);
        let plan = check_shapes(ctx, &x.shape, &y.shape)?;
        let axes = Axes::new(plan.axes().map(|(size, steps)| (size, steps.map(|s| s as isize))))?;
        let shape = plan.shape().clone();
        // The result may be written to the memory of an operand of the same size. The memory of an operand that
        // broadcasts is too small, so no element is overwritten before it is read.
        let fits_y = y.shape.num_elements() == shape.num_elements();
        let z = if fits_y && x.shape.num_elements() != shape.num_elements() {
            allocate_or_reuse(ctx, &mut y, to, shape)?
        } else {
            allocate_or_reuse(ctx, &mut x, to, shape)?
        };
        let n = z.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(&x)?)
            .address(read(&y)?)
            .address(write(&z)?)
            .count(n)
            .real(parameter);
        if axes.is_flat() {
            launch(ctx, &flat, n, arguments)?;
        } else {
            launch(ctx, &repeating, n, arguments.structure(axes.words()))?;
        }
        ctx.set_output(0, z);
        Ok(())
    })
}
