//! Operations on the elements of tensor arrays and tensor lists that are in the GPU's memory.

use super::concat::{ColumnMover, MoveDirection};
use super::copy::zeros;
use super::support::{NUMBERS, allocate};
use super::variable::{InPlaceUpdate, make_unique};
use device::DeviceTensor;
use device::kernel::{KernelContext, KernelInit};
use device::value::{Item, Value};
use device::{Error, Result};
use graph::{DType, Shape};
use kernels::objects::memory::Memory;

/// Dtypes whose tensors stay in host memory, also as elements of lists and optionals.
pub(super) const HOSTED: &[DType] = &[DType::Int32, DType::Variant];

/// The operations on list elements in the GPU's memory, with the kernels that an op needs for them.
#[derive(Default)]
pub(super) struct OnGpu {
    mover: Option<ColumnMover>,
    sum: Option<InPlaceUpdate>,
}

impl OnGpu {
    /// Loads the kernel that joins and splits elements of the dtype in the attribute `attr`.
    pub(super) fn with_mover(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        Ok(OnGpu { mover: Some(ColumnMover::new(init, init.attr(attr)?)?), sum: None })
    }

    /// Like [`OnGpu::with_mover`], and for numeric dtypes loads the kernel that sums elements.
    pub(super) fn with_sum(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        let dtype = init.attr::<DType>(attr)?;
        let sum = NUMBERS.contains(&dtype).then(|| InPlaceUpdate::of("Add", init, dtype)).transpose()?;
        Ok(OnGpu { sum, ..OnGpu::with_mover(init, attr)? })
    }

    fn mover(&self) -> Result<&ColumnMover> {
        self.mover
            .as_ref()
            .ok_or_else(|| Error::internal("no kernel that moves elements was loaded for this type"))
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
                make_unique(ctx, sum)?;
                kernel.run(ctx, sum, by)
            }
            _ => Err(not_on_gpu()),
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
        self.mover()?.run(ctx, MoveDirection::Join, &whole, 1, &parts)?;
        Ok(whole.into())
    }

    /// Splits a tensor into elements, and calls `put` with each element. All copies are enqueued before the
    /// first call of `put`, so that a failed copy leaves the list unchanged.
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
        self.mover()?.run(ctx, MoveDirection::Split, whole, 1, &parts.iter().collect::<Vec<_>>())?;
        parts.into_iter().map(|part| T::of(part.into())).try_for_each(|part| part.and_then(&mut put))
    }
}

/// Returns the device tensor of an element of a list or stack; fails if the element is not in the GPU's memory.
fn element(item: &impl Item) -> Result<&DeviceTensor> {
    item.on_device().ok_or_else(not_on_gpu)
}

fn not_on_gpu() -> Error {
    Error::internal("an element of a list is not in the memory of the GPU")
}
