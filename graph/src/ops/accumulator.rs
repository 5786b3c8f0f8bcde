//! Accumulators of gradients: the gradients of several replicas are averaged when enough of them have arrived.

use super::check::scalar;
use super::queue::handle;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ConditionalAccumulator",
        outputs: &["handle: Ref(string)"],
        attrs: &[
            "dtype: numbertype",
            "shape: shape",
            "container: string = ''",
            "shared_name: string = ''",
            "reduction_type: {'MEAN', 'SUM'} = 'MEAN'",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AccumulatorApplyGradient",
        inputs: &["handle: Ref(string)", "local_step: int64", "gradient: dtype"],
        attrs: &["dtype: numbertype"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AccumulatorTakeGradient",
        inputs: &["handle: Ref(string)", "num_required: int32"],
        outputs: &["average: dtype"],
        attrs: &["dtype: numbertype"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AccumulatorNumAccumulated",
        inputs: &["handle: Ref(string)"],
        outputs: &["num_accumulated: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AccumulatorSetGlobalStep",
        inputs: &["handle: Ref(string)", "new_global_step: int64"],
        infer: set_step,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceConditionalAccumulator",
        outputs: &["handle: resource"],
        attrs: &[
            "dtype: numbertype",
            "shape: shape",
            "container: string = ''",
            "shared_name: string = ''",
            "reduction_type: {'MEAN', 'SUM'} = 'MEAN'",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceAccumulatorApplyGradient",
        inputs: &["handle: resource", "local_step: int64", "gradient: dtype"],
        attrs: &["dtype: numbertype"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceAccumulatorTakeGradient",
        inputs: &["handle: resource", "num_required: int32"],
        outputs: &["average: dtype"],
        attrs: &["dtype: numbertype"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceAccumulatorNumAccumulated",
        inputs: &["handle: resource"],
        outputs: &["num_accumulated: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceAccumulatorSetGlobalStep",
        inputs: &["handle: resource", "new_global_step: int64"],
        infer: set_step,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseConditionalAccumulator",
        outputs: &["handle: Ref(string)"],
        attrs: &[
            "dtype: numbertype",
            "shape: shape",
            "container: string = ''",
            "shared_name: string = ''",
            "reduction_type: {'MEAN', 'SUM'} = 'MEAN'",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseAccumulatorApplyGradient",
        inputs: &[
            "handle: Ref(string)",
            "local_step: int64",
            "gradient_indices: int64",
            "gradient_values: dtype",
            "gradient_shape: int64",
        ],
        attrs: &["dtype: numbertype", "has_known_shape: bool"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseAccumulatorTakeGradient",
        inputs: &["handle: Ref(string)", "num_required: int32"],
        outputs: &["indices: int64", "values: dtype", "shape: int64"],
        attrs: &["dtype: numbertype"],
        infer: take_sparse,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn set_step(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    Ok(())
}

fn take_sparse(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    infer.set(0, PartialShape::of_rank(1));
    infer.set(2, PartialShape::of_rank(1));
    Ok(())
}
