//! Inputs of the ops that advance the state of a random generator.

use device::Result;
use device::kernel::KernelContext;
use graph::DType;

/// Number of groups of four random numbers by which a generator's state advances for each skipped number: as many as
/// are reserved for each drawn number.
const SKIPPED: u64 = 256;

/// Returns the number of groups of four random numbers by which the state advances; input 2 is the number of drawn
/// numbers to skip.
pub fn groups_to_skip(ctx: &KernelContext<'_>) -> Result<u64> {
    let delta = ctx.input(2)?;
    if delta.shape().rank() != 0 {
        device::invalid!("delta must be of shape [], not {}", delta.shape());
    }
    let delta = match delta.dtype() {
        DType::UInt64 => delta.item::<u64>()?,
        _ => delta.item::<i64>()? as u64,
    };
    Ok(delta.wrapping_mul(SKIPPED))
}
