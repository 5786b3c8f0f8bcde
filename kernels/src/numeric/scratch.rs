//! Checks of the size of memory that a kernel needs besides its inputs and outputs. The sizes of a tensor without elements
//! may be huge, so no input's memory bounds it.

use device::{Error, Result};
use graph::{Code, tensor::memory_limit};

/// Checks that `count` values of the type `T` fit the limit of host memory.
///
/// # Errors
/// `ResourceExhausted` with the number of bytes.
pub(crate) fn check_scratch<T>(count: usize) -> Result<()> {
    let bytes = count as u128 * size_of::<T>() as u128;
    if bytes > u128::from(memory_limit()) {
        let message = format!("OOM when allocating {bytes} bytes of scratch memory");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(())
}
