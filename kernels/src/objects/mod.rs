//! The objects behind handles, which kernels create and use: queues, tables, readers, datasets, accumulators.

pub mod accumulator;
pub mod barrier;
pub(crate) mod batcher;
pub mod dataset;
pub mod debug;
pub mod escape;
pub mod event_file;
pub mod fair_lock;
pub mod io;
pub mod memory;
pub mod queue;
pub mod reader;
pub(crate) mod record_input;
pub mod rows;
pub(crate) mod sqlite;
pub mod staging;
pub mod step_object;
pub(crate) mod summary_database;
pub(crate) mod summary_histogram;
pub(crate) mod summary_writer;
pub mod table;
