//! CPU kernels: one file a family, named as in the op table.

mod activation;
mod bias;
mod binary;
mod broadcast;
mod candidate;
mod cast;
mod check;
mod compare;
mod complex;
mod concat;
mod constant;
mod conv;
mod diagonal;
mod dispatch;
mod einsum;
mod elementwise;
mod fft;
mod gather;
mod histogram;
mod identity;
mod image;
mod linalg;
mod matmul;
mod moved;
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
mod sequence;
mod shape;
mod simd;
mod slice;
mod softmax;
mod sparse;
mod sparse_segment;
mod special;
mod strided;
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
    candidate::KERNELS,
    cast::KERNELS,
    check::KERNELS,
    compare::KERNELS,
    complex::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    conv::KERNELS,
    diagonal::KERNELS,
    einsum::KERNELS,
    fft::KERNELS,
    gather::KERNELS,
    histogram::KERNELS,
    identity::KERNELS,
    linalg::KERNELS,
    matmul::KERNELS,
    pad::KERNELS,
    partition::KERNELS,
    pool::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    resource::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    select::KERNELS,
    sequence::KERNELS,
    shape::KERNELS,
    slice::KERNELS,
    softmax::KERNELS,
    sparse::KERNELS,
    sparse_segment::KERNELS,
    special::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
