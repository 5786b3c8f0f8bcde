//! Scatter updates of rows or slices of a variable or tensor, in no fixed order for repeated indices. An index
//! out of range is skipped, because a kernel cannot report an error.

use super::cast::Narrowing;
use super::copy::zeros;
use super::gather::indexed;
use super::host::same_as_cpu;
use super::support::{COPIED, copied_type_name, function, launch, read, type_name, wide, write};
use super::variable::{make_unique, update_value};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{ALL_ARGUMENTS, Kernel, KernelContext, KernelDef, KernelInit};
use device::variable::VariableInput;
use device::{DeviceTensor, Result};
use graph::{DType, Shape};
use kernels::numeric::dispatch::INDEX;
use kernels::plan::scatter::{check_nothing_for_empty, check_slices, one_for_each, pass_reference};
use std::sync::Arc;

static SOURCE: Source = Source { file: "scatter.cu", text: include_str!("scatter.cu") };

/// Dtypes for which several threads can update one element concurrently.
pub(super) const CHANGED: &[DType] =
    &[DType::Float, DType::Double, DType::Int64, DType::Half, DType::BFloat16];

/// Defines scatter kernels. A line has the op, the attribute with its dtype, the dtypes, the function that
/// makes the kernel, and the name of the update in the `.cu` file.
macro_rules! kernels {
    ($($def:ident: $($op:literal $type_attr:literal $types:ident $make:ident $function:literal;)*)*) => {
        &[
            $($(
                KernelDef::$def($op, &[($type_attr, $types), ("Tindices", INDEX)], |init| $make(init, $function)),
            )*)*
            KernelDef {
                host_memory: &["shape"],
                ..KernelDef::enqueuing("ScatterNd", &[("T", CHANGED), ("Tindices", INDEX)], scatter_nd)
            },
            same_as_cpu(
                "TensorScatterUpdate",
                &[("T", &[DType::Int32]), ("Tindices", INDEX)],
                ALL_ARGUMENTS,
            ),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    updating:
    "ScatterAdd" "T" CHANGED rows "Add";
    "ScatterSub" "T" CHANGED rows "Sub";
    "ScatterMul" "T" CHANGED rows "Mul";
    "ScatterDiv" "T" CHANGED rows "Div";
    "ScatterMin" "T" CHANGED rows "Min";
    "ScatterMax" "T" CHANGED rows "Max";
    "ScatterUpdate" "T" COPIED rows "Update";
    "ResourceScatterAdd" "dtype" CHANGED rows "Add";
    "ResourceScatterSub" "dtype" CHANGED rows "Sub";
    "ResourceScatterMul" "dtype" CHANGED rows "Mul";
    "ResourceScatterDiv" "dtype" CHANGED rows "Div";
    "ResourceScatterMin" "dtype" CHANGED rows "Min";
    "ResourceScatterMax" "dtype" CHANGED rows "Max";
    "ResourceScatterUpdate" "dtype" COPIED rows "Update";
    "ScatterNdAdd" "T" CHANGED slices "Add";
    "ScatterNdSub" "T" CHANGED slices "Sub";
    "ScatterNdMin" "T" CHANGED slices "Min";
    "ScatterNdMax" "T" CHANGED slices "Max";
    "ScatterNdUpdate" "T" COPIED slices "Update";
    "ResourceScatterNdAdd" "T" CHANGED slices "Add";
    "ResourceScatterNdSub" "T" CHANGED slices "Sub";
    "ResourceScatterNdMin" "T" CHANGED slices "Min";
    "ResourceScatterNdMax" "T" CHANGED slices "Max";
    "ResourceScatterNdUpdate" "T" COPIED slices "Update";
    enqueuing:
    "TensorScatterAdd" "T" CHANGED on_tensor "Add";
    "TensorScatterSub" "T" CHANGED on_tensor "Sub";
    "TensorScatterMin" "T" CHANGED on_tensor "Min";
    "TensorScatterMax" "T" CHANGED on_tensor "Max";
    "TensorScatterUpdate" "T" COPIED on_tensor "Update";
    "ScatterNdNonAliasingAdd" "T" CHANGED on_tensor "Add";
};

/// Loads a kernel of `scatter.cu` that updates elements of dtype `to` by elements of dtype `from`. `named` is
/// the update, such as `Add`; the update `Update` only copies elements.
fn updating(
    init: &KernelInit<'_>,
    kernel: &str,
    named: &str,
    [to, from]: [DType; 2],
    index: DType,
) -> Result<Arc<Function>> {
    let name = if named == "Update" { copied_type_name } else { type_name };
    let (to, from) = (name(to)?, name(from)?);
    function(init, &SOURCE, format!("{kernel}<{named}, {to}, {from}, {}>", type_name(index)?))
}

/// Loads the kernel that sets all elements of a tensor to the initial value of a minimum, maximum or product
/// (`named`).
pub(super) fn start(init: &KernelInit<'_>, named: &str, dtype: DType) -> Result<Arc<Function>> {
    function(init, &SOURCE, format!("start<{named}, {}>", type_name(dtype)?))
}

/// The kernel that updates rows of a tensor by rows of another.
pub(super) struct Scatter(Arc<Function>);

impl Scatter {
    /// Loads the kernel that updates rows of dtype `types[0]` by rows of dtype `types[1]`.
    pub(super) fn new(
        init: &KernelInit<'_>,
        named: &str,
        types: [DType; 2],
        index: DType,
    ) -> Result<Scatter> {
        Ok(Scatter(updating(init, "scatter", named, types, index)?))
    }

    /// Enqueues the update; `updates` has a row for each index, or is one element for all rows.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        to: &DeviceTensor,
        indices: &DeviceTensor,
        updates: &DeviceTensor,
    ) -> Result<()> {
        let Some((&rows, row)) = to.shape.split_first() else {
            device::invalid!("var must be at least 1 dimensional");
        };
        let inner: usize = row.iter().product();
        let n = indices.shape.num_elements() * inner;
        let arguments = Arguments::new()
            .address(write(to)?)
            .address(read(indices)?)
            .address(read(updates)?)
            .count(n)
            .count(rows)
            .count(inner)
            .count(usize::from(updates.shape.rank() > 0));
        launch(ctx, &self.0, n, arguments)
    }
}

/// Makes a kernel that updates rows of a variable.
fn rows(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(2);
    let scatter = Scatter::new(init, named, [dtype; 2], init.input_type(1))?;
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        let (indices, updates) = (ctx.device_input(1)?, ctx.device_input(2)?);
        update_value(ctx, &target, |params| {
            if params.dtype != dtype {
                device::invalid!("Trying to scatter {dtype} into a variable of {}", params.dtype);
            }
            let row = params.shape.get(1..).unwrap_or_default();
            let expected = [&indices.shape[..], row].concat();
            if updates.shape.rank() > 0 && updates.shape.dims() != expected {
                device::invalid!(
                    "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got \
                     updates.shape {}, indices.shape {}, params.shape {}",
                    updates.shape,
                    indices.shape,
                    params.shape
                );
            }
            scatter.run(ctx, params, indices, updates)
        })?;
        pass_reference(ctx, &variable, target);
        Ok(())
    })
}

