//! A writer of uncompressed tables.

use super::block::BlockBuilder;
use super::{FOOTER, Handle, MAGIC, UNCOMPRESSED};
use crate::checksum::Checksum;
use crate::error::Result;
use crate::proto::put_varint;
use crate::store::Pending;

/// Size in bytes at which a block is full.
const BLOCK_SIZE: usize = 256 << 10;
const RESTART_INTERVAL: usize = 16;

/// A writer of a table; keys must be added in ascending order.
#[derive(Debug)]
pub(crate) struct Builder {
    file: Box<dyn Pending>,
    block: BlockBuilder,
    index: BlockBuilder,
    /// The last finished block. Its index entry is added when the next key is known, so that a short
    /// separator key can be chosen.
    written: Option<Handle>,
    last_key: Vec<u8>,
}

impl Builder {
    pub(crate) fn new(file: Box<dyn Pending>) -> Builder {
        Builder {
            file,
            block: BlockBuilder::new(RESTART_INTERVAL),
            index: BlockBuilder::new(1),
            written: None,
            last_key: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        debug_assert!(self.last_key.as_slice() < key || self.last_key.is_empty());
        if let Some(handle) = self.written.take() {
            self.index.add(&separator(&self.last_key, key), &encoded(handle));
        }
        self.block.add(key, value);
        self.last_key = key.to_owned();
        if self.block.size() >= BLOCK_SIZE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            let block = self.block.finish();
            self.written = Some(self.write(&block)?);
        }
        Ok(())
    }

    /// Writes the remaining blocks and the footer; returns the file uncommitted.
    pub(crate) fn finish(mut self) -> Result<Box<dyn Pending>> {
        self.flush()?;
        let meta_index = self.write(&BlockBuilder::new(RESTART_INTERVAL).finish())?;
        if let Some(handle) = self.written.take() {
            self.index.add(&successor(&self.last_key), &encoded(handle));
        }
        let block = self.index.finish();
        let index = self.write(&block)?;
        self.file.write(&footer(meta_index, index))?;
        Ok(self.file)
    }

    fn write(&mut self, block: &[u8]) -> Result<Handle> {
        let handle = Handle { offset: self.file.written(), size: block.len() as u64 };
        let mut checksum = Checksum::default();
        checksum.add(block);
        checksum.add(&[UNCOMPRESSED]);
        self.file.write(block)?;
        self.file.write(&[UNCOMPRESSED])?;
        self.file.write(&checksum.masked().to_le_bytes())?;
        Ok(handle)
    }
}

/// Encodes the footer of a table.
pub(super) fn footer(meta_index: Handle, index: Handle) -> [u8; FOOTER] {
    let mut footer = [0; FOOTER];
    let handles = [encoded(meta_index), encoded(index)].concat();
    footer[..handles.len()].copy_from_slice(&handles);
    footer[FOOTER - 8..].copy_from_slice(&MAGIC.to_le_bytes());
    footer
}

fn encoded(handle: Handle) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, handle.offset);
    put_varint(&mut out, handle.size);
    out
}

/// Returns a short key `k` with `start <= k < limit`.
fn separator(start: &[u8], limit: &[u8]) -> Vec<u8> {
    let shared = start.iter().zip(limit).take_while(|(a, b)| a == b).count();
    match (start.get(shared), limit.get(shared)) {
        (Some(&a), Some(&b)) if a < 0xff && a + 1 < b => [&start[..shared], &[a + 1]].concat(),
        _ => start.to_owned(),
    }
}

/// Returns a short key that is not less than `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    match key.iter().position(|&b| b != 0xff) {
        Some(i) => [&key[..i], &[key[i] + 1]].concat(),
        None => key.to_owned(),
    }
}
