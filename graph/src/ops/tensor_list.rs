//! Tensor lists, held by variants.

use super::{InferFn, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const SHAPED: &[&str] = &["element_dtype: type", "shape_type: {int32, int64}"];
const TYPED: &[&str] = &["element_dtype: type"];

const fn of(
    name: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
    attrs: &'static [&'static str],
    infer: InferFn,
) -> OpDef {
    OpDef { name, inputs, outputs, attrs, infer, ..OpDef::NEW }
}

pub(super) const OPS: &[OpDef] = &[
    of(
        "EmptyTensorList",
        &["element_shape: shape_type", "max_num_elements: int32"],
        &["handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListReserve",
        &["element_shape: shape_type", "num_elements: int32"],
        &["handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListFromTensor",
        &["tensor: element_dtype", "element_shape: shape_type"],
        &["output_handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListStack",
        &["input_handle: variant", "element_shape: int32"],
        &["tensor: element_dtype"],
        &["element_dtype: type", "num_elements: int = -1"],
        |infer| {
            let count = infer.attr::<i64>("num_elements")?;
            stacked(infer, 1, usize::try_from(count).ok())
        },
    ),
    of(
        "TensorListGetItem",
        &["input_handle: variant", "index: int32", "element_shape: Tshape"],
        &["item: element_dtype"],
        &["element_dtype: type", "Tshape: {int32, int64} = int32"],
        |infer| {
            let shape = infer.value_as_shape(2)?;
            infer.set(0, shape);
            Ok(())
        },
    ),
    of(
        "TensorListSetItem",
        &["input_handle: variant", "index: int32", "item: element_dtype"],
        &["output_handle: variant"],
        &["element_dtype: type", "resize_if_index_out_of_bounds: bool = false"],
        scalar,
    ),
    of(
        "TensorListPushBack",
        &["input_handle: variant", "tensor: element_dtype"],
        &["output_handle: variant"],
        TYPED,
        scalar,
    ),
    of(
        "TensorListPopBack",
        &["input_handle: variant", "element_shape: int32"],
        &["output_handle: variant", "tensor: element_dtype"],
        TYPED,
        |infer| {
            infer.set(0, PartialShape::scalar());
            let shape = infer.value_as_shape(1)?;
            infer.set(1, shape);
            Ok(())
        },
    ),
    // TensorListLength reads only the variant, not the tensors in the list, so it runs on the device of the list.
    OpDef {
        traits: Traits::METADATA,
        ..of("TensorListLength", &["input_handle: variant"], &["length: int32"], &[], scalar)
    },
    OpDef {
        traits: Traits::METADATA,
        ..of(
            "TensorListResize",
            &["input_handle: variant", "size: int32"],
            &["output_handle: variant"],
            &[],
            scalar,
        )
    },
    OpDef {
        traits: Traits::METADATA,
        ..of(
            "TensorListElementShape",
            &["input_handle: variant"],
            &["element_shape: shape_type"],
            &["shape_type: {int32, int64}"],
            super::unknown_shapes,
        )
    },
    of(
        "TensorListGather",
        &["input_handle: variant", "indices: int32", "element_shape: int32"],
        &["values: element_dtype"],
        TYPED,
        |infer| {
            let count = infer.input_of_rank(1, 1)?.dim(0);
            stacked(infer, 2, count)
        },
    ),
    of(
        "TensorListScatter",
        &["tensor: element_dtype", "indices: int32", "element_shape: shape_type"],
        &["output_handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListScatterV2",
        &["tensor: element_dtype", "indices: int32", "element_shape: shape_type", "num_elements: int32"],
        &["output_handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListScatterIntoExistingList",
        &["input_handle: variant", "tensor: element_dtype", "indices: int32"],
        &["output_handle: variant"],
        TYPED,
        scalar,
    ),
    of(
        "TensorListSplit",
        &["tensor: element_dtype", "element_shape: shape_type", "lengths: int64"],
        &["output_handle: variant"],
        SHAPED,
        scalar,
    ),
    of(
        "TensorListConcat",
        &["input_handle: variant"],
        &["tensor: element_dtype", "lengths: int64"],
        &["element_dtype: type", "element_shape: shape = ?"],
        |infer| {
            let shape = infer.attr::<PartialShape>("element_shape")?;
            concatenated(infer, &shape)
        },
    ),
    of(
        "TensorListConcatV2",
        &["input_handle: variant", "element_shape: shape_type", "leading_dims: int64"],
        &["tensor: element_dtype", "lengths: int64"],
        SHAPED,
        |infer| {
            let shape = infer.value_as_shape(1)?;
            concatenated(infer, &shape)
        },
    ),
    of(
        "TensorListConcatLists",
        &["input_a: variant", "input_b: variant"],
        &["output: variant"],
        TYPED,
        |infer| {
            let shape = infer.input(0).merge(&infer.input(1))?;
            infer.set(0, shape);
            Ok(())
        },
    ),
    of(
        "TensorListPushBackBatch",
        &["input_handles: variant", "tensor: element_dtype"],
        &["output_handles: variant"],
        TYPED,
        |infer| {
            let shape = infer.input(0);
            infer.set(0, shape);
            Ok(())
        },
    ),
];

fn scalar(infer: &mut Infer<'_>) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    Ok(())
}

/// Sets the output's shape for a stack of `count` elements; input `i` holds the shape of one element.
fn stacked(infer: &mut Infer<'_>, i: usize, count: Dim) -> Result<()> {
    let element = infer.value_as_shape(i)?;
    if let Some(dims) = element.dims() {
        infer.set(0, PartialShape::of_dims(std::iter::once(count).chain(dims.iter().copied())));
    }
    Ok(())
}

/// Sets the shapes of concatenated elements, whose first size is unknown, and of the vector of their lengths.
fn concatenated(infer: &mut Infer<'_>, element: &PartialShape) -> Result<()> {
    if let Some([_, rest @ ..]) = element.dims() {
        infer.set(0, PartialShape::of_dims(std::iter::once(None).chain(rest.iter().copied())));
    }
    infer.set(1, PartialShape::vector(None));
    Ok(())
}
