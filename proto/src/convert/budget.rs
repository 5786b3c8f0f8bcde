//! How much memory the values of a message may take: a few bytes can state a tensor of many terabytes.

use graph::{Code, Error, Result, tensor::memory_limit};

/// Bytes that tensors may still take while one message is read.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u64,
    whole: u64,
}

impl Budget {
    pub fn new(bytes: u64) -> Budget {
        Budget { left: bytes, whole: bytes }
    }

    pub fn left(&self) -> u64 {
        self.left
    }

    /// Counts `count` elements of `size` bytes.
    ///
    /// # Errors
    /// `ResourceExhausted` if they exceed what is left.
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
    /// Half of the host memory that tensors may take in all.
    fn default() -> Budget {
        Budget::new(memory_limit() / 2)
    }
}
