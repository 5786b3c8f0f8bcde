//! Collectives between the devices of a group, over all tasks. The kernels are the CPU's, which pass requests to the
//! step's collectives. The tensors of a reduction may be in the GPU's memory, where NCCL reduces them if all members can;
//! the tensors of other collectives, and those of `int32`, are in host memory.

use super::host::{on_demand, same_as_cpu};
use device::kernel::{ALL_ARGUMENTS, KernelDef};
use graph::DType::{self, BFloat16, Double, Float, Half, Int32, Int64};

/// Dtypes of tensors that are reduced in the GPU's memory.
const ON_GPU: &[(&str, &[DType])] = &[("T", &[BFloat16, Half, Float, Double, Int64])];

const ON_HOST: &[(&str, &[DType])] = &[("T", &[Int32])];

/// The arguments of a reduction that are in host memory.
const KEYS: &[&str] = &["group_size", "group_key", "instance_key", "ordering_token"];

/// Returns the definition of a collective whose tensors are in host memory.
const fn hosted(op: &'static str, types: &'static [(&'static str, &'static [DType])]) -> KernelDef {
    on_demand(same_as_cpu(op, types, ALL_ARGUMENTS))
}

/// Nodes without a requested device are placed on the CPU, because all members of a group must be on one type of device.
pub(super) const KERNELS: &[KernelDef] = &[
    on_demand(same_as_cpu("CollectiveReduce", ON_GPU, &[])),
    on_demand(same_as_cpu("CollectiveReduceV2", ON_GPU, KEYS)),
    hosted("CollectiveReduce", ON_HOST),
    hosted("CollectiveReduceV2", ON_HOST),
    hosted("CollectiveReduceScatterV2", &[]),
    hosted("CollectiveGather", &[]),
    hosted("CollectiveGatherV2", &[]),
    hosted("CollectiveBcastSend", &[]),
    hosted("CollectiveBcastSendV2", &[]),
    hosted("CollectiveBcastRecv", &[]),
    hosted("CollectiveBcastRecvV2", &[]),
    hosted("CollectiveAllToAllV2", &[]),
    hosted("CollectiveAssignGroupV2", &[]),
    hosted("CollectiveInitializeCommunicator", &[]),
    hosted("CollectiveReduceV3", &[]),
    hosted("CollectiveAllToAllV3", &[]),
];
