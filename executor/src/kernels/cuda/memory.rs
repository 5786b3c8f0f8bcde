//! What arrays and lists do with elements that are in the GPU's memory.

use super::concat::{SideBySide, Way};
use super::moved::zeros;
use super::support::{NUMBERS, allocate};
use super::variable::{Update, own};
use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::kernel::{KernelContext, KernelInit};
use crate::kernels::cpu::memory::Memory;
use crate::value::Value;
use graph::{DType, Shape};

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
            crate::invalid!("tensor_array::AddToTensor type not supported: {}", by.dtype);
        };
        match sum {
            Value::Device(sum) => {
                own(ctx, sum)?;
                kernel.run(ctx, sum, by)
            }
            other => Err(elsewhere(other)),
        }
    }

    fn joined(&self, ctx: &KernelContext<'_>, dtype: DType, parts: &[Value], shape: Shape) -> Result<Value> {
        let whole = allocate(ctx, dtype, shape)?;
        let parts = parts.iter().map(element).collect::<Result<Vec<_>>>()?;
        self.mover()?.run(ctx, Way::Join, &whole, 1, &parts)?;
        Ok(whole.into())
    }

    fn cut(&self, ctx: &KernelContext<'_>, whole: &Value, shapes: &[Shape]) -> Result<Vec<Value>> {
        let whole = element(whole)?;
        if let [shape] = shapes {
            return Ok(vec![DeviceTensor { shape: shape.clone(), ..whole.clone() }.into()]);
        }
        let parts = shapes.iter().map(|shape| allocate(ctx, whole.dtype, shape.clone()));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        self.mover()?.run(ctx, Way::Cut, whole, 1, &parts.iter().collect::<Vec<_>>())?;
        Ok(parts.into_iter().map(Value::from).collect())
    }
}

fn element(value: &Value) -> Result<&DeviceTensor> {
    match value {
        Value::Device(tensor) => Ok(tensor),
        other => Err(elsewhere(other)),
    }
}

fn elsewhere(value: &Value) -> Error {
    Error::internal(format!("an element in a GPU's memory is {value:?}"))
}
