//! Training: variables, optimizers, and strategies that spread one model function over devices and tasks.
#![forbid(unsafe_code)]

mod initializer;
mod optimizer;
mod readiness;
mod strategy;
mod variables;

pub use initializer::Initializer;
pub use optimizer::Optimizer;
pub use placer::Partitioner;
pub use readiness::{ReadinessError, wait_until_initialized};
pub use strategy::{Strategy, Training, VariablePlacement};
pub use variables::{PartitionedVariable, Variable, Variables};
