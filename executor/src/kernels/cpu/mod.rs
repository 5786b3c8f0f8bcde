//! CPU kernels: one file a family, named as in the op table.

mod accumulator;
mod activation;
mod barrier;
mod bias;
mod binary;
mod broadcast;
mod cast;
mod check;
mod compare;
mod concat;
mod constant;
mod conv;
pub(crate) mod dispatch;
mod elementwise;
mod gather;
mod identity;
mod image;
mod matmul;
mod moved;
mod mutex;
mod pad;
mod partition;
mod pool;
mod product;
mod queue;
pub(crate) mod random;
mod reduce;
mod resource;
pub(crate) mod scalar;
mod scatter;
mod segment;
mod select;
mod session_tensor;
mod shape;
mod simd;
mod slice;
mod softmax;
mod staging;
mod strided;
mod table;
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
    accumulator::KERNELS,
    activation::KERNELS,
    barrier::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    cast::KERNELS,
    check::KERNELS,
    compare::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    conv::KERNELS,
    gather::KERNELS,
    identity::KERNELS,
    matmul::KERNELS,
    mutex::KERNELS,
    pad::KERNELS,
    partition::KERNELS,
    pool::KERNELS,
    queue::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    resource::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    select::KERNELS,
    session_tensor::KERNELS,
    shape::KERNELS,
    slice::KERNELS,
    softmax::KERNELS,
    staging::KERNELS,
    table::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
