//! Snapshots of variables, for a checkpoint that is written while steps run on.

use super::{DeviceSnapshot, InPlaceSnapshot};
use crate::error::Error;
use crate::journal::Replica;
use crate::resource::Resource;
use checkpoint::bundle::{Content, Sink};
use graph::{DType, Shape, VariantObject};
use parking_lot::Mutex;
use std::sync::Arc;

/// The value of one variable as of one moment, read while the variable changes.
#[derive(Debug)]
pub enum VariableSnapshot {
    /// A value in host memory, read from the variable itself.
    InPlace(Arc<InPlaceSnapshot>),
    /// A value in device memory that is copied to the host.
    Device(Arc<DeviceSnapshot>),
}

/// Snapshots are passed as variants from the variable's device to the device of the [`Snapshot`], in the same process.
impl VariantObject for VariableSnapshot {
    fn type_name(&self) -> &'static str {
        "anabranch::VariableSnapshot"
    }
}

/// A resource that holds the latest snapshot of a set of variables until the snapshot is taken.
#[derive(Debug, Default)]
pub struct Snapshot(Mutex<Option<Vec<Arc<VariableSnapshot>>>>);

impl Resource for Snapshot {
    const KIND: &'static str = "Snapshot";

    fn replica(_: &Arc<Snapshot>) -> Replica {
        Replica::NotNeeded
    }
}

impl Snapshot {
    /// Stores the values of a snapshot, in place of an earlier one.
    pub fn put(&self, values: Vec<Arc<VariableSnapshot>>) {
        *self.0.lock() = Some(values);
    }

    /// Removes and returns the values, in the order in which they were stored; `None` if there is no snapshot.
    pub fn take(&self) -> Option<Vec<Arc<VariableSnapshot>>> {
        self.0.lock().take()
    }
}

impl Content for VariableSnapshot {
    fn dtype(&self) -> DType {
        match self {
            VariableSnapshot::InPlace(snapshot) => snapshot.dtype(),
            VariableSnapshot::Device(snapshot) => snapshot.dtype(),
        }
    }

    fn shape(&self) -> &Shape {
        match self {
            VariableSnapshot::InPlace(snapshot) => snapshot.shape(),
            VariableSnapshot::Device(snapshot) => snapshot.shape(),
        }
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> checkpoint::Result<()> {
        match self {
            VariableSnapshot::InPlace(snapshot) => match snapshot.whole() {
                Some(tensor) => tensor.write_to(sink),
                None => sink.add_from(|space| Ok(snapshot.read(space)?)),
            },
            VariableSnapshot::Device(snapshot) => {
                snapshot.wait().map_err(to_checkpoint_error)?.write_to(sink)
            }
        }
    }
}

/// Converts the failure to obtain a snapshot's value into a failure of the checkpoint.
fn to_checkpoint_error(error: Error) -> checkpoint::Error {
    checkpoint::Error::Invalid { code: error.code(), message: error.to_string() }
}
