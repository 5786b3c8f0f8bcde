//! Serialization of sparse tensors as three parts, each a variant or a serialized tensor.

use super::coo::{Coo, matrix, text};
use super::map::{SparseParts, input_parts, set_sparse_outputs, stacked, unstacked};
use device::invalid;
use device::kernel::{Kernel, KernelInit};
use device::{Error, Result};
use graph::{DType, Shape, Tensor, Variant, VariantObject};

/// One of the three parts of a sparse tensor, stored in a variant.
#[derive(Debug)]
struct SerializedPart(Tensor);

impl VariantObject for SerializedPart {
    fn type_name(&self) -> &'static str {
        "tensorflow::Tensor"
    }
}

/// Makes the kernel that serializes one sparse tensor to a vector of its parts.
pub(super) fn serialize(init: &KernelInit<'_>) -> Result<Kernel> {
    let form = init.output_type(0);
    Kernel::sync(move |ctx| {
        let out = serialize_parts(&[input_parts(ctx)?], form, Shape::new(&[3])?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel that serializes one sparse tensor per index of the first axis, to a matrix with one row of parts
/// each.
pub(super) fn serialize_many(init: &KernelInit<'_>) -> Result<Kernel> {
    let form = init.output_type(0);
    Kernel::sync(move |ctx| {
        let rows = unstacked(&Coo::of(ctx, 0)?)?;
        let out = serialize_parts(&rows, form, Shape::new(&[rows.len(), 3])?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns a sparse tensor as a vector of three variants.
pub(crate) fn serialized_parts(indices: Tensor, values: Tensor, shape: Tensor) -> Result<Tensor> {
    serialize_parts(&[SparseParts { indices, values, shape }], DType::Variant, Shape::new(&[3])?)
}

fn serialize_parts(all: &[SparseParts], form: DType, shape: Shape) -> Result<Tensor> {
    let parts = all.iter().flat_map(|parts| [&parts.indices, &parts.values, &parts.shape]);
    if form == DType::Variant {
        return Ok(Tensor::variants(
            parts.map(|t| Variant::new(SerializedPart(t.clone()))).collect(),
            shape,
        )?);
    }
    let serialized = parts.map(|t| Ok(checkpoint::tensor::encode(t)?.into()));
    Ok(Tensor::strings(serialized.collect::<Result<_>>()?, shape)?)
}

/// Returns the sparse tensors whose serialized parts are the rows of a tensor of shape `[…, 3]`.
fn deserialize_parts(serialized: &Tensor) -> Result<Vec<SparseParts>> {
    let parts: Vec<Tensor> = match serialized.dtype() {
        DType::Variant => {
            let part = |v: &Variant| Ok(v.expect::<SerializedPart>("a part of a sparse tensor")?.0.clone());
            serialized.as_variants()?.iter().map(part).collect::<Result<_>>()?
        }
        _ => {
            let decode = |(i, s): (usize, &bytes::Bytes)| {
                checkpoint::tensor::decode(s).map_err(|_| {
                    Error::invalid(format!("Could not parse serialized_sparse[{}, {}]", i / 3, i % 3))
                })
            };
            serialized.as_strings()?.iter().enumerate().map(decode).collect::<Result<_>>()?
        }
    };
    let mut parts = parts.into_iter();
    let mut all = Vec::new();
    while let (Some(indices), Some(values), Some(shape)) = (parts.next(), parts.next(), parts.next()) {
        all.push(SparseParts { indices, values, shape });
    }
    Ok(all)
}

/// Makes the kernel that deserializes a sparse tensor, or several sparse tensors stacked to one with further leading
/// axes.
pub(super) fn deserialize(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(1);
    Kernel::sync(move |ctx| {
        let serialized = ctx.input(0)?;
        let Some((&3, outer)) = serialized.shape().split_last() else {
            invalid!(
                "Serialized sparse should have 3 as the last dimension, has shape {}",
                serialized.shape()
            );
        };
        let parts = deserialize_parts(serialized)?;
        match outer {
            [] => {
                let only = parts.into_iter().next();
                let Some(only) = only else { invalid!("nothing is serialized") };
                if only.values.dtype() != dtype {
                    invalid!("Requested SparseTensor of type {dtype} but it holds {}", only.values.dtype());
                }
                Coo::new(&only.indices, &only.values, &only.shape)?;
                set_sparse_outputs(ctx, only)
            }
            _ => {
                let mut whole = stacked(&parts, dtype)?;
                if outer.len() > 1 {
                    whole = with_outer(&whole, outer)?;
                }
                set_sparse_outputs(ctx, whole)
            }
        }
    })
}

/// Makes the kernel that deserializes the sparse tensors in the rows of a matrix and stacks them to one.
pub(super) fn deserialize_many(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(1);
    Kernel::sync(move |ctx| {
        let serialized = ctx.input(0)?;
        let &[_, 3] = serialized.shape().dims() else {
            invalid!("serialized_sparse should be a matrix of 3 columns, has shape {}", serialized.shape());
        };
        let whole = stacked(&deserialize_parts(serialized)?, dtype)?;
        set_sparse_outputs(ctx, whole)
    })
}

/// Splits the first axis of a sparse tensor into axes of the sizes `outer`.
fn with_outer(parts: &SparseParts, outer: &[usize]) -> Result<SparseParts> {
    let coo = Coo::new(&parts.indices, &parts.values, &parts.shape)?;
    let rank = coo.rank() - 1 + outer.len();
    let mut rows = Vec::with_capacity(coo.len() * rank);
    for index in coo.rows() {
        let start = rows.len();
        rows.resize(start + outer.len(), 0);
        let mut at = index[0] as usize;
        for (o, &d) in rows[start..].iter_mut().zip(outer).rev() {
            *o = (at % d.max(1)) as i64;
            at /= d.max(1);
        }
        rows.extend_from_slice(&index[1..]);
    }
    let mut shape: Vec<i64> = outer.iter().map(|&d| d as i64).collect();
    shape.extend_from_slice(&coo.shape[1..]);
    if Shape::from_i64(&shape).is_err() {
        invalid!("the shape {} overflows", text(&shape));
    }
    Ok(SparseParts {
        indices: matrix(&rows, rank, coo.len())?,
        values: parts.values.clone(),
        shape: Tensor::vector(&shape)?,
    })
}
