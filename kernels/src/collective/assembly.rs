//! Kernels that call the assembly of a job, by which the leader of a job with a varying number of workers forms epochs.

use super::{reply, scalar};
use device::collective::{AssemblyCall, AssemblyPurpose};
use device::kernel::{AsyncContext, Kernel};
use device::{Error, Result};
use graph::Bool8;
use std::time::Duration;

/// Makes a kernel that passes the result of `call` to the assembly of its job, and outputs the assembly's answer.
pub(super) fn kernel(call: fn(&AsyncContext) -> Result<AssemblyCall>) -> Result<Kernel> {
    Kernel::asynchronous(move |ctx| {
        let call = match call(&ctx) {
            Ok(call) => call,
            Err(error) => return ctx.done(Err(error)),
        };
        let AsyncContext { step, done, .. } = ctx;
        match &step.collectives {
            None => done(Err(Error::unimplemented("assemblies of workers are in sessions of a server"))),
            Some(of_step) => of_step.collectives.assemble(of_step, call, Box::new(reply(done))),
        }
    })
}

/// Returns the assembly call of a `_CollectiveAssemble` node, by which a worker joins the next epoch.
pub(super) fn join(ctx: &AsyncContext) -> Result<AssemblyCall> {
    let (worker, least, most) = (count(ctx, 1, "worker")?, count(ctx, 2, "least")?, count(ctx, 3, "most")?);
    if !(1..=most).contains(&least) || worker >= most {
        device::invalid!("worker {worker} cannot assemble with {least} to {most} workers");
    }
    let has_values = ctx.input(4)?.item::<Bool8>()?.get();
    call(ctx, worker, 5, AssemblyPurpose::Join { least, most, has_values }, 6)
}

/// Returns the assembly call of a `_CollectiveWatch` node, by which a worker waits for a change of its epoch.
pub(super) fn watch(ctx: &AsyncContext) -> Result<AssemblyCall> {
    let known = ctx.input(3)?.item::<i64>()?;
    call(ctx, count(ctx, 1, "worker")?, 2, AssemblyPurpose::Watch { known }, 4)
}

/// Returns the assembly call of a `_CollectiveFinish` node, by which a worker ends its training.
pub(super) fn finish(ctx: &AsyncContext) -> Result<AssemblyCall> {
    let step = ctx.input(3)?.item::<i64>()?;
    call(ctx, count(ctx, 1, "worker")?, 2, AssemblyPurpose::Finish { step }, 4)
}

/// Returns an assembly call for the job whose key is input 0. `epoch` and `patience` are the indices of the inputs that
/// hold the epoch and the time limit in seconds.
fn call(
    ctx: &AsyncContext,
    worker: u32,
    epoch: usize,
    purpose: AssemblyPurpose,
    patience: usize,
) -> Result<AssemblyCall> {
    let seconds = ctx.input(patience)?.item::<f32>()?;
    let patience = Duration::try_from_secs_f32(seconds);
    Ok(AssemblyCall {
        node: ctx.node.clone(),
        job_key: scalar(ctx, 0, "job_key")?,
        worker,
        epoch: ctx.input(epoch)?.item()?,
        purpose,
        patience: patience.map_err(|e| Error::invalid(format!("patience_seconds is {seconds}: {e}")))?,
    })
}

/// Returns the only element of input `i`, which must not be negative.
fn count(ctx: &AsyncContext, i: usize, name: &str) -> Result<u32> {
    let value = scalar(ctx, i, name)?;
    u32::try_from(value).map_err(|_| Error::invalid(format!("{name} is {value}, which is negative")))
}
