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
mod dispatch;
mod elementwise;
mod functional;
mod gather;
mod identity;
mod image;
mod matmul;
mod moved;
mod optional;
mod pad;
mod partition;
mod pool;
mod product;
mod random;
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
mod strided;
mod tensor_list;
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
    functional::KERNELS,
    gather::KERNELS,
    identity::KERNELS,
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
    tensor_list::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