/// The kernel that updates slices of a tensor by slices of another.
struct Slices(Arc<Function>);

impl Slices {
    /// Loads the kernel that updates slices of dtype `types[0]` by slices of dtype `types[1]`.
    fn new(init: &KernelInit<'_>, named: &str, types: [DType; 2], index: DType) -> Result<Slices> {
        Ok(Slices(updating(init, "scatter_nd", named, types, index)?))
    }

    /// Enqueues the update; `depth` is the length of an index vector.
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        to: &DeviceTensor,
        indices: &DeviceTensor,
        updates: &DeviceTensor,
        depth: usize,
    ) -> Result<()> {
        let n = updates.shape.num_elements();
        let arguments = Arguments::new()
            .address(write(to)?)
            .address(read(indices)?)
            .address(read(updates)?)
            .count(n)
            .count(to.shape[depth..].iter().product())
            .structure(indexed(&to.shape, depth)?);
        launch(ctx, &self.0, n, arguments)
    }
}

/// Makes a kernel that updates slices of a variable.
fn slices(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(2);
    let scatter = Slices::new(init, named, [dtype; 2], init.input_type(1))?;
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        let (indices, updates) = (ctx.device_input(1)?, ctx.device_input(2)?);
        update_value(ctx, &target, |params| {
            if params.dtype != dtype {
                device::invalid!("Trying to scatter {dtype} into a variable of {}", params.dtype);
            }
            check_nothing_for_empty(&params.shape, &indices.shape, &updates.shape)?;
            let read_in = one_for_each(&indices.shape);
            let depth = check_slices(&params.shape, &indices.shape, &read_in, &updates.shape)?;
            scatter.run(ctx, params, indices, updates, depth)
        })?;
        pass_reference(ctx, &variable, target);
        Ok(())
    })
}

/// Makes a kernel that outputs its first input with some slices updated; the update is in place if no other
/// tensor shares the memory.
fn on_tensor(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let scatter = Slices::new(init, named, [init.input_type(2); 2], init.input_type(1))?;
    let is_as_variable = init.node.op.name() == "ScatterNdNonAliasingAdd";
    Kernel::sync(move |ctx| {
        let mut params = ctx.take_device_input(0)?;
        let (indices, updates) = (ctx.device_input(1)?, ctx.device_input(2)?);
        check_nothing_for_empty(&params.shape, &indices.shape, &updates.shape)?;
        let read_in = if is_as_variable { one_for_each(&indices.shape) } else { indices.shape[..].into() };
        let depth = check_slices(&params.shape, &indices.shape, &read_in, &updates.shape)?;
        make_unique(ctx, &mut params)?;
        scatter.run(ctx, &params, indices, updates, depth)?;
        ctx.set_output(0, params);
        Ok(())
    })
}

/// Makes the kernel of `ScatterNd`.
fn scatter_nd(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let scatter = Slices::new(init, "Add", [wide(dtype), dtype], init.input_type(0))?;
    let narrow = Narrowing::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (indices, updates, sizes) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.input(2)?);
        if sizes.shape().rank() != 1 {
            device::invalid!("Shape must be a vector");
        }
        let shape = Shape::from_i64(&sizes.to_i64s()?)?;
        let Some((&depth, outer)) = indices.shape.split_last() else {
            device::invalid!("Indices shape must have rank at least one. Found:{}", indices.shape);
        };
        let (count, given) = (outer.len(), &updates.shape);
        if shape.num_elements() == 0 && (indices.shape.num_elements() > 0 || given.num_elements() > 0) {
            device::invalid!(
                "Indices and updates specified for empty output.  indices shape: {}",
                indices.shape
            );
        }
        if given.get(..count) != Some(outer) {
            device::invalid!(
                "Dimensions [0,{count}) of indices[shape={}] must match dimensions [0,{count}) of updates[shape={given}]",
                indices.shape
            );
        }
        if depth > shape.rank() || given[count..] != shape[depth..] {
            device::invalid!(
                "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{count},{}) of \
                 updates[shape={given}]",
                shape.rank(),
                given.rank()
            );
        }
        let sums = zeros(ctx, wide(dtype), shape)?;
        scatter.run(ctx, &sums, indices, updates, depth)?;
        let out = narrow.run(ctx, sums)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
