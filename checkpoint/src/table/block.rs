//! Blocks of a table: entries whose keys are stored without the prefix shared with the previous key, except at restart
//! points.

use crate::proto::{put_varint, take_varint};

/// A builder of one block.
#[derive(Debug)]
pub(super) struct BlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    /// Number of entries from one restart point to the next.
    interval: usize,
    since_restart: usize,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    pub(super) fn new(interval: usize) -> BlockBuilder {
        BlockBuilder {
            bytes: Vec::new(),
            restarts: vec![0],
            interval,
            since_restart: 0,
            last_key: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the size that the block would have if it were finished at this point.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + 4 * self.restarts.len() + 4
    }

    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut shared = 0;
        if self.since_restart < self.interval {
            shared = key.iter().zip(&self.last_key).take_while(|(a, b)| a == b).count();
        } else {
            self.restarts.push(self.bytes.len() as u32);
            self.since_restart = 0;
        }
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(value);
        self.last_key = key.to_owned();
        self.since_restart += 1;
    }

    /// Returns the block and empties the builder.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let done = std::mem::replace(self, BlockBuilder::new(self.interval));
        let mut bytes = done.bytes;
        for restart in &done.restarts {
            bytes.extend_from_slice(&restart.to_le_bytes());
        }
        bytes.extend_from_slice(&(done.restarts.len() as u32).to_le_bytes());
        bytes
    }
}

/// A reader of the entries of a block, in the order of their keys. No entry may be read after an error.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    rest: &'a [u8],
    key: Vec<u8>,
}

/// A key, which is valid until the next entry is read, and its value.
pub(super) type Entry<'k, 'a> = (&'k [u8], &'a [u8]);

/// The error for bytes that are not a valid block.
#[derive(Debug)]
pub(super) struct MalformedBlock;

impl<'a> Entries<'a> {
    pub(super) fn of(block: &'a [u8]) -> Result<Entries<'a>, MalformedBlock> {
        let (rest, count) = block.split_last_chunk::<4>().ok_or(MalformedBlock)?;
        let restarts = (u32::from_le_bytes(*count) as usize).checked_mul(4).ok_or(MalformedBlock)?;
        let entries = rest.len().checked_sub(restarts).ok_or(MalformedBlock)?;
        Ok(Entries { rest: &rest[..entries], key: Vec::new() })
    }

    /// Returns the next key and value, or `None` at the end of the block.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'_, 'a>>, MalformedBlock> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut size =
            || take_varint(&mut self.rest).and_then(|n| usize::try_from(n).ok()).ok_or(MalformedBlock);
        let (shared, unshared, value) = (size()?, size()?, size()?);
        let (delta, rest) = self.rest.split_at_checked(unshared).ok_or(MalformedBlock)?;
        let (value, rest) = rest.split_at_checked(value).ok_or(MalformedBlock)?;
        if shared > self.key.len() {
            return Err(MalformedBlock);
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(delta);
        self.rest = rest;
        Ok(Some((&self.key, value)))
    }
}
