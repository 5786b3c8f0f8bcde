//! Inputs of the ops that advance the state of a random generator.

use device::Result;
use device::kernel::KernelContext;
use graph::DType;

/// Groups of four numbers that a generator advances for each number skipped, equal to the number reserved for each
/// number drawn.
const SKIPPED: u64 = 256;

/// Returns the groups of four numbers to skip: those reserved for as many numbers as input 2 states.
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
