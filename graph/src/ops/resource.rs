//! Variables behind resource handles.

use super::check::scalar;
use super::gather::gather_nd_shape;
use super::identity::pass;
use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;
use smallvec::SmallVec;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "VarHandleOp",
        outputs: &["resource: resource"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "debug_name: string = ''",
            "dtype: type",
            "shape: shape",
            "allowed_devices: list(string) = []",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ReadVariableOp",
        inputs: &["resource: resource"],
        outputs: &["value: dtype"],
        attrs: &["dtype: type"],
        infer: read,
        gradient: Gradient::Defined(pass),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssignVariableOp",
        inputs: &["resource: resource", "value: dtype"],
        attrs: &["dtype: type", "validate_shape: bool = false"],
        infer: assign,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssignAddVariableOp",
        inputs: &["resource: resource", "value: dtype"],
        attrs: &["dtype: type"],
        infer: update,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssignSubVariableOp",
        inputs: &["resource: resource", "value: dtype"],
        attrs: &["dtype: type"],
        infer: update,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "VarIsInitializedOp",
        inputs: &["resource: resource"],
        outputs: &["is_initialized: bool"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DestroyResourceOp",
        inputs: &["resource: resource"],
        attrs: &["ignore_lookup_error: bool = true"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "VariableShape",
        inputs: &["input: resource"],
        outputs: &["output: out_type"],
        attrs: &["out_type: {int32, int64} = int32"],
        infer: variable_shape,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DisableCopyOnRead",
        inputs: &["resource: resource"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceGather",
        inputs: &["resource: resource", "indices: Tindices"],
        outputs: &["output: dtype"],
        attrs: &[
            "batch_dims: int = 0",
            "validate_indices: bool = true",
            "dtype: type",
            "Tindices: {int32, int64}",
        ],
        infer: gather,
        gradient: Gradient::Defined(gather_gradient),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceGatherNd",
        inputs: &["resource: resource", "indices: Tindices"],
        outputs: &["output: dtype"],
        attrs: &["dtype: type", "Tindices: {int32, int64}"],
        infer: |infer| {
            let params = value_shape(infer, 0, "dtype")?;
            gather_nd_shape(infer, &params)
        },
        gradient: Gradient::Defined(|s, forward, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
            let (handle, indices) = (forward.input(0), forward.input(1));
            let shape = s.op("VariableShape").input(handle).attr("out_type", s.dtype(indices)).output();
            let sum = s.op("ScatterNd").input(indices).input(dy).input(shape).output();
            Ok(vec![Some(sum), None])
        }),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ResourceCountUpTo",
        inputs: &["resource: resource"],
        outputs: &["output: T"],
        attrs: &["limit: int", "T: {int32, int64}"],
        infer: |infer| {
            let shape = value_shape(infer, 0, "T")?.merge(&PartialShape::scalar())?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

fn handle(infer: &mut Infer<'_>) -> Result<()> {
    let (dtype, shape) = (infer.attr::<DType>("dtype")?, infer.attr::<PartialShape>("shape")?);
    infer.set_handle(0, dtype, shape);
    scalar(infer)
}

/// Returns the shape of the variable behind handle input `i`, and checks its type against the attribute `attr`.
pub(super) fn value_shape(infer: &Infer<'_>, i: usize, attr: &str) -> Result<PartialShape> {
    infer.input_of_rank(i, 0)?;
    let Some((dtype, shape)) = infer.handle(i) else { return Ok(PartialShape::unknown()) };
    let wanted = infer.attr::<DType>(attr)?;
    if dtype != wanted {
        crate::invalid!("Trying to read variable with wrong dtype. Expected {dtype} got {wanted}");
    }
    Ok(shape)
}

fn read(infer: &mut Infer<'_>) -> Result<()> {
    let shape = value_shape(infer, 0, "dtype")?;
    infer.set(0, shape);
    Ok(())
}

fn assign(infer: &mut Infer<'_>) -> Result<()> {
    let shape = value_shape(infer, 0, "dtype")?;
    if infer.attr::<bool>("validate_shape")? {
        shape.merge(&infer.input(1))?;
    }
    Ok(())
}

fn update(infer: &mut Infer<'_>) -> Result<()> {
    value_shape(infer, 0, "dtype")?.merge(&infer.input(1))?;
    Ok(())
}

fn variable_shape(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    let rank = infer.handle(0).and_then(|(_, shape)| shape.rank());
    infer.set(0, PartialShape::vector(rank));
    Ok(())
}

/// Infers the output shape of ResourceGather: the concatenation of `params[:batch]`, `indices[batch:]` and
/// `params[batch + 1:]`.
fn gather(infer: &mut Infer<'_>) -> Result<()> {
    let params = value_shape(infer, 0, "dtype")?;
    let indices = infer.input(1);
    let (Some(params), Some(indices)) = (params.dims(), indices.dims()) else { return Ok(()) };
    let batch = infer.attr::<i64>("batch_dims")?;
    let batch = if batch < 0 { batch.saturating_add(indices.len() as i64) } else { batch };
    let batch = usize::try_from(batch).unwrap_or(usize::MAX);
    if batch > indices.len() || batch >= params.len() {
        crate::invalid!(
            "batch_dims {batch} needs indices of at least that rank and params of a greater one, got ranks {} \
             and {}",
            indices.len(),
            params.len()
        );
    }
    let dims: SmallVec<[Dim; 8]> =
        params[..batch].iter().chain(&indices[batch..]).chain(&params[batch + 1..]).copied().collect();
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}

/// Gradient of ResourceGather: sums the gradients for each row of the variable.
fn gather_gradient(s: &Scope, forward: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
    if forward.attr::<i64>("batch_dims")? != 0 {
        return Err(Error::unimplemented("the gradient of ResourceGather with batch_dims")
            .at_node(&forward.node.name));
    }
    let constant =
        |value: i32| s.op("Const").attr("dtype", DType::Int32).attr("value", Tensor::scalar(value)).output();
    let known = s.read(|_, shapes| shapes.handle(forward.input(0)).and_then(|(_, shape)| shape.dim(0)));
    let rows = match known.flatten().and_then(|rows| i32::try_from(rows).ok()) {
        Some(rows) => constant(rows),
        None => {
            let sizes = s.op("VariableShape").input(forward.input(0)).output();
            s.op("GatherV2").input(sizes).input(constant(0)).input(constant(0)).output()
        }
    };
    let sum = s.op("UnsortedSegmentSum").input(dy).input(forward.input(1)).input(rows).output();
    Ok(vec![Some(sum), None])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_replace_the_axis_after_the_batch() -> Result<()> {
        let gather = |params: &[usize], indices: &[usize], batch: i64| {
            let s = Scope::new();
            let shape = |dims: &[usize]| PartialShape::of_dims(dims.iter().map(|&d| Some(d)));
            let handle = s.var_handle("v", DType::Float, shape(params));
            let at = s.identity(s.variable("i", DType::Int32, shape(indices)));
            let call = s.op("ResourceGather").input(handle).input(at).attr("dtype", DType::Float);
            let out = call.attr("batch_dims", batch).output();
            s.finish().map(|_| s.shape(out))
        };
        assert_eq!(gather(&[3, 2], &[4, 5], 0)?, [4, 5, 2].into());
        assert_eq!(gather(&[3, 2, 7], &[3, 5], 1)?, [3, 5, 7].into());
        assert_eq!(gather(&[3, 2, 7], &[3, 5], -1)?, [3, 5, 7].into());
        assert!(gather(&[3], &[3, 5], 1).is_err());
        assert!(gather(&[3, 2], &[], 1).is_err());
        Ok(())
    }

    #[test]
    fn handles_carry_the_type_and_shape_of_the_variable() -> Result<()> {
        let s = Scope::new();
        let handle = s.var_handle("v", DType::Float, [3, 2]);
        assert_eq!(s.shape(s.variable_shape(s.identity(handle))), [2].into());
        assert_eq!(s.shape(s.read_variable(s.identity(handle), DType::Float)), [3, 2].into());
        s.finish()?;
        let value = s.identity(s.variable("w", DType::Float, [4]));
        s.assign_variable(handle, value);
        s.finish()?;
        s.assign_add_variable(handle, value);
        assert!(s.finish().is_err());
        Ok(())
    }
}
