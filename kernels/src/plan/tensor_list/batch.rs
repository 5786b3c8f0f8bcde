//! Kernels of tensors whose elements are lists, and elementwise arithmetic on lists.

use crate::objects::memory::Memory;
use crate::plan::tensor_list::{check_appended, check_dtype, element_dtype, join};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::ListElement;
use device::{Device, Error, Result, invalid, single_node};
use graph::{DType, Node, Optional, Tensor, TensorList, TensorMap, Variant};
use smallvec::SmallVec;
use std::sync::Arc;

/// `TensorListConcatLists`: makes the kernel that appends to each list in input 0 the elements of the list at the same
/// position in input 1.
pub fn concat_lists<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        if a.shape() != b.shape() {
            invalid!("Incompatible input TensorList tensor shapes: {} and {}", a.shape(), b.shape());
        }
        let join = |(a, b): (&Variant, &Variant)| {
            let a = a.expect::<TensorList<T>>("a list of tensors")?;
            let b = b.expect::<TensorList<T>>("a list of tensors")?;
            check_dtype(&a, dtype)?;
            check_dtype(&b, dtype)?;
            if a.element_shape != b.element_shape {
                invalid!(
                    "input_a and input_b TensorList element shapes are not identical at index 0.  Expected {} but \
                     saw {}",
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
    })
}

/// `TensorListPushBackBatch`: makes the kernel that appends to each list in input 0 the row of input 1 at its position.
pub fn push_back_batch<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let mut lists = ctx.take_input(0)?;
        let shape = ctx.shape(1)?;
        if shape.is_empty() {
            invalid!("Expected tensor to be at least a vector, but saw shape: {shape}");
        }
        if lists.shape().dims().len() != 1 || lists.shape().dims().first() != shape.dims().first() {
            invalid!(
                "Expected tensor.shape[0] == input_handles.size, but saw {shape} and lists of shape {}",
                lists.shape()
            );
        }
        let rows = join::rows::<T>(ctx, &memory, 1)?;
        for (variant, row) in lists.variants_mut()?.iter_mut().zip(rows) {
            let list: &mut TensorList<T> = variant.make_mut("a list of tensors")?;
            check_dtype(list, dtype)?;
            check_appended(list, &row)?;
            list.push(row)?;
        }
        ctx.set_output(0, lists);
        Ok(())
    })
}

/// Makes the kernel of `ZerosLike` for variants, which replaces every tensor in the variants by zeros, and keeps empty
/// variants; a map becomes an empty map. `memory` creates the zeros of tensors outside host memory.
pub fn zeros_like<T: ListElement>(memory: impl Memory) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let out = zeros_of_all::<T>(ctx, &memory, ctx.input(0)?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns a tensor of variants in which every tensor is replaced by zeros. The recursion is as deep as variants nest,
/// which is limited.
fn zeros_of_all<T: ListElement>(
    ctx: &KernelContext<'_>,
    memory: &impl Memory,
    tensor: &Tensor,
) -> Result<Tensor> {
    let zeros = |variant| zeros_of::<T>(ctx, memory, variant);
    let all = tensor.as_variants()?.iter().map(zeros).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::variants(all, tensor.shape().clone())?)
}

fn zeros_of<T: ListElement>(
    ctx: &KernelContext<'_>,
    memory: &impl Memory,
    variant: &Variant,
) -> Result<Variant> {
    let zeros = |item: &T| {
        let (dtype, shape) = (item.dtype(), item.shape().clone());
        T::of(match item.on_host() {
            Some(tensor) if dtype == DType::Variant => zeros_of_all::<T>(ctx, memory, tensor)?.into(),
            _ if item.on_device().is_some() => memory.zeros(ctx, dtype, shape)?,
            _ => Tensor::zeros(dtype, shape)?.into(),
        })
    };
    if let Some(list) = variant.get::<TensorList<T>>() {
        // The list of zeros has no maximum length.
        let mut zeros = list.map(zeros)?;
        zeros.max_num_elements = -1;
        return Ok(Variant::new(zeros));
    }
    if let Some(optional) = variant.get::<Optional<T>>() {
        return Ok(Variant::new(optional.map(zeros)?));
    }
    if variant.get::<TensorMap>().is_some() {
        return Ok(Variant::new(TensorMap::default()));
    }
    match variant.object() {
        None => Ok(Variant::EMPTY),
        Some(_) => {
            Err(Error::unimplemented(format!("zeros of a variant that holds {}", variant.type_name())))
        }
    }
}

