//! Tensor array ops; an array lives as long as its step. Elements are in the GPU's memory, except elements of
//! `int32`; handles, indices and lengths are on the host.

use super::host::same_as_cpu;
use super::memory::OnGpu;
use super::support::COPIED;
use device::kernel::KernelDef;
use graph::DType;
use kernels::plan::tensor_array::{concat, create, gather, read, scatter, split, write};

const INT32: &[DType] = &[DType::Int32];

/// Defines the kernels for the three versions of each op. A line for ops on elements has the attribute with the
/// elements' dtype, the arguments in host memory for elements in the GPU's memory, and the arguments in host
/// memory for elements on the host.
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
                KernelDef { host_memory: $hosted, ..KernelDef::of($op, &[($attr, COPIED)], $make) },
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
        &["handle", "index"], &["handle", "index", "value"], |init| write(init, OnGpu::with_sum(init, "T")?);
    of "dtype" "TensorArrayRead" "TensorArrayReadV2" "TensorArrayReadV3":
        &["handle", "index"], &["handle", "index", "value"], |init| read(init, OnGpu::default());
    of "dtype" "TensorArrayGather" "TensorArrayGatherV2" "TensorArrayGatherV3":
        &["handle", "indices"], &["handle", "indices", "value"],
        |init| gather(init, OnGpu::with_mover(init, "dtype")?, false);
    of "T" "TensorArrayScatter" "TensorArrayScatterV2" "TensorArrayScatterV3":
        &["handle", "indices"], &["handle", "indices", "value"],
        |init| scatter(init, OnGpu::with_sum(init, "T")?, false);
    of "dtype" "TensorArrayConcat" "TensorArrayConcatV2" "TensorArrayConcatV3":
        &["handle", "lengths"], &["handle", "lengths", "value"], |init| concat(init, OnGpu::with_mover(init, "dtype")?);
    of "T" "TensorArraySplit" "TensorArraySplitV2" "TensorArraySplitV3":
        &["handle", "lengths"], &["handle", "lengths", "value"], |init| split(init, OnGpu::with_sum(init, "T")?);
    of "dtype" "TensorArrayPack": &["handle"], &["handle", "value"],
        |init| gather(init, OnGpu::with_mover(init, "dtype")?, true);
    of "T" "TensorArrayUnpack": &["handle"], &["handle", "value"],
        |init| scatter(init, OnGpu::with_sum(init, "T")?, true);
};
