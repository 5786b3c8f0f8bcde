//! CPU kernels: one file a family, named as in the op table.

mod activation;
mod bias;
mod binary;
mod broadcast;
mod cast;
mod check;
mod compare;
mod concat;
mod constant;
mod control_flow;
mod conv;
mod dataset_argument;
mod dataset_batch;
mod dataset_function;
mod dataset_memory;
mod dataset_options;
mod dataset_query;
mod dataset_source;
mod dataset_transform;
mod dispatch;
mod elementwise;
mod functional;
mod fused;
mod gather;
mod identity;
mod image;
mod iterator;
mod matmul;
mod moved;
mod optional;
mod pad;
mod partition;
mod pool;
mod product;
pub(crate) mod random;
mod reduce;
mod resource;
mod scalar;
mod scatter;
mod segment;
mod select;
mod shape;
mod simd;
mod slice;
mod softmax;
mod stack;
mod step_object;
mod strided;
mod tensor_array;
mod threads;
mod topk;
mod training;
mod transfer;
mod transpose;
mod unary;
mod unique;
mod variable;
mod wide;

use crate::kernel::KernelDef;

/// The families, in no order that matters.
pub(super) const FAMILIES: &[&[KernelDef]] = &[
    activation::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    cast::KERNELS,
    check::KERNELS,
    compare::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    control_flow::KERNELS,
    conv::KERNELS,
    dataset_batch::KERNELS,
    dataset_function::KERNELS,
    dataset_memory::KERNELS,
    dataset_options::KERNELS,
    dataset_query::KERNELS,
    dataset_source::KERNELS,
    dataset_transform::KERNELS,
    functional::KERNELS,
    fused::KERNELS,
    gather::KERNELS,
    identity::KERNELS,
    iterator::KERNELS,
    matmul::KERNELS,
    optional::KERNELS,
    pad::KERNELS,
    partition::KERNELS,
    pool::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    resource::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    select::KERNELS,
    shape::KERNELS,
    slice::KERNELS,
    softmax::KERNELS,
    stack::KERNELS,
    tensor_array::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
