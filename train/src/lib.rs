//! Training: variables, optimizers, strategies that distribute a model function over devices and tasks, and
//! sessions that train, save checkpoints, and recover when a task dies.
#![forbid(unsafe_code)]

mod all_reduce;
mod clip;
mod coordination;
mod election;
mod embedding;
mod error;
mod events;
mod gradient;
mod initializer;
mod input;
mod learning_rate;
mod moving_average;
mod optimizer;
mod placement;
mod readiness;
mod saver;
mod session;
mod staleness;
mod strategy;
mod sync;
mod training;
mod variables;

pub use all_reduce::{AllReduceReplica, Average, Membership, Tables, Uneven, Wire};
pub use clip::{Clip, global_norm};
pub use coordination::Coordination;
#[cfg(feature = "etcd")]
pub use election::EtcdStore;
pub use election::{FileStore, LeaderStore};
#[cfg(feature = "kubernetes")]
pub use election::{KubernetesStore, kube};
pub use embedding::PartitionStrategy;
pub use error::{Error, Result};
pub use events::Events;
pub use gradient::Gradient;
pub use initializer::Initializer;
pub use input::{Dataset, Input};
pub use learning_rate::LearningRate;
pub use moving_average::MovingAverage;
pub use optimizer::Optimizer;
pub use placement::{VariableCost, VariablePlacement};
pub use placer::Partitioner;
pub use readiness::wait_until_initialized;
pub use saver::{CheckpointState, Retention, Saver, checkpoint_prefixes, latest_checkpoint, step_of};
pub use session::{
    Coordinator, Hook, HookContext, Master, MonitoredConfig, MonitoredSession, Period, QueueRunner, Role,
    RunArgs, RunValues, hooks,
};
pub use staleness::BoundedStaleness;
pub use strategy::{Aggregation, Averaging, Strategy, SyncMode, UpdateOptions};
pub use sync::{SyncReplicas, SyncReport};
pub use training::Training;
pub use variables::{PartitionedVariable, Variable, VariableSlice, Variables};
