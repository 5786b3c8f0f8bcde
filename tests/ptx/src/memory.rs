//! The memory that a launch may use: no byte of it is anywhere else.

use crate::marks::{Marks, Touch};

/// Parts of a GPU's memory, by where they begin.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    parts: Vec<Part<'a>>,
    /// The part that was used last: it is often the next, too.
    last: usize,
}

#[derive(Debug)]
struct Part<'a> {
    start: u64,
    bytes: &'a mut [u8],
    marks: Marks,
}

impl<'a> Memory<'a> {
    pub fn new(parts: impl IntoIterator<Item = (u64, &'a mut [u8])>) -> Memory<'a> {
        let part = |(start, bytes)| Part { start, bytes, marks: Marks::default() };
        let mut parts: Vec<Part<'a>> = parts.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.start);
        Memory { parts, last: 0 }
    }

    fn find(&mut self, address: u64, bytes: usize) -> Result<(&mut Part<'a>, usize), String> {
        let is_there = |part: &Part<'_>| {
            address >= part.start && address + bytes as u64 <= part.start + part.bytes.len() as u64
        };
        if !self.parts.get(self.last).is_some_and(is_there) {
            let after = self.parts.partition_point(|part| part.start <= address);
            self.last = after.wrapping_sub(1);
        }
        match self.parts.get_mut(self.last) {
            Some(part) if is_there(part) => {
                let at = (address - part.start) as usize;
                Ok((part, at))
            }
            Some(part) => Err(format!(
                "{bytes} bytes at {address:#x} are not in memory: {:#x} of {} bytes is before",
                part.start,
                part.bytes.len()
            )),
            None => Err(format!("{bytes} bytes at {address:#x} are not in memory")),
        }
    }

    pub(crate) fn read(&mut self, address: u64, bytes: usize, touch: Touch) -> Result<u64, String> {
        let (part, at) = self.find(address, bytes)?;
        let all = part.bytes.len();
        part.marks
            .note(all, at..at + bytes, touch, false, false)
            .map_err(|other| raced("reads", address, other))?;
        Ok(value_of(&part.bytes[at..at + bytes]))
    }

    pub(crate) fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        touch: Touch,
    ) -> Result<(), String> {
        let (part, at) = self.find(address, bytes)?;
        let (all, new) = (part.bytes.len(), &value.to_le_bytes()[..bytes]);
        let place = &mut part.bytes[at..at + bytes];
        let is_change = place != new;
        part.marks
            .note(all, at..at + bytes, touch, true, is_change)
            .map_err(|other| raced("writes", address, other))?;
        place.copy_from_slice(new);
        Ok(())
    }
}

pub(crate) fn raced(what: &str, address: u64, other: Touch) -> String {
    let Touch { thread, block, .. } = other;
    format!("{what} {address:#x}, which thread {thread} of all (in block {block}) uses in no order with it")
}

/// Up to eight bytes, the lowest first.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
