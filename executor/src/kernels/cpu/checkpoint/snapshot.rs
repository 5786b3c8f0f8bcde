//! Kernels that set variables aside, and write what was set aside while the variables change on.

use super::{prefix, write};
use crate::error::{Error, Result};
use crate::handle::{ObjectName, Owner};
use crate::io::{behind, blocking};
use crate::kernel::{Kernel, KernelInit};
use crate::variable::{SetAside, Snapshot, VariableInput};
use checkpoint::bundle::{self, Content, Sink};
use checkpoint::store::Store;
use graph::{Bool8, Code, DType, Shape};
use smallvec::SmallVec;
use std::path::Path;

pub(super) fn set_aside(init: &KernelInit<'_>) -> Result<Kernel> {
    let snapshot = Owner::<Snapshot>::new(init, ObjectName::of(init, true)?);
    let variables: Vec<VariableInput> = (0..init.inputs.len()).map(|i| VariableInput::new(init, i)).collect();
    Kernel::sync(move |ctx| {
        let values = variables.iter().map(|variable| variable.get(ctx)?.set_aside());
        let values = values.collect::<Result<Vec<_>>>()?;
        snapshot.object(|_| Ok(Snapshot::default()))?.put(values);
        Ok(())
    })
}

pub(super) fn save(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = ObjectName::of(init, true)?;
    let said = name.name.clone();
    let snapshot = Owner::<Snapshot>::new(init, name);
    blocking(move |ctx| {
        let values = snapshot.object(|_| Ok(Snapshot::default()))?.take().ok_or_else(|| {
            let message =
                format!("nothing is set aside in {said}: run its SnapshotVariables before each save");
            Error::new(Code::FailedPrecondition, message)
        })?;
        let prefix = prefix(ctx)?;
        let goes_behind = ctx.input(3)?.item::<Bool8>()?.get();
        let create = |store: &dyn Store, path: &Path| {
            let file = store.create_direct(path)?;
            if goes_behind { behind(file) } else { Ok(file) }
        };
        write(ctx, values, || bundle::Writer::create_with(prefix, create))?;
        Ok(SmallVec::new())
    })
}

impl Content for SetAside {
    fn dtype(&self) -> DType {
        SetAside::dtype(self)
    }

    fn shape(&self) -> &Shape {
        SetAside::shape(self)
    }

    fn give(&self, sink: &mut Sink<'_>) -> checkpoint::Result<()> {
        match self.whole() {
            Some(tensor) => tensor.give(sink),
            None => sink.add_from(|space| Ok(self.read(space)?)),
        }
    }
}
