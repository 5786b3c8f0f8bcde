//! From one graph to the graphs that devices run: where each node goes ([`place()`]), what a run needs of the graph
//! ([`rewrite_for_run`]), and the part that each task or device gets ([`partition()`]). Device functions, which say
//! where variables go while a graph is built, are here too. Nothing here runs anything or talks to anyone.
#![forbid(unsafe_code)]

mod device_set;
mod error;
mod partition;
mod place;
mod rewrite;
mod setter;
mod shards;
mod spec;
mod transfer;

pub use device_set::{DeviceSet, SetDevice};
pub use error::{Error, Pin, Result};
pub use partition::{Names, Partition, PartitionOptions, Split, partition, placed_devices};
pub use place::{Kernels, PlaceRequest, Placement, Reason, place};
pub use rewrite::{normalise_endpoint, rewrite_for_run};
pub use setter::{
    GreedyLoadBalancing, PsStrategy, RandomTask, ReplicaDeviceSetter, RoundRobin, STANDARD_PS_OPS,
    byte_size_load, replica_device_setter,
};
pub use shards::{Partitioner, Shard, shards};
