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
pub enum Aside {
    /// A value in host memory, read from the variable itself.
    InPlace(Arc<InPlaceSnapshot>),
    /// A value in device memory that is copied to the host.
    Device(Arc<DeviceSnapshot>),
}

/// Snapshots travel as variants from the variable's device to the device of the [`Snapshot`], in the same process.
impl VariantObject for Aside {
    fn type_name(&self) -> &'static str {
        "anabranch::Aside"
    }
}

/// A resource with the latest snapshot of a set of variables, until it is taken.
#[derive(Debug, Default)]
pub struct Snapshot(Mutex<Option<Vec<Arc<Aside>>>>);

impl Resource for Snapshot {
    const KIND: &'static str = "Snapshot";

    fn replica(_: &Arc<Snapshot>) -> Replica {
        Replica::NotNeeded
    }
}

impl Snapshot {
    /// Stores the values of a snapshot, in place of an earlier one.
    pub fn put(&self, values: Vec<Arc<Aside>>) {
        *self.0.lock() = Some(values);
    }

    /// Removes and returns the values, in the order in which they were stored; `None` if there is no snapshot.
    pub fn take(&self) -> Option<Vec<Arc<Aside>>> {
        self.0.lock().take()
    }
}

impl Content for Aside {
    fn dtype(&self) -> DType {
        match self {
            Aside::InPlace(snapshot) => snapshot.dtype(),
            Aside::Device(snapshot) => snapshot.dtype(),
        }
    }

    fn shape(&self) -> &Shape {
        match self {
            Aside::InPlace(snapshot) => snapshot.shape(),
            Aside::Device(snapshot) => snapshot.shape(),
        }
    }

    fn give(&self, sink: &mut Sink<'_>) -> checkpoint::Result<()> {
        match self {
            Aside::InPlace(snapshot) => match snapshot.whole() {
                Some(tensor) => tensor.give(sink),
                None => sink.add_from(|space| Ok(snapshot.read(space)?)),
            },
            Aside::Device(snapshot) => snapshot.wait().map_err(to_checkpoint_error)?.give(sink),
        }
    }
}

/// Converts the failure to obtain a snapshot's value into a failure of the checkpoint.
fn to_checkpoint_error(error: Error) -> checkpoint::Error {
    checkpoint::Error::Invalid { code: error.code(), message: error.to_string() }
}
