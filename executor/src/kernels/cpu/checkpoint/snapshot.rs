//! Kernels that set variables aside, and write what was set aside while the variables change on.

use super::{prefix, write};
use crate::error::{Error, Result};
use crate::handle::{ObjectName, Owner};
use crate::io::{behind, blocking};
use crate::kernel::{Kernel, KernelInit};
use crate::variable::{Aside, Snapshot, VariableInput};
use checkpoint::bundle::{self, Content, Sink};
use checkpoint::store::Store;
use graph::{Bool8, Code, DType, Shape, Tensor};
use smallvec::SmallVec;
use std::path::Path;

pub(super) fn set_aside(init: &KernelInit<'_>) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    Kernel::sync(move |ctx| {
        let aside = variable.get(ctx)?.set_aside(&**ctx.device())?;
        ctx.set_output(0, Tensor::variant(aside));
        Ok(())
    })
}

pub(super) fn keep(init: &KernelInit<'_>) -> Result<Kernel> {
    let snapshot = Owner::<Snapshot>::new(init, ObjectName::of(init, true)?);
    Kernel::sync(move |ctx| {
        let aside = |tensor: &Tensor| match tensor.as_variants()? {
            [aside] => Ok(aside.expect::<Aside>("what was set aside of a variable")?),
            many => Err(Error::invalid(format!("expected what one variable held, got {}", many.len()))),
        };
        let asides = (0..ctx.num_inputs()).map(|i| aside(ctx.input(i)?)).collect::<Result<Vec<_>>>()?;
        snapshot.object(|_| Ok(Snapshot::default()))?.put(asides);
        Ok(())
    })
}

pub(super) fn save(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = ObjectName::of(init, true)?;
    let said = name.name.clone();
    let snapshot = Owner::<Snapshot>::new(init, name);
    blocking(move |ctx| {
        let values = snapshot.object(|_| Ok(Snapshot::default()))?.take().ok_or_else(|| {
            let message = format!("nothing is set aside in {said}: run its KeepSnapshot before each save");
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
            Aside::Brought(aside) => aside.wait().map_err(as_found)?.give(sink),
        }
    }
}

/// What kept a value from coming, as a failure of what was to be written.
fn as_found(error: Error) -> checkpoint::Error {
    checkpoint::Error::Invalid { code: error.code(), message: error.to_string() }
}
