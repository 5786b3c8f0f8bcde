//! Bytes of which every touch is noted.

use crate::marks::{Marks, Touch};
use std::ops::{DerefMut, Range};

#[derive(Debug)]
pub(crate) struct Watched<B> {
    bytes: B,
    marks: Marks,
}

impl<B: DerefMut<Target = [u8]>> Watched<B> {
    pub(crate) fn new(bytes: B) -> Watched<B> {
        Watched { bytes, marks: Marks::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn range(&self, at: usize, count: usize) -> Result<Range<usize>, String> {
        let end = at.checked_add(count).filter(|&end| end <= self.len());
        end.map(|end| at..end).ok_or_else(|| format!("{count} bytes at {at:#x} are not in {}", self.len()))
    }

    pub(crate) fn read(&mut self, at: usize, count: usize, touch: Touch) -> Result<u64, String> {
        let range = self.range(at, count)?;
        self.marks
            .note(self.bytes.len(), range.clone(), touch, false, false)
            .map_err(|other| raced("reads", at, other))?;
        Ok(value_of(&self.bytes[range]))
    }

    pub(crate) fn write(&mut self, at: usize, count: usize, value: u64, touch: Touch) -> Result<(), String> {
        let (range, new) = (self.range(at, count)?, &value.to_le_bytes()[..count]);
        let is_change = &self.bytes[range.clone()] != new;
        self.marks
            .note(self.bytes.len(), range.clone(), touch, true, is_change)
            .map_err(|other| raced("writes", at, other))?;
        self.bytes[range].copy_from_slice(new);
        Ok(())
    }
}

fn raced(what: &str, at: usize, other: Touch) -> String {
    let Touch { thread, block, .. } = other;
    format!("{what} byte {at:#x}, which thread {thread} of all (in block {block}) uses in no order with it")
}

/// Up to eight bytes, the lowest first.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
