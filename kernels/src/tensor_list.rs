//! Kernels of tensor lists, which are stored in variants.

use crate::objects::memory::Host;
use crate::plan::tensor_list::{
    concat, concat_lists, concat_v2, element_shape, empty, from_tensor, gather, get_item, length, pop_back,
    push_back, push_back_batch, reserve, resize, scatter, scatter_into, scatter_v2, set_item, split, stack,
};
use device::kernel::KernelDef;
use graph::Tensor;

/// Makes the kernel table entries of ops on lists of host tensors.
macro_rules! rows {
    ($($op:literal: $make:expr;)*) => {
        &[$(KernelDef::of($op, &[], $make),)*]
    };
}

pub(super) const KERNELS: &[KernelDef] = rows! {
    "EmptyTensorList": empty::<Tensor>;
    "TensorListReserve": reserve::<Tensor>;
    "TensorListGetItem": |init| get_item::<Tensor>(init, Host);
    "TensorListSetItem": set_item::<Tensor>;
    "TensorListPushBack": push_back::<Tensor>;
    "TensorListPopBack": |init| pop_back::<Tensor>(init, Host);
    "TensorListLength": length::<Tensor>;
    "TensorListResize": resize::<Tensor>;
    "TensorListElementShape": element_shape::<Tensor>;
    "TensorListFromTensor": |init| from_tensor::<Tensor>(init, Host);
    "TensorListStack": |init| stack::<Tensor>(init, Host);
    "TensorListGather": |init| gather::<Tensor>(init, Host);
    "TensorListScatter": |init| scatter::<Tensor>(init, Host);
    "TensorListScatterV2": |init| scatter_v2::<Tensor>(init, Host);
    "TensorListScatterIntoExistingList": |init| scatter_into::<Tensor>(init, Host);
    "TensorListSplit": |init| split::<Tensor>(init, Host);
    "TensorListConcat": |init| concat::<Tensor>(init, Host);
    "TensorListConcatV2": |init| concat_v2::<Tensor>(init, Host);
    "TensorListConcatLists": concat_lists::<Tensor>;
    "TensorListPushBackBatch": |init| push_back_batch::<Tensor>(init, Host);
};
