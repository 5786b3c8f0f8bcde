//! Kernels of tensor arrays, which live as long as their step.

use crate::objects::memory::Host;
use crate::objects::step_object::object;
use crate::plan::tensor_array::{
    TensorArray, concat, create, gather, gradient, read, scatter, size, split, write,
};
use device::kernel::{Kernel, KernelDef};
use graph::DType::{self, *};

/// The dtypes of elements that can be written and read.
const ELEMENTS: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, String,
    Complex64, Complex128, Resource, Variant,
];

/// The dtypes of elements that can be gathered to one tensor.
const GATHERED: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, String,
    Complex64, Complex128, Variant, QInt8, QUInt8, QInt32,
];

const CONCATENATED: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, String,
    Complex64, Complex128, QInt8, QUInt8, QInt32,
];

macro_rules! generations {
    ($($v1:literal $v2:literal $v3:literal: $types:expr, $host:expr, $make:expr;)*) => {
        &[$(
            KernelDef { op: $v1, types: $types, host_memory: $host, make: $make, ..KernelDef::NEW },
            KernelDef { op: $v2, types: $types, host_memory: $host, make: $make, ..KernelDef::NEW },
            KernelDef { op: $v3, types: $types, host_memory: $host, make: $make, ..KernelDef::NEW },
        )*
            KernelDef {
                op: "TensorArrayGradWithShape",
                host_memory: &["handle", "grad_handle", "shape_to_prepend"],
                make: gradient,
                ..KernelDef::NEW
            },
            KernelDef {
                op: "TensorArrayPack",
                types: &[("dtype", GATHERED)],
                host_memory: &["handle"],
                make: |init| gather(init, Host, true),
                ..KernelDef::NEW
            },
            KernelDef {
                op: "TensorArrayUnpack",
                types: &[("T", ELEMENTS)],
                host_memory: &["handle"],
                make: |init| scatter(init, Host, true),
                ..KernelDef::NEW
            },
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = generations! {
    "TensorArray" "TensorArrayV2" "TensorArrayV3": &[], &["size", "handle"], |init| create(init, Host);
    "TensorArrayGrad" "TensorArrayGradV2" "TensorArrayGradV3": &[], &["handle", "grad_handle"], gradient;
    "TensorArrayWrite" "TensorArrayWriteV2" "TensorArrayWriteV3":
        &[("T", ELEMENTS)], &["handle", "index"], |init| write(init, Host);
    "TensorArrayRead" "TensorArrayReadV2" "TensorArrayReadV3":
        &[("dtype", ELEMENTS)], &["handle", "index"], |init| read(init, Host);
    "TensorArrayGather" "TensorArrayGatherV2" "TensorArrayGatherV3":
        &[("dtype", GATHERED)], &["handle", "indices"], |init| gather(init, Host, false);
    "TensorArrayScatter" "TensorArrayScatterV2" "TensorArrayScatterV3":
        &[("T", ELEMENTS)], &["handle", "indices"], |init| scatter(init, Host, false);
    "TensorArrayConcat" "TensorArrayConcatV2" "TensorArrayConcatV3":
        &[("dtype", CONCATENATED)], &["handle", "lengths"], |init| concat(init, Host);
    "TensorArraySplit" "TensorArraySplitV2" "TensorArraySplitV3":
        &[("T", ELEMENTS)], &["handle", "lengths"], |init| split(init, Host);
    "TensorArraySize" "TensorArraySizeV2" "TensorArraySizeV3": &[], &["handle", "size"], |_| Kernel::sync(size);
    "TensorArrayClose" "TensorArrayCloseV2" "TensorArrayCloseV3": &[], &["handle"], |_| Kernel::sync(|ctx| {
        object::<TensorArray>(ctx)?.close();
        Ok(())
    });
};
