//! The CPU kernels: one file per family of ops.

#![deny(unsafe_code)]

mod accumulator;
mod activation;
mod audio;
mod barrier;
mod batch;
mod bessel;
mod bias;
mod binary;
mod boxes;
mod candidate;
mod cast;
mod check;
mod checkpoint;
mod clustering;
mod codec;
pub mod collective;
mod color;
mod compare;
mod complex;
mod composite;
mod concat;
mod constant;
mod control_flow;
mod conv;
mod csr_matrix;
mod ctc;
mod dataset_batch;
mod dataset_compression;
mod dataset_function;
mod dataset_memory;
mod dataset_options;
mod dataset_query;
mod dataset_source;
mod dataset_stats;
mod dataset_storage;
mod dataset_transform;
mod debug;
mod diagonal;
mod edit_distance;
mod einsum;
mod fft;
mod file;
mod functional;
mod fused;
mod gather;
mod generator;
mod histogram;
mod identity;
mod iterator;
mod linalg;
mod matmul;
mod morphology;
mod mutex;
mod normalization;
// Unsafe code for vector instructions, and for memory that results are written to before it is initialised.
#[allow(unsafe_code)]
pub mod numeric;
pub mod objects;
mod optional;
mod pad;
mod parsing;
mod partition;
pub mod plan;
mod pool;
mod projection;
mod protobuf;
mod quantize;
mod quantized;
mod quantized_fused;
mod queue;
mod ragged;
mod random;
mod reader;
mod recurrent;
mod reduce;
mod regression;
mod resize;
mod resource;
mod scatter;
mod segment;
mod select;
mod sequence;
mod session_tensor;
mod set;
mod shape;
mod slice;
mod softmax;
mod space;
mod sparse;
mod sparse_cross;
mod sparse_segment;
mod special;
mod special_unary;
mod stack;
mod staging;
mod stateless_random;
mod string;
mod summary;
mod summary_writer;
mod table;
mod tensor_array;
mod tensor_list;
mod tensor_map;
pub mod testing;
mod topk;
mod training;
mod transfer;
mod transpose;
mod unary;
mod unicode;
mod uniform_quantized;
mod unique;
mod variable;

use device::kernel::KernelDef;
use device::{Device, DeviceAttributes, HostProcessor, KernelTable};
use graph::{DeviceName, TaskName};
use std::sync::{Arc, OnceLock};

/// Returns the table of the CPU's kernels.
pub fn table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| KernelTable::new("CPU", FAMILIES, fused::has_strip))
}

/// Returns the device of one task's CPUs. `incarnation` is random and new at each start of the process;
/// `memory_limit`, in bytes, is the limit that the device reports to the cluster.
pub fn device(name: DeviceName, incarnation: u64, memory_limit: u64) -> Device {
    let attributes =
        DeviceAttributes { name, memory_limit, incarnation, physical_description: String::new() };
    Device::new(attributes, Arc::new(HostProcessor), table())
}

/// Returns a CPU device outside any cluster, for nodes that run without a graph.
pub fn lone_device() -> Device {
    device(DeviceName::new(&TaskName::new("localhost", 0), "CPU", 0), 1, 1 << 28)
}

/// The kernels of all families; the order has no meaning.
const FAMILIES: &[&[KernelDef]] = &[
    accumulator::KERNELS,
    activation::KERNELS,
    audio::KERNELS,
    barrier::KERNELS,
    batch::KERNELS,
    bessel::KERNELS,
    bias::KERNELS,
    binary::KERNELS,
    boxes::KERNELS,
    candidate::KERNELS,
    cast::KERNELS,
    check::KERNELS,
    checkpoint::KERNELS,
    clustering::KERNELS,
    codec::KERNELS,
    collective::KERNELS,
    color::KERNELS,
    compare::KERNELS,
    complex::KERNELS,
    composite::KERNELS,
    concat::KERNELS,
    constant::KERNELS,
    control_flow::KERNELS,
    conv::KERNELS,
    csr_matrix::KERNELS,
    ctc::KERNELS,
    dataset_batch::KERNELS,
    dataset_compression::KERNELS,
    dataset_function::KERNELS,
    dataset_memory::KERNELS,
    dataset_options::KERNELS,
    dataset_query::KERNELS,
    dataset_source::KERNELS,
    dataset_stats::KERNELS,
    dataset_storage::KERNELS,
    dataset_transform::KERNELS,
    debug::KERNELS,
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
    projection::KERNELS,
    protobuf::KERNELS,
    quantize::KERNELS,
    quantized::KERNELS,
    quantized_fused::KERNELS,
    queue::KERNELS,
    ragged::KERNELS,
    random::KERNELS,
    reader::KERNELS,
    recurrent::KERNELS,
    reduce::KERNELS,
    regression::KERNELS,
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
    special_unary::KERNELS,
    stack::KERNELS,
    staging::KERNELS,
    stateless_random::KERNELS,
    string::KERNELS,
    summary::KERNELS,
    summary_writer::KERNELS,
    table::KERNELS,
    tensor_array::KERNELS,
    tensor_list::KERNELS,
    tensor_map::KERNELS,
    topk::KERNELS,
    training::KERNELS,
    transfer::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
    unicode::KERNELS,
    uniform_quantized::KERNELS,
    unique::KERNELS,
    variable::KERNELS,
];
