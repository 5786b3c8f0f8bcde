//! Kernels that take snapshots of variables, and save them while the variables continue to change.

use super::{prefix, write};
use crate::objects::io::{blocking, write_behind};
use checkpoint::bundle;
use checkpoint::store::Store;
use device::handle::{ObjectName, Owner};
use device::kernel::{Kernel, KernelInit};
use device::variable::{Snapshot, VariableInput, VariableSnapshot};
use device::{Error, Result};
use graph::{Bool8, Code, Tensor};
use smallvec::SmallVec;
use std::path::Path;

/// `SetAsideVariable`: outputs a snapshot of a variable's value.
pub(super) fn take_snapshot(init: &KernelInit<'_>) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    Kernel::sync(move |ctx| {
        let snapshot = variable.get(ctx)?.take_snapshot(ctx.device())?;
        ctx.set_output(0, Tensor::variant(snapshot));
        Ok(())
    })
}

/// `KeepSnapshot`: stores the snapshots of several variables in a named object for `SaveSnapshot`.
pub(super) fn keep(init: &KernelInit<'_>) -> Result<Kernel> {
    let snapshot = Owner::<Snapshot>::new(init, ObjectName::of(init, true)?);
    Kernel::sync(move |ctx| {
        let variable_snapshot = |tensor: &Tensor| match tensor.as_variants()? {
            [snapshot] => Ok(snapshot.expect::<VariableSnapshot>("a variable's snapshot")?),
            many => Err(Error::invalid(format!("expected the snapshot of one variable, got {}", many.len()))),
        };
        let snapshots =
            (0..ctx.num_inputs()).map(|i| variable_snapshot(ctx.input(i)?)).collect::<Result<Vec<_>>>()?;
        snapshot.object(|_| Ok(Snapshot::default()))?.put(snapshots);
        Ok(())
    })
}

/// `SaveSnapshot`: writes the stored snapshots to a checkpoint.
pub(super) fn save(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = ObjectName::of(init, true)?;
    let object_name = name.name.clone();
    let snapshot = Owner::<Snapshot>::new(init, name);
    blocking(move |ctx| {
        let values = snapshot.object(|_| Ok(Snapshot::default()))?.take().ok_or_else(|| {
            let message =
                format!("there is no snapshot in {object_name}: run its KeepSnapshot before each save");
            Error::new(Code::FailedPrecondition, message)
        })?;
        let prefix = prefix(ctx)?;
        let writes_behind = ctx.input(3)?.item::<Bool8>()?.get();
        let create = |store: &dyn Store, path: &Path| {
            let file = store.create_direct(path)?;
            if writes_behind { write_behind(file) } else { Ok(file) }
        };
        write(ctx, values, || bundle::Writer::create_with(prefix, create))?;
        Ok(SmallVec::new())
    })
}
