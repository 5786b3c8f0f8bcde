//! Memory limits for the values of a message. They are needed because a few bytes can claim a tensor of many
//! terabytes.

use graph::{Code, Error, Result, tensor::memory_limit};

/// The number of bytes that tensors may still take while one message is converted.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u64,
    whole: u64,
}

impl Budget {
    /// Creates a budget of `bytes` bytes.
    pub fn new(bytes: u64) -> Budget {
        Budget { left: bytes, whole: bytes }
    }

    /// Returns the remaining bytes.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Deducts `count` elements of `size` bytes.
    ///
    /// # Errors
    /// `ResourceExhausted` if they exceed the remaining bytes.
    pub(super) fn take(&mut self, count: usize, size: usize) -> Result<()> {
        let bytes = count as u128 * size as u128;
        match u64::try_from(bytes).ok().and_then(|b| self.left.checked_sub(b)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Error::Invalid {
                code: Code::ResourceExhausted,
                message: format!(
                    "a tensor of {bytes} bytes does not fit: {} of {} bytes are left for this message",
                    self.left, self.whole
                ),
            }),
        }
    }
}

impl Default for Budget {
    /// Returns a budget of half of the host memory that tensors may take in total.
    fn default() -> Budget {
        Budget::new(memory_limit() / 2)
    }
}
