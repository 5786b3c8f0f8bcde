//! Bytes whose accesses are checked for races.

use crate::marks::{Access, Marks};
use std::ops::{DerefMut, Range};

/// A memory that records the accesses to each of its bytes.
#[derive(Debug)]
pub(crate) struct CheckedBytes<B> {
    bytes: B,
    marks: Marks,
}

impl<B: DerefMut<Target = [u8]>> CheckedBytes<B> {
    pub(crate) fn new(bytes: B) -> CheckedBytes<B> {
        CheckedBytes { bytes, marks: Marks::default() }
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn range(&self, at: usize, count: usize) -> Result<Range<usize>, String> {
        let end = at.checked_add(count).filter(|&end| end <= self.len());
        end.map(|end| at..end).ok_or_else(|| format!("{count} bytes at {at:#x} are not in {}", self.len()))
    }

    /// Reads a value of up to eight bytes at offset `at`.
    pub(crate) fn read(&mut self, at: usize, count: usize, access: Access) -> Result<u64, String> {
        let range = self.range(at, count)?;
        self.marks
            .note(self.bytes.len(), range.clone(), access, false, false)
            .map_err(|other| raced("reads", at, other))?;
        Ok(value_of(&self.bytes[range]))
    }

    /// Writes a value of up to eight bytes at offset `at`.
    pub(crate) fn write(
        &mut self,
        at: usize,
        count: usize,
        value: u64,
        access: Access,
    ) -> Result<(), String> {
        let (range, new) = (self.range(at, count)?, &value.to_le_bytes()[..count]);
        let is_change = &self.bytes[range.clone()] != new;
        self.marks
            .note(self.bytes.len(), range.clone(), access, true, is_change)
            .map_err(|other| raced("writes", at, other))?;
        self.bytes[range].copy_from_slice(new);
        Ok(())
    }
}

/// Returns a description of a race between an access to the byte `at` and the earlier access `other`.
fn raced(what: &str, at: usize, other: Access) -> String {
    let Access { thread, block, .. } = other;
    format!("{what} byte {at:#x}, which thread {thread} of all (in block {block}) uses in no order with it")
}

/// Returns the little-endian value of up to eight bytes.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
