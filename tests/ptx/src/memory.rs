//! The memory of a launch; accesses outside its allocations are errors.

use crate::marks::Access;
use crate::watched::CheckedBytes;

/// The allocations of a GPU's memory, by start address.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    parts: Vec<Part<'a>>,
    /// The index of the allocation of the last access, which is tried first for the next access.
    last: usize,
}

/// One allocation of a GPU's memory.
#[derive(Debug)]
struct Part<'a> {
    start: u64,
    bytes: CheckedBytes<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    /// Returns a memory with the allocations `parts`, each given by its start address and its bytes.
    pub fn new(parts: impl IntoIterator<Item = (u64, &'a mut [u8])>) -> Memory<'a> {
        let part = |(start, bytes)| Part { start, bytes: CheckedBytes::new(bytes) };
        let mut parts: Vec<Part<'a>> = parts.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.start);
        Memory { parts, last: 0 }
    }

    /// Finds the allocation that contains the accessed bytes, and their offset in it.
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

    /// Reads a value of up to eight bytes at `address`.
    pub(crate) fn read(&mut self, address: u64, bytes: usize, access: Access) -> Result<u64, String> {
        let (part, at) = self.find(address, bytes)?;
        part.bytes.read(at, bytes, access).map_err(|what| format!("of {:#x}: {what}", part.start))
    }

    /// Writes a value of up to eight bytes at `address`.
    pub(crate) fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        access: Access,
    ) -> Result<(), String> {
        let (part, at) = self.find(address, bytes)?;
        part.bytes.write(at, bytes, value, access).map_err(|what| format!("of {:#x}: {what}", part.start))
    }
}
