//! Tensors of many lists, and what arithmetic does to lists: element by element.

use super::{check_dtype, join};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::KernelContext;
use crate::lone;
use crate::value::Value;
use graph::{DType, Node, Optional, Tensor, TensorList, Variant};
use std::sync::Arc;

pub(super) fn concat_lists(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    if a.shape() != b.shape() {
        invalid!("Incompatible input TensorList tensor shapes: {} and {}", a.shape(), b.shape());
    }
    let join = |(a, b): (&Variant, &Variant)| {
        let (a, b) =
            (a.expect::<TensorList>("a list of tensors")?, b.expect::<TensorList>("a list of tensors")?);
        check_dtype(&a, dtype)?;
        check_dtype(&b, dtype)?;
        if a.element_shape != b.element_shape {
            invalid!(
                "input_a and input_b TensorList element shapes are not identical at index 0.  Expected {} but saw {}",
                a.element_shape,
                b.element_shape
            );
        }
        let elements = a.elements().iter().chain(b.elements()).cloned().collect();
        Ok(Variant::new(TensorList::of(dtype, a.element_shape.clone(), elements)?))
    };
    let joined = a.as_variants()?.iter().zip(b.as_variants()?).map(join).collect::<Result<Vec<_>>>()?;
    let out = Tensor::variants(joined, a.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

/// To each list the row beside it.
pub(super) fn push_back_batch(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let mut lists = ctx.take_input(0)?;
    let tensor = ctx.input(1)?;
    if tensor.shape().is_empty() {
        invalid!("Expected tensor to be at least a vector, but saw shape: {}", tensor.shape());
    }
    if lists.shape().dims().len() != 1 || lists.shape().dims().first() != tensor.shape().dims().first() {
        invalid!(
            "Expected tensor.shape[0] == input_handles.size, but saw {} and lists of shape {}",
            tensor.shape(),
            lists.shape()
        );
    }
    let rows = join::rows(tensor)?;
    for (variant, row) in lists.variants_mut()?.iter_mut().zip(rows) {
        let list: &mut TensorList = variant.make_mut("a list of tensors")?;
        check_dtype(list, dtype)?;
        if !list.element_shape.accepts(row.shape()) {
            invalid!(
                "Tried to append a tensor with incompatible shape to a list. Op element shape: {} list shape: {}",
                row.shape(),
                list.element_shape
            );
        }
        list.push(row)?;
    }
    ctx.set_output(0, lists);
    Ok(())
}

/// The variant with every tensor in it replaced by zeros; a variant that holds nothing stays so.
fn zeros_of(variant: &Variant) -> Result<Variant> {
    let zeros = |tensor: &Tensor| match tensor.as_variants() {
        Ok(_) => zeros_of_all(tensor),
        Err(_) => Ok(Tensor::zeros(tensor.dtype(), tensor.shape().clone())?),
    };
    if let Some(list) = variant.get::<TensorList>() {
        let elements = list.elements().iter().map(|e| e.as_ref().map(zeros).transpose());
        let elements = elements.collect::<Result<_>>()?;
        return Ok(Variant::new(TensorList::of(list.element_dtype, list.element_shape.clone(), elements)?));
    }
    if let Some(optional) = variant.get::<Optional>() {
        return Ok(Variant::new(match optional.components() {
            Some(components) => Optional::of(components.iter().map(zeros).collect::<Result<_>>()?)?,
            None => Optional::NONE,
        }));
    }
    match variant.object() {
        None => Ok(Variant::EMPTY),
        Some(_) => {
            Err(Error::unimplemented(format!("zeros of a variant that holds {}", variant.type_name())))
        }
    }
}

/// Nests as variants do, which is not deep.
fn zeros_of_all(tensor: &Tensor) -> Result<Tensor> {
    let all = tensor.as_variants()?.iter().map(zeros_of).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::variants(all, tensor.shape().clone())?)
}

/// ZerosLike of variants.
pub(in super::super) fn zeros_like(ctx: &mut KernelContext<'_>) -> Result<()> {
    let out = zeros_of_all(ctx.input(0)?)?;
    ctx.set_output(0, out);
    Ok(())
}

/// AddN of variants.
pub(in super::super) fn add_n(ctx: &mut KernelContext<'_>) -> Result<()> {
    let device = ctx.device();
    let mut sum = ctx.take_input(0)?;
    for i in 1..ctx.num_inputs() {
        sum = add_tensors(device, sum, ctx.take_input(i)?)?;
    }
    ctx.set_output(0, sum);
    Ok(())
}

fn add_tensors(device: &Arc<dyn Device>, a: Tensor, b: Tensor) -> Result<Tensor> {
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        invalid!(
            "Inputs of an addition must be alike, are {} {} and {} {}",
            a.dtype(),
            a.shape(),
            b.dtype(),
            b.shape()
        );
    }
    if let (Ok(x), Ok(y)) = (a.as_variants(), b.as_variants()) {
        let all = x.iter().zip(y).map(|(x, y)| add_variants(device, x, y)).collect::<Result<Vec<_>>>()?;
        return Ok(Tensor::variants(all, a.shape().clone())?);
    }
    let op = graph::ops::lookup("AddN").ok_or_else(|| Error::internal("there is no AddN"))?;
    let node = Node::new("add", op).with_attr("T", a.dtype()).with_attr("N", 2i64);
    match lone::run(device, &node, vec![a.into(), b.into()])?.pop() {
        Some(Value::Host(sum)) => Ok(sum),
        other => Err(Error::internal(format!("AddN gave {other:?}"))),
    }
}

/// What one of the sides has not counts as zero.
fn add_variants(device: &Arc<dyn Device>, a: &Variant, b: &Variant) -> Result<Variant> {
    if let (Some(x), Some(y)) = (a.get::<TensorList>(), b.get::<TensorList>()) {
        check_dtype(y, x.element_dtype)?;
        if x.len() != y.len() {
            invalid!(
                "Trying to add two lists of tensors with different lengths. One is {} elements long and the other is {} elements long.",
                x.len(),
                y.len()
            );
        }
        let shape = super::merged(&x.element_shape, &y.element_shape)?;
        let both = x.elements().iter().zip(y.elements());
        let sums = both.map(|pair| match pair {
            (Some(x), Some(y)) => add_tensors(device, x.clone(), y.clone()).map(Some),
            (x, y) => Ok(x.as_ref().or(y.as_ref()).cloned()),
        });
        return Ok(Variant::new(TensorList::of(x.element_dtype, shape, sums.collect::<Result<_>>()?)?));
    }
    if let (Some(x), Some(y)) = (a.get::<Optional>(), b.get::<Optional>()) {
        return match (x.components(), y.components()) {
            (Some(x), Some(y)) if x.len() == y.len() => {
                let sums = x.iter().zip(y).map(|(x, y)| add_tensors(device, x.clone(), y.clone()));
                Ok(Variant::new(Optional::of(sums.collect::<Result<_>>()?)?))
            }
            (None, None) => Ok(Variant::new(Optional::NONE)),
            _ => Err(Error::invalid("Cannot add optionals because one has a value and the other doesn't.")),
        };
    }
    Err(Error::unimplemented(format!("adding {} and {}", a.type_name(), b.type_name())))
}
