//! Kernels of NVIDIA's GPUs: one file a family, named as in the op table, with a `.cu` file beside it where the family has
//! kernels of its own. They enqueue and return; what fails on the GPU later fails who waits for it.

mod activation;
mod bias;
mod binary;
mod cast;
mod compare;
mod concat;
mod constant;
mod conv;
mod elementwise;
pub(super) mod fused;
mod gather;
mod host;
mod matmul;
mod moved;
mod normalization;
mod pad;
mod pool;
mod random;
mod reduce;
mod resource;
mod scatter;
mod segment;
mod select;
mod shape;
mod slice;
mod softmax;
mod support;
mod training;
mod transpose;
mod unary;
mod variable;

use crate::kernel::KernelDef;

/// The families. Of several rows that take a node the first is its kernel.
pub(super) const FAMILIES: &[&[KernelDef]] = &[
    host::KERNELS,
    activation::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    cast::KERNELS,
    compare::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    conv::KERNELS,
    fused::KERNELS,
    gather::KERNELS,
    matmul::KERNELS,
    normalization::KERNELS,
    pad::KERNELS,
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
    training::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    variable::KERNELS,
];
