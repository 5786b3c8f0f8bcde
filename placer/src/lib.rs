//! The compiler passes between a session's graph and the graphs that devices run: the placer ([`place()`]),
//! the pruning of a graph for one run ([`rewrite_for_run`]) and the partitioner ([`partition()`]). Device
//! functions, which choose a device for each variable while a graph is built, are here too. The crate runs no
//! kernel and opens no connection.
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
