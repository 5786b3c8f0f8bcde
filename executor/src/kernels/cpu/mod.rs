//! The CPU kernels: one file per family of ops.

mod accumulator;
mod activation;
mod barrier;
mod bessel;
pub(super) mod bias;
mod binary;
pub(super) mod boxes;
pub(super) mod broadcast;
mod cache;
mod candidate;
pub(super) mod cast;
mod check;
mod checkpoint;
mod codec;
pub(super) mod color;
mod compare;
mod complex;
pub(super) mod concat;
pub(super) mod constant;
mod control_flow;
pub(super) mod conv;
mod ctc;
mod dataset_argument;
mod dataset_batch;
mod dataset_function;
mod dataset_memory;
mod dataset_options;
mod dataset_query;
mod dataset_source;
mod dataset_transform;
pub(super) mod diagonal;
pub(crate) mod dispatch;
mod edit_distance;
pub(super) mod einsum;
mod elementwise;
pub(super) mod fft;
mod file;
mod functional;
pub(crate) mod fused;
mod gather;
pub(super) mod generator;
pub(super) mod histogram;
pub(super) mod identity;
mod image;
pub(super) mod iterator;
mod kept;
pub(super) mod linalg;
pub(super) mod matmul;
pub(super) mod memory;
mod micro;
pub(super) mod morphology;
mod moved;
mod mutex;
pub(super) mod normalization;
pub(super) mod optional;
pub(super) mod pad;
mod panel;
mod parsing;
pub(super) mod partition;
pub(super) mod pool;
mod product;
pub(super) mod quantize;
mod queue;
mod ragged;
pub(crate) mod random;
mod reader;
pub(super) mod reduce;
pub(super) mod resize;
pub(super) mod resource;
pub(crate) mod scalar;
pub(super) mod scatter;
pub(super) mod segment;
pub(super) mod select;
pub(super) mod sequence;
mod session_tensor;
mod set;
pub(super) mod shape;
mod simd;
pub(super) mod slice;
mod softmax;
pub(super) mod space;
pub(super) mod sparse;
mod sparse_cross;
pub(super) mod sparse_segment;
mod special;
mod stack;
mod staging;
pub(super) mod stateless_random;
mod step_object;
mod stream;
pub(super) mod strided;
mod string;
mod summary;
mod summary_writer;
mod table;
pub(super) mod tensor_array;
pub(super) mod tensor_list;
mod threads;
pub(super) mod topk;
pub(super) mod training;
mod transfer;
pub(super) mod transpose;
mod turn;
mod unary;
mod unique;
pub(super) mod variable;
mod wide;

use crate::device::{Device, DeviceAttributes, HostProcessor};
use crate::kernel::KernelDef;
use crate::kernel_table::KernelTable;
use graph::{DeviceName, TaskName};
use std::sync::{Arc, OnceLock};

/// The CPU's kernels.
pub fn table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| KernelTable::new("CPU", FAMILIES, fused::has_strip))
}

/// The device of one task's CPUs. `incarnation` is random and new at each start of the process; `memory_limit`, in bytes, is
/// the figure that the device tells the cluster.
pub fn device(name: DeviceName, incarnation: u64, memory_limit: u64) -> Device {
    let attributes = DeviceAttributes { name, memory_limit, incarnation, physical_description: String::new() };
    Device::new(attributes, Arc::new(HostProcessor), table())
}

/// A CPU device outside any cluster, for nodes that run without a graph.
pub fn lone_device() -> Device {
    device(DeviceName::new(&TaskName::new("localhost", 0), "CPU", 0), 1, 1 << 28)
}

/// The kernels of all families; the order has no meaning.
const FAMILIES: &[&[KernelDef]] = &[
    accumulator::KERNELS,
    activation::KERNELS,
    barrier::KERNELS,
    bessel::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    boxes::KERNELS,
    candidate::KERNELS,
    cast::KERNELS,
    check::KERNELS,
    checkpoint::KERNELS,
    codec::KERNELS,
    color::KERNELS,
    compare::KERNELS,
    complex::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    control_flow::KERNELS,
    conv::KERNELS,
    ctc::KERNELS,
    dataset_batch::KERNELS,
    dataset_function::KERNELS,
    dataset_memory::KERNELS,
    dataset_options::KERNELS,
    dataset_query::KERNELS,
    dataset_source::KERNELS,
    dataset_transform::KERNELS,
    diagonal::KERNELS,
    edit_distance::KERNELS,
    einsum::KERNELS,
    fft::KERNELS,
    file::KERNELS,
    functional::KERNELS,
    fused::KERNELS,
    gather::KERNELS,
    generator::KERNELS,
    histogram::KERNELS,
    identity::KERNELS,
    iterator::KERNELS,
    iterator::several::KERNELS,
    linalg::KERNELS,
    matmul::KERNELS,
    morphology::KERNELS,
    mutex::KERNELS,
    normalization::KERNELS,
    optional::KERNELS,
    pad::KERNELS,
    parsing::KERNELS,
    partition::KERNELS,
    pool::KERNELS,
    quantize::KERNELS,
    queue::KERNELS,
    ragged::KERNELS,
    random::KERNELS,
    reader::KERNELS,
    reduce::KERNELS,
    resize::KERNELS,
    resource::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    select::KERNELS,
    sequence::KERNELS,
    session_tensor::KERNELS,
    set::KERNELS,
    shape::KERNELS,
    slice::KERNELS,
    softmax::KERNELS,
    space::KERNELS,
    sparse::KERNELS,
    sparse_cross::KERNELS,
    sparse_segment::KERNELS,
    special::KERNELS,
    stack::KERNELS,
    staging::KERNELS,
    stateless_random::KERNELS,
    string::KERNELS,
    summary::KERNELS,
    summary_writer::KERNELS,
    table::KERNELS,
    tensor_array::KERNELS,
    tensor_list::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
