//! What variables held at one moment, for a checkpoint that is written behind the steps.

use super::{Brought, SetAside};
use crate::error::Error;
use crate::journal::Replica;
use crate::resource::Resource;
use checkpoint::bundle::{Content, Sink};
use graph::{DType, Shape, VariantObject};
use parking_lot::Mutex;
use std::sync::Arc;

/// What one variable held, to be read out while it changes on.
#[derive(Debug)]
pub enum Aside {
    InPlace(Arc<SetAside>),
    Brought(Arc<Brought>),
}

/// As it goes from the variable's device to where the snapshot is kept, which is of the same process.
impl VariantObject for Aside {
    fn type_name(&self) -> &'static str {
        "anabranch::Aside"
    }
}

/// A place for values that were set aside: the latest ones, until they are taken.
#[derive(Debug, Default)]
pub struct Snapshot(Mutex<Option<Vec<Arc<Aside>>>>);

impl Resource for Snapshot {
    const KIND: &'static str = "Snapshot";

    fn replica(_: &Arc<Snapshot>) -> Replica {
        Replica::NotNeeded
    }
}

impl Snapshot {
    pub fn put(&self, values: Vec<Arc<Aside>>) {
        *self.0.lock() = Some(values);
    }

    /// The values, in the order in which they were put; `None` if there are none.
    pub fn take(&self) -> Option<Vec<Arc<Aside>>> {
        self.0.lock().take()
    }
}

impl Content for Aside {
    fn dtype(&self) -> DType {
        match self {
            Aside::InPlace(aside) => aside.dtype(),
            Aside::Brought(aside) => aside.dtype(),
        }
    }

    fn shape(&self) -> &Shape {
        match self {
            Aside::InPlace(aside) => aside.shape(),
            Aside::Brought(aside) => aside.shape(),
        }
    }

    fn give(&self, sink: &mut Sink<'_>) -> checkpoint::Result<()> {
        match self {
            Aside::InPlace(aside) => match aside.whole() {
                Some(tensor) => tensor.give(sink),
                None => sink.add_from(|space| Ok(aside.read(space)?)),
            },
            Aside::Brought(aside) => aside.wait().map_err(to_checkpoint_error)?.give(sink),
        }
    }
}

/// Converts the failure to obtain a snapshot's value into a failure of the checkpoint.
fn to_checkpoint_error(error: Error) -> checkpoint::Error {
    checkpoint::Error::Invalid { code: error.code(), message: error.to_string() }
}
