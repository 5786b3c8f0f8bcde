//! The memory that a launch may use: no byte of it is anywhere else.

use crate::marks::Touch;
use crate::watched::Watched;

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
    bytes: Watched<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    pub fn new(parts: impl IntoIterator<Item = (u64, &'a mut [u8])>) -> Memory<'a> {
        let part = |(start, bytes)| Part { start, bytes: Watched::new(bytes) };
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
        part.bytes.read(at, bytes, touch).map_err(|what| format!("of {:#x}: {what}", part.start))
    }

    pub(crate) fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        touch: Touch,
    ) -> Result<(), String> {
        let (part, at) = self.find(address, bytes)?;
        part.bytes.write(at, bytes, value, touch).map_err(|what| format!("of {:#x}: {what}", part.start))
    }
}
