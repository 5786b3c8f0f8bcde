//! What arrays and lists do with elements that are in the GPU's memory.

use super::concat::{SideBySide, Way};
use super::moved::zeros;
use super::support::{NUMBERS, allocate};
use super::variable::{Update, own};
use device::DeviceTensor;
use device::kernel::{KernelContext, KernelInit};
use device::value::{Item, Value};
use device::{Error, Result};
use graph::{DType, Shape};
use kernels::objects::memory::Memory;

/// Types of what lists and optionals hold on the host: what tensors of a GPU are there as a rule, too.
pub(super) const HOSTED: &[DType] = &[DType::Int32, DType::Variant];

/// Elements in the GPU's memory, with the kernels that an op's work on them needs.
#[derive(Default)]
pub(super) struct OnGpu {
    mover: Option<SideBySide>,
    sum: Option<Update>,
}

impl OnGpu {
    /// For joining and cutting elements of the type in `attr`.
    pub(super) fn moving(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        Ok(OnGpu { mover: Some(SideBySide::new(init, init.attr(attr)?)?), sum: None })
    }

    /// As [`OnGpu::moving`], and for summing them, if they are numbers.
    pub(super) fn summing(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        let dtype = init.attr::<DType>(attr)?;
        let sum = NUMBERS.contains(&dtype).then(|| Update::of("Add", init, dtype)).transpose()?;
        Ok(OnGpu { sum, ..OnGpu::moving(init, attr)? })
    }

    fn mover(&self) -> Result<&SideBySide> {
        self.mover.as_ref().ok_or_else(|| Error::internal("a kernel moves what it has no kernel for"))
    }
}

impl Memory for OnGpu {
    fn zeros(&self, ctx: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<Value> {
        Ok(zeros(ctx, dtype, shape)?.into())
    }

    fn add(&self, ctx: &KernelContext<'_>, sum: &mut Value, by: &Value) -> Result<()> {
        let by = element(by)?;
        let Some(kernel) = &self.sum else {
            device::invalid!("tensor_array::AddToTensor type not supported: {}", by.dtype);
        };
        match sum {
            Value::Device(sum) => {
                own(ctx, sum)?;
                kernel.run(ctx, sum, by)
            }
            _ => Err(elsewhere()),
        }
    }

    fn joined<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        dtype: DType,
        parts: &[&T],
        shape: Shape,
    ) -> Result<Value> {
        let whole = allocate(ctx, dtype, shape)?;
        let parts = parts.iter().map(|part| element(*part)).collect::<Result<Vec<_>>>()?;
        self.mover()?.run(ctx, Way::Join, &whole, 1, &parts)?;
        Ok(whole.into())
    }

    /// All parts are there before the first is put anywhere.
    fn cut<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        whole: &Value,
        shapes: impl Iterator<Item = Shape>,
        mut put: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let whole = element(whole)?;
        let mut shapes: Vec<Shape> = shapes.collect();
        if shapes.len() == 1
            && let Some(shape) = shapes.pop()
        {
            return T::of(DeviceTensor { shape, ..whole.clone() }.into()).and_then(put);
        }
        let parts = shapes.into_iter().map(|shape| allocate(ctx, whole.dtype, shape));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        self.mover()?.run(ctx, Way::Cut, whole, 1, &parts.iter().collect::<Vec<_>>())?;
        parts.into_iter().map(|part| T::of(part.into())).try_for_each(|part| part.and_then(&mut put))
    }
}

fn element(item: &impl Item) -> Result<&DeviceTensor> {
    item.on_device().ok_or_else(elsewhere)
}

fn elsewhere() -> Error {
    Error::internal("an element that is to be in a GPU's memory is elsewhere")
}
