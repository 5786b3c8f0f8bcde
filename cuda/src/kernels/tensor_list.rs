//! Tensor list ops; a list is a tensor of dtype variant. Elements are in the GPU's memory, except elements of
//! `int32` and variants; handles, indices, lengths and shapes are on the host. Lists of dtypes without GPU
//! kernels are placed on the CPU.

use super::memory::{HOSTED, OnGpu};
use super::support::COPIED;
use device::kernel::{KernelDef, KernelInit};
use device::value::AnyTensor;
use graph::DType;
use kernels::objects::memory::Host;
use kernels::plan::tensor_list::{
    add_n, concat, concat_lists, concat_v2, element_shape, empty, from_tensor, gather, get_item, length,
    pop_back, push_back, push_back_batch, reserve, resize, scatter, scatter_into, scatter_v2, set_item,
    split, stack, zeros_like,
};

const VARIANT: &[DType] = &[DType::Variant];

/// Returns the GPU operations of an op that joins or splits elements.
fn moving(init: &KernelInit<'_>) -> device::Result<OnGpu> {
    OnGpu::with_mover(init, "element_dtype")
}

/// Defines the kernels of ops that create lists, of ops that touch no elements, and of ops on elements. A line
/// for an op on elements has the arguments in host memory for elements in the GPU's memory, and then the
/// arguments in host memory for elements on the host.
macro_rules! rows {
    (
        made: $($created:literal: $create:expr, $sizes:expr;)*
        whole: $($op:literal: $make:expr, $host:expr;)*
        of_elements: $(
            $by:literal: $hosted:expr, $with_elements:expr, $on_gpu:expr, $on_host:expr;
        )*
    ) => {
        &[
            $(
                KernelDef { host_memory: $sizes, ..KernelDef::of($created, &[("element_dtype", COPIED)], $create) },
                KernelDef { host_memory: $sizes, ..KernelDef::of($created, &[("element_dtype", HOSTED)], $create) },
            )*
            $(KernelDef { host_memory: $host, ..KernelDef::of($op, &[], $make) },)*
            $(
                KernelDef { host_memory: $hosted, ..KernelDef::of($by, &[("element_dtype", COPIED)], $on_gpu) },
                KernelDef {
                    host_memory: $with_elements,
                    ..KernelDef::of($by, &[("element_dtype", HOSTED)], $on_host)
                },
            )*
            KernelDef::of("ZerosLike", &[("T", VARIANT)], |_| zeros_like::<AnyTensor>(OnGpu::default())),
            KernelDef::of("AddN", &[("T", VARIANT)], |_| add_n::<AnyTensor>()),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = rows! {
    made:
        "EmptyTensorList": empty::<AnyTensor>, &["element_shape", "max_num_elements"];
        "TensorListReserve": reserve::<AnyTensor>, &["element_shape", "num_elements"];
        "TensorListConcatLists": concat_lists::<AnyTensor>, &[];
    whole:
        "TensorListLength": length::<AnyTensor>, &["length"];
        "TensorListResize": resize::<AnyTensor>, &["size"];
        "TensorListElementShape": element_shape::<AnyTensor>, &["element_shape"];
    of_elements:
        "TensorListGetItem": &["index", "element_shape"], &["index", "element_shape", "item"],
            |init| get_item::<AnyTensor>(init, OnGpu::default()), |init| get_item::<AnyTensor>(init, Host);
        "TensorListSetItem": &["index"], &["index", "item"], set_item::<AnyTensor>, set_item::<AnyTensor>;
        "TensorListPushBack": &[], &["tensor"], push_back::<AnyTensor>, push_back::<AnyTensor>;
        "TensorListPopBack": &["element_shape"], &["element_shape", "tensor"],
            |init| pop_back::<AnyTensor>(init, OnGpu::default()), |init| pop_back::<AnyTensor>(init, Host);
        "TensorListFromTensor": &["element_shape"], &["element_shape", "tensor"],
            |init| from_tensor::<AnyTensor>(init, moving(init)?), |init| from_tensor::<AnyTensor>(init, Host);
        "TensorListStack": &["element_shape"], &["element_shape", "tensor"],
            |init| stack::<AnyTensor>(init, moving(init)?), |init| stack::<AnyTensor>(init, Host);
        "TensorListGather": &["indices", "element_shape"], &["indices", "element_shape", "values"],
            |init| gather::<AnyTensor>(init, moving(init)?), |init| gather::<AnyTensor>(init, Host);
        "TensorListScatter": &["indices", "element_shape"], &["indices", "element_shape", "tensor"],
            |init| scatter::<AnyTensor>(init, moving(init)?), |init| scatter::<AnyTensor>(init, Host);
        "TensorListScatterV2": &["indices", "element_shape", "num_elements"],
            &["indices", "element_shape", "num_elements", "tensor"],
            |init| scatter_v2::<AnyTensor>(init, moving(init)?), |init| scatter_v2::<AnyTensor>(init, Host);
        "TensorListScatterIntoExistingList": &["indices"], &["indices", "tensor"],
            |init| scatter_into::<AnyTensor>(init, moving(init)?), |init| scatter_into::<AnyTensor>(init, Host);
        "TensorListSplit": &["element_shape", "lengths"], &["element_shape", "lengths", "tensor"],
            |init| split::<AnyTensor>(init, moving(init)?), |init| split::<AnyTensor>(init, Host);
        "TensorListConcat": &["lengths"], &["lengths", "tensor"],
            |init| concat::<AnyTensor>(init, moving(init)?), |init| concat::<AnyTensor>(init, Host);
        "TensorListConcatV2": &["element_shape", "leading_dims", "lengths"],
            &["element_shape", "leading_dims", "lengths", "tensor"],
            |init| concat_v2::<AnyTensor>(init, moving(init)?), |init| concat_v2::<AnyTensor>(init, Host);
        "TensorListPushBackBatch": &[], &["tensor"],
            |init| push_back_batch::<AnyTensor>(init, moving(init)?),
            |init| push_back_batch::<AnyTensor>(init, Host);
};