/// Makes the kernel of AddN for variants.
pub fn add_n<T: ListElement>() -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let mut adder = VariantAdder { device: ctx.device(), kernels: SmallVec::new() };
        let mut sum = ctx.take_input(0)?;
        for i in 1..ctx.num_inputs() {
            sum = adder.tensors::<T>(&sum, ctx.input(i)?)?;
        }
        ctx.set_output(0, sum);
        Ok(())
    })
}

/// The sum of nested variants: adds the tensors in them with the device's own AddN kernels.
struct VariantAdder<'a> {
    device: &'a Arc<Device>,
    /// The AddN kernels of the dtypes added so far.
    kernels: SmallVec<[(DType, Node, Kernel); 1]>,
}

impl VariantAdder<'_> {
    fn tensors<T: ListElement>(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let pairs = a.as_variants()?.iter().zip(b.as_variants()?);
        if a.shape() != b.shape() {
            return Err(mismatch_error(a, b));
        }
        let sums = pairs.map(|(a, b)| self.variants::<T>(a, b)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::variants(sums, a.shape().clone())?)
    }

    /// Adds the tensors in two variants; if an element of one list is uninitialized, or a key is missing in one map, the
    /// sum has the other's element.
    fn variants<T: ListElement>(&mut self, a: &Variant, b: &Variant) -> Result<Variant> {
        if let (Some(x), Some(y)) = (a.get::<TensorList<T>>(), b.get::<TensorList<T>>()) {
            check_dtype(y, x.element_dtype)?;
            if x.len() != y.len() {
                invalid!(
                    "Trying to add two lists of tensors with different lengths. One is {} elements long and the \
                     other is {} elements long.",
                    x.len(),
                    y.len()
                );
            }
            let shape = super::merged(&x.element_shape, &y.element_shape)?;
            let both = x.elements().iter().zip(y.elements());
            let sums = both.map(|pair| match pair {
                (Some(x), Some(y)) => self.items(x, y).map(Some),
                (x, y) => Ok(x.as_ref().or(y.as_ref()).cloned()),
            });
            return Ok(Variant::new(TensorList::of(x.element_dtype, shape, sums.collect::<Result<_>>()?)?));
        }
        if let (Some(x), Some(y)) = (a.get::<Optional<T>>(), b.get::<Optional<T>>()) {
            return match (x.components(), y.components()) {
                (Some(x), Some(y)) if x.len() == y.len() => {
                    let sums = x.iter().zip(y).map(|(x, y)| self.items(x, y));
                    Ok(Variant::new(Optional::of(sums.collect::<Result<_>>()?)?))
                }
                (None, None) => Ok(Variant::new(Optional::<T>::NONE)),
                _ => {
                    let why = "Cannot add optionals because one has a value and the other doesn't.";
                    Err(Error::invalid(why))
                }
            };
        }
        if let (Some(x), Some(y)) = (a.get::<TensorMap>(), b.get::<TensorMap>()) {
            let mut sum = x.clone();
            for (key, added) in y.entries() {
                let value = x.get(key)?.map(|value| self.items::<Tensor>(value, added));
                sum.insert(key.clone(), value.unwrap_or_else(|| Ok(added.clone()))?)?;
            }
            return Ok(Variant::new(sum));
        }
        Err(Error::unimplemented(format!("adding {} and {}", a.type_name(), b.type_name())))
    }

    fn items<T: ListElement>(&mut self, a: &T, b: &T) -> Result<T> {
        let dtype = a.dtype();
        if a.shape() != b.shape() || dtype != b.dtype() {
            return Err(mismatch_error(a, b));
        }
        if let (DType::Variant, Some(a), Some(b)) = (dtype, a.on_host(), b.on_host()) {
            return T::of(self.tensors::<T>(a, b)?.into());
        }
        let known = self.kernels.iter().position(|(of, ..)| *of == dtype);
        let known = match known {
            Some(known) => known,
            None => {
                let op = graph::ops::lookup("AddN").ok_or_else(|| Error::internal("there is no AddN"))?;
                let node = Node::new("add", op).with_attr("T", dtype).with_attr("N", 2i64);
                let kernel = single_node::make_kernel(self.device, &node)?;
                self.kernels.push((dtype, node, kernel));
                self.kernels.len() - 1
            }
        };
        let (_, node, kernel) = &self.kernels[known];
        let both = vec![a.clone().into(), b.clone().into()];
        T::of(single_node::run_kernel(kernel, self.device, node, both)?.pop().unwrap_or_default())
    }
}

fn mismatch_error<T: ListElement>(a: &T, b: &T) -> Error {
    let (a, b) = ((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    Error::invalid(format!("Inputs of an addition must be alike, are {} {} and {} {}", a.0, a.1, b.0, b.1))
}
