//! Tensor arrays, which the iterations of a loop write and read, each element once.
//!
//! The three generations differ in the type of the handle: a reference to a string, a string, a resource.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "TensorArray",
        inputs: &["size: int32"],
        outputs: &["handle: Ref(string)"],
        attrs: &[
            "dtype: type",
            "dynamic_size: bool = false",
            "clear_after_read: bool = true",
            "tensor_array_name: string = ''",
            "element_shape: shape = ?",
        ],
        infer: legacy_handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGrad",
        inputs: &["handle: string", "flow_in: float"],
        outputs: &["grad_handle: Ref(string)"],
        attrs: &["source: string"],
        infer: legacy_handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayWrite",
        inputs: &["handle: Ref(string)", "index: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: write,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayRead",
        inputs: &["handle: Ref(string)", "index: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type"],
        infer: read,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayPack",
        inputs: &["handle: Ref(string)", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type", "element_shape: shape = ?"],
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayUnpack",
        inputs: &["handle: Ref(string)", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: scalar,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGather",
        inputs: &["handle: Ref(string)", "indices: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type", "element_shape: shape = ?"],
        infer: gather,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayScatter",
        inputs: &["handle: Ref(string)", "indices: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: scatter,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayConcat",
        inputs: &["handle: Ref(string)", "flow_in: float"],
        outputs: &["value: dtype", "lengths: int64"],
        attrs: &["dtype: type", "element_shape_except0: shape = ?"],
        infer: concat,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySplit",
        inputs: &["handle: Ref(string)", "value: T", "lengths: int64", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: split,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySize",
        inputs: &["handle: Ref(string)", "flow_in: float"],
        outputs: &["size: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayClose",
        inputs: &["handle: Ref(string)"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayV2",
        inputs: &["size: int32"],
        outputs: &["handle: string"],
        attrs: &[
            "dtype: type",
            "element_shape: shape = ?",
            "dynamic_size: bool = false",
            "clear_after_read: bool = true",
            "tensor_array_name: string = ''",
        ],
        infer: legacy_handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGradV2",
        inputs: &["handle: string", "flow_in: float"],
        outputs: &["grad_handle: string"],
        attrs: &["source: string"],
        infer: legacy_handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayWriteV2",
        inputs: &["handle: string", "index: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: write,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayReadV2",
        inputs: &["handle: string", "index: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type"],
        infer: read,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGatherV2",
        inputs: &["handle: string", "indices: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type", "element_shape: shape = ?"],
        infer: gather,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayScatterV2",
        inputs: &["handle: string", "indices: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: scatter,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayConcatV2",
        inputs: &["handle: string", "flow_in: float"],
        outputs: &["value: dtype", "lengths: int64"],
        attrs: &["dtype: type", "element_shape_except0: shape = ?"],
        infer: concat,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySplitV2",
        inputs: &["handle: string", "value: T", "lengths: int64", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: split,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySizeV2",
        inputs: &["handle: string", "flow_in: float"],
        outputs: &["size: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef { name: "TensorArrayCloseV2", inputs: &["handle: string"], gradient: Gradient::Leaf, ..OpDef::NEW },
    OpDef {
        name: "TensorArrayV3",
        inputs: &["size: int32"],
        outputs: &["handle: resource", "flow: float"],
        attrs: &[
            "dtype: type",
            "element_shape: shape = ?",
            "dynamic_size: bool = false",
            "clear_after_read: bool = true",
            "identical_element_shapes: bool = false",
            "tensor_array_name: string = ''",
        ],
        infer: array,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGradV3",
        inputs: &["handle: resource", "flow_in: float"],
        outputs: &["grad_handle: resource", "flow_out: float"],
        attrs: &["source: string"],
        infer: array,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGradWithShape",
        inputs: &["handle: resource", "flow_in: float", "shape_to_prepend: int32"],
        outputs: &["grad_handle: resource", "flow_out: float"],
        attrs: &["source: string"],
        infer: array,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayWriteV3",
        inputs: &["handle: resource", "index: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: write,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayReadV3",
        inputs: &["handle: resource", "index: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type"],
        infer: read,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayGatherV3",
        inputs: &["handle: resource", "indices: int32", "flow_in: float"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type", "element_shape: shape = ?"],
        infer: gather,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayScatterV3",
        inputs: &["handle: resource", "indices: int32", "value: T", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: scatter,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayConcatV3",
        inputs: &["handle: resource", "flow_in: float"],
        outputs: &["value: dtype", "lengths: int64"],
        attrs: &["dtype: type", "element_shape_except0: shape = ?"],
        infer: concat,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySplitV3",
        inputs: &["handle: resource", "value: T", "lengths: int64", "flow_in: float"],
        outputs: &["flow_out: float"],
        attrs: &["T: type"],
        infer: split,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArraySizeV3",
        inputs: &["handle: resource", "flow_in: float"],
        outputs: &["size: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TensorArrayCloseV3",
        inputs: &["handle: resource"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

fn legacy_handle(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::vector(Some(2)));
    Ok(())
}

/// Sets the shapes of the outputs handle and flow, and records the dtype and shape of the array's elements for the
/// handle, as far as they are known.
fn array(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    infer.set(1, PartialShape::scalar());
    let known = match infer.handle(0) {
        Some(of_forward) => Some(of_forward),
        None if infer.op().attr_spec("dtype").is_some() && infer.attr("identical_element_shapes")? => {
            Some((infer.attr("dtype")?, infer.attr("element_shape")?))
        }
        None => None,
    };
    if let Some((dtype, shape)) = known.filter(|_| infer.num_inputs() < 3) {
        infer.set_handle(0, dtype, shape);
    }
    Ok(())
}

fn write(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    infer.set(0, PartialShape::scalar());
    if let Some((_, shape)) = infer.handle(0) {
        infer.input(2).merge(&shape)?;
    }
    Ok(())
}

fn read(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    if let Some((_, shape)) = infer.handle(0) {
        infer.set(0, shape);
    }
    Ok(())
}

fn gather(infer: &mut Infer<'_>) -> Result<()> {
    let indices = infer.input_of_rank(1, 1)?;
    let shape = match infer.handle(0) {
        Some((_, shape)) => shape,
        None => infer.attr("element_shape")?,
    };
    if let Some(dims) = shape.dims() {
        let all = [indices.dim(0)].into_iter().chain(dims.iter().copied());
        infer.set(0, PartialShape::of_dims(all));
    }
    Ok(())
}

fn scatter(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 1)?;
    infer.set(0, PartialShape::scalar());
    Ok(())
}

fn concat(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(1, PartialShape::vector(None));
    Ok(())
}

fn split(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(2, 1)?;
    infer.set(0, PartialShape::scalar());
    Ok(())
}
