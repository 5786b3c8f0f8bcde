//! Helpers with which the dataset kernels read attributes and inputs.

use crate::objects::dataset::fingerprint::MakerNode;
use crate::objects::dataset::function::{CapturedFunction, ElementFunction, GraphFunction};
use crate::objects::dataset::{Dataset, DatasetVariant, ElementSpec};
use bytes::Bytes;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Bool8, DType, PartialShape, Tensor};
use std::sync::Arc;

/// Returns the dtypes and shapes of the dataset's elements, from the node's attributes.
pub(crate) fn spec(init: &KernelInit<'_>) -> Result<ElementSpec> {
    let dtypes = match init.node.op.attr_spec("output_types") {
        Some(_) => init.attr::<Vec<DType>>("output_types")?,
        None => init.attr::<Vec<DType>>("Toutput_types")?,
    };
    ElementSpec::new(dtypes, init.attr::<Vec<PartialShape>>("output_shapes")?)
}

/// Returns the kernel of a node whose output is the dataset that `make` returns.
pub(crate) fn dataset_kernel(
    init: &KernelInit<'_>,
    make: impl Fn(&mut KernelContext<'_>) -> Result<Arc<Dataset>> + Send + Sync + 'static,
) -> Result<Kernel> {
    let maker = MakerNode::of(init);
    Kernel::sync(move |ctx| {
        let dataset = make(ctx)?.with_maker(&maker, tensors(ctx, 0..ctx.num_inputs())?);
        // The nesting depth of the variant counts the kernel's inputs, because the dataset may contain them.
        let variant = DatasetVariant::tensor(dataset, ctx.inputs_from(0)?)?;
        ctx.set_output(0, variant);
        Ok(())
    })
}

/// Returns the dataset in input `i`.
pub(crate) fn dataset(ctx: &KernelContext<'_>, i: usize) -> Result<Arc<Dataset>> {
    DatasetVariant::of(ctx.input(i)?)
}

/// Returns the tensor in input `i`, which must have one element; `name` is the input's name in messages.
fn scalar<'a>(ctx: &'a KernelContext<'_>, i: usize, name: &str) -> Result<&'a Tensor> {
    let tensor = ctx.input(i)?;
    if tensor.num_elements() != 1 {
        device::invalid!("{name} must be a scalar");
    }
    Ok(tensor)
}

/// Returns the `int32` or `int64` scalar in input `i`.
pub(crate) fn integer(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<i64> {
    let tensor = scalar(ctx, i, name)?;
    match tensor.dtype() {
        DType::Int32 => Ok(tensor.item::<i32>()?.into()),
        _ => Ok(tensor.item::<i64>()?),
    }
}

/// Returns the boolean scalar in input `i`.
pub(crate) fn boolean(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<bool> {
    Ok(scalar(ctx, i, name)?.item::<Bool8>()?.get())
}

/// Returns the string scalar in input `i`.
pub(crate) fn string(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Bytes> {
    Ok(scalar(ctx, i, name)?.as_strings()?[0].clone())
}

/// Returns the tensors in a range of inputs.
pub(crate) fn tensors(ctx: &KernelContext<'_>, range: std::ops::Range<usize>) -> Result<Vec<Tensor>> {
    range.map(|i| ctx.input(i).cloned()).collect()
}

/// Returns the function that an attribute names.
pub(crate) fn function(init: &KernelInit<'_>, attr: &str) -> Result<Arc<dyn ElementFunction>> {
    Ok(Arc::new(GraphFunction(init.function(attr)?)))
}

/// Returns the function with the tensors in `inputs` as captured arguments.
pub(crate) fn captured(
    ctx: &KernelContext<'_>,
    function: &Arc<dyn ElementFunction>,
    inputs: std::ops::Range<usize>,
) -> Result<CapturedFunction> {
    Ok(CapturedFunction { function: function.clone(), arguments: tensors(ctx, inputs)? })
}

/// Returns the number of dtypes in the list attribute `attr`.
pub(crate) fn count(init: &KernelInit<'_>, attr: &str) -> Result<usize> {
    Ok(init.attr::<Vec<DType>>(attr)?.len())
}
