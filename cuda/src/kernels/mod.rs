//! Kernels for NVIDIA GPUs: one file per family of ops, named as in the op table, with a `.cu` file for the
//! family's own CUDA kernels. A kernel enqueues its work and returns; an error on the GPU appears where a later
//! call waits for that work.

mod activation;
mod bessel;
mod bias;
mod binary;
mod boxes;
mod cast;
mod checkpoint;
mod collective;
mod color;
mod compare;
mod complex;
mod concat;
mod constant;
mod conv;
mod copy;
mod diagonal;
mod einsum;
mod elementwise;
mod fft;
mod functional;
mod fused;
mod gather;
mod generator;
mod histogram;
mod host;
mod identity;
mod iterator;
mod linalg;
mod matmul;
mod memory;
mod morphology;
mod mutex;
mod nccl;
mod normalization;
mod optional;
mod pad;
mod partition;
mod pool;
mod quantize;
mod queue;
mod random;
mod reduce;
mod resize;
mod resource;
mod scatter;
mod segment;
mod select;
mod sequence;
mod session_tensor;
mod shape;
mod slice;
mod slice_copy;
mod softmax;
mod space;
mod sparse;
mod special;
mod stack;
mod staging;
mod support;
mod tensor_array;
mod tensor_list;
mod topk;
mod training;
mod transpose;
mod unary;
mod unique;
mod variable;

use device::KernelTable;
use device::kernel::KernelDef;
use std::sync::OnceLock;

/// Returns the table of all GPU kernels.
pub fn table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| KernelTable::new("GPU", FAMILIES, fused::has_function))
}

/// The kernel definitions of all op families. If several definitions match a node, the first is used.
const FAMILIES: &[&[KernelDef]] = &[
    host::KERNELS,
    host::HOSTED,
    activation::KERNELS,
    bessel::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    boxes::KERNELS,
    boxes::suppress::KERNELS,
    cast::KERNELS,
    checkpoint::KERNELS,
    collective::KERNELS,
    color::KERNELS,
    compare::KERNELS,
    complex::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    conv::KERNELS,
    conv::volumes::KERNELS,
    diagonal::KERNELS,
    einsum::KERNELS,
    fft::KERNELS,
    fused::KERNELS,
    functional::KERNELS,
    gather::KERNELS,
    generator::KERNELS,
    histogram::KERNELS,
    identity::KERNELS,
    iterator::KERNELS,
    linalg::KERNELS,
    linalg::factors::KERNELS,
    matmul::KERNELS,
    morphology::KERNELS,
    mutex::KERNELS,
    nccl::KERNELS,
    normalization::KERNELS,
    optional::KERNELS,
    pad::KERNELS,
    partition::KERNELS,
    pool::KERNELS,
    quantize::KERNELS,
    queue::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    resize::KERNELS,
    resource::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    select::KERNELS,
    shape::KERNELS,
    sequence::KERNELS,
    session_tensor::KERNELS,
    slice::KERNELS,
    softmax::KERNELS,
    space::KERNELS,
    sparse::KERNELS,
    special::KERNELS,
    stack::KERNELS,
    staging::KERNELS,
    tensor_array::KERNELS,
    tensor_list::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
