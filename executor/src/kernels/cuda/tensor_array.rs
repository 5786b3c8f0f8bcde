//! Arrays of tensors, which live as long as their step: elements are in the GPU's memory, but those of `int32`. Handles,
//! indices and lengths are on the host.

use super::host::same_as_cpu;
use super::moved::{Mover, zeros};
use super::support::{MOVED, NUMBERS, allocate};
use super::variable::{Update, own};
use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::kernel::{KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::strided::Layout;
use crate::kernels::cpu::tensor_array::{Memory, concat, create, gather, read, scatter, split, write};
use crate::value::Value;
use graph::{DType, Shape};

const INT32: &[DType] = &[DType::Int32];

/// Rows of the three generations of an op. An op of elements has its type in an attribute, and the arguments that are on
/// the host, of elements that are in the GPU's memory and of those that are not.
macro_rules! generations {
    (
        made: $($created:literal)*;
        $($v1:literal $v2:literal $v3:literal: $host:expr;)*
        $(of $attr:literal $($op:literal)*: $hosted:expr, $with_elements:expr, $make:expr;)*
    ) => {
        &[
            $(
                same_as_cpu($v1, &[], $host),
                same_as_cpu($v2, &[], $host),
                same_as_cpu($v3, &[], $host),
            )*
            same_as_cpu("TensorArrayGradWithShape", &[], &["handle", "grad_handle", "shape_to_prepend"]),
            $($(
                KernelDef { host_memory: $hosted, ..KernelDef::of($op, &[($attr, MOVED)], $make) },
                same_as_cpu($op, &[($attr, INT32)], $with_elements),
            )*)*
            $(KernelDef {
                host_memory: &["size", "handle"],
                ..KernelDef::of($created, &[], |init| create(init, OnGpu::default()))
            },)*
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = generations! {
    made: "TensorArray" "TensorArrayV2" "TensorArrayV3";
    "TensorArrayGrad" "TensorArrayGradV2" "TensorArrayGradV3": &["handle", "grad_handle"];
    "TensorArraySize" "TensorArraySizeV2" "TensorArraySizeV3": &["handle", "size"];
    "TensorArrayClose" "TensorArrayCloseV2" "TensorArrayCloseV3": &["handle"];
    of "T" "TensorArrayWrite" "TensorArrayWriteV2" "TensorArrayWriteV3":
        &["handle", "index"], &["handle", "index", "value"], |init| write(init, OnGpu::summing(init, "T")?);
    of "dtype" "TensorArrayRead" "TensorArrayReadV2" "TensorArrayReadV3":
        &["handle", "index"], &["handle", "index", "value"], |init| read(init, OnGpu::default());
    of "dtype" "TensorArrayGather" "TensorArrayGatherV2" "TensorArrayGatherV3":
        &["handle", "indices"], &["handle", "indices", "value"],
        |init| gather(init, OnGpu::moving(init, "dtype")?, false);
    of "T" "TensorArrayScatter" "TensorArrayScatterV2" "TensorArrayScatterV3":
        &["handle", "indices"], &["handle", "indices", "value"],
        |init| scatter(init, OnGpu::summing(init, "T")?, false);
    of "dtype" "TensorArrayConcat" "TensorArrayConcatV2" "TensorArrayConcatV3":
        &["handle", "lengths"], &["handle", "lengths", "value"], |init| concat(init, OnGpu::moving(init, "dtype")?);
    of "T" "TensorArraySplit" "TensorArraySplitV2" "TensorArraySplitV3":
        &["handle", "lengths"], &["handle", "lengths", "value"], |init| split(init, OnGpu::summing(init, "T")?);
    of "dtype" "TensorArrayPack": &["handle"], &["handle", "value"],
        |init| gather(init, OnGpu::moving(init, "dtype")?, true);
    of "T" "TensorArrayUnpack": &["handle"], &["handle", "value"],
        |init| scatter(init, OnGpu::summing(init, "T")?, true);
};

/// Elements in the GPU's memory, with the kernels that an op's work on them needs.
#[derive(Default)]
pub(super) struct OnGpu {
    mover: Option<Mover>,
    sum: Option<Update>,
}

impl OnGpu {
    /// For joining and cutting elements of the type in `attr`.
    pub(super) fn moving(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        Ok(OnGpu { mover: Some(Mover::new(init, init.attr(attr)?)?), sum: None })
    }

    /// As [`OnGpu::moving`], and for summing them, if they are numbers.
    fn summing(init: &KernelInit<'_>, attr: &str) -> Result<OnGpu> {
        let dtype = init.attr::<DType>(attr)?;
        let sum = NUMBERS.contains(&dtype).then(|| Update::of("Add", init, dtype)).transpose()?;
        Ok(OnGpu { sum, ..OnGpu::moving(init, attr)? })
    }

    fn mover(&self) -> Result<&Mover> {
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
        let mut start = 0;
        for part in parts {
            let part = element(part)?;
            let dims = [part.shape.num_elements()];
            let to = Layout { offset: start as isize, ..Layout::packed(&dims) };
            self.mover()?.copy(ctx, &dims, (part, &Layout::packed(&dims)), (&whole, &to))?;
            start += dims[0];
        }
        Ok(whole.into())
    }

    fn part(&self, ctx: &KernelContext<'_>, whole: &Value, start: usize, shape: Shape) -> Result<Value> {
        let whole = element(whole)?;
        let dims = [shape.num_elements()];
        if dims[0] == whole.shape.num_elements() {
            return Ok(DeviceTensor { shape, ..whole.clone() }.into());
        }
        let part = allocate(ctx, whole.dtype, shape)?;
        let from = Layout { offset: start as isize, ..Layout::packed(&dims) };
        self.mover()?.copy(ctx, &dims, (whole, &from), (&part, &Layout::packed(&dims)))?;
        Ok(part.into())
    }
}

fn element(value: &Value) -> Result<&DeviceTensor> {
    match value {
        Value::Device(tensor) => Ok(tensor),
        other => Err(elsewhere(other)),
    }
}

fn elsewhere(value: &Value) -> Error {
    Error::internal(format!("an element of an array in a GPU's memory is {value:?}"))
}
