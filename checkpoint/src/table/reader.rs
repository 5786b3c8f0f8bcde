//! A reader of tables that reads block by block.

use super::block::{Entries, MalformedBlock};
use super::{FOOTER, Handle, MAGIC, SNAPPY, TRAILER, UNCOMPRESSED};
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::proto::take_varint;
use crate::store::{self, Readable};
use std::path::{Path, PathBuf};

/// A table file and the locations of its blocks.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    file: Box<dyn Readable>,
    size: u64,
    /// For each block, a key not less than all of its keys, and its location.
    blocks: Vec<(Vec<u8>, Handle)>,
}

/// Maximum plausible ratio of Snappy decompression: the longest copy takes three bytes for 64. A block that
/// claims a larger ratio is corrupt.
const SNAPPY_RATIO: usize = 32;

impl Table {
    /// Opens a table and reads its index.
    ///
    /// # Errors
    /// `DataLoss` for a file that is not a complete table.
    pub(crate) fn open(path: impl AsRef<Path>) -> Result<Table> {
        let path = path.as_ref().to_owned();
        let file = store::store_of(&path)?.open(&path)?;
        let size = file.size()?;
        let mut table = Table { path, file, size, blocks: Vec::new() };
        let Some(footer_at) = size.checked_sub(FOOTER as u64) else {
            return Err(table.corrupt("file is too short to be an sstable"));
        };
        let mut footer = [0; FOOTER];
        table.file.read_at(footer_at, &mut footer)?;
        let (handles, magic) = footer.split_at(FOOTER - 8);
        if magic != MAGIC.to_le_bytes() {
            return Err(table.corrupt(
                "not an sstable (bad magic number): perhaps your file is in a different file format and you need \
                 to use a different restore operator?",
            ));
        }
        let mut rest = handles;
        let found = take_handle(&mut rest).zip(take_handle(&mut rest));
        let (meta_index, index) = found.ok_or_else(|| table.corrupt("bad block handle"))?;
        // The footer has no checksum, so it is compared to the footer that a builder would write.
        if super::builder::footer(meta_index, index) != footer {
            return Err(table.corrupt("bad footer"));
        }
        // The meta index is not used, but reading it detects damage there.
        table.block(meta_index)?;
        let block = table.block(index)?;
        let mut blocks = Vec::new();
        table.each(&block, |key, mut value| {
            let handle = take_handle(&mut value).ok_or(MalformedBlock)?;
            blocks.push((key.to_owned(), handle));
            Ok(())
        })?;
        table.blocks = blocks;
        Ok(table)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::corrupt(&self.path, what)
    }

    /// Calls `visit` with every key and value, in key order.
    pub(crate) fn for_each(&mut self, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut last: Option<Vec<u8>> = None;
        for i in 0..self.blocks.len() {
            let block = self.block(self.blocks[i].1)?;
            let mut failed = Ok(());
            self.each(&block, |key, value| {
                if last.as_deref().is_some_and(|last| last >= key) {
                    return Err(MalformedBlock);
                }
                last = Some(key.to_owned());
                failed = visit(key, value);
                if failed.is_err() { Err(MalformedBlock) } else { Ok(()) }
            })
            .or_else(|bad| failed.and(Err(bad)))?;
        }
        Ok(())
    }

    /// Returns the value of a key.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let at = self.blocks.partition_point(|(last, _)| last.as_slice() < key);
        let Some(&(_, handle)) = self.blocks.get(at) else { return Ok(None) };
        let block = self.block(handle)?;
        let mut found = None;
        self.each(&block, |k, value| {
            if k == key {
                found = Some(value.to_owned());
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn each(
        &self,
        block: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), MalformedBlock>,
    ) -> Result<()> {
        let mut walk = || {
            let mut entries = Entries::of(block)?;
            while let Some((key, value)) = entries.next()? {
                visit(key, value)?;
            }
            Ok(())
        };
        walk().map_err(|_: MalformedBlock| self.corrupt("bad entry in block"))
    }

    /// Reads a block, verifies its checksum and decompresses it.
    fn block(&mut self, handle: Handle) -> Result<Vec<u8>> {
        let stored = handle.size.checked_add(TRAILER as u64);
        let end = stored.and_then(|size| handle.offset.checked_add(size));
        let (Some(stored), Some(true)) = (stored, end.map(|end| end <= self.size)) else {
            return Err(self.corrupt("truncated block read"));
        };
        let mut bytes = Vec::new();
        let stored = usize::try_from(stored).map_err(|_| self.corrupt("block is too large"))?;
        bytes.try_reserve_exact(stored).map_err(|_| self.corrupt("block is too large for memory"))?;
        bytes.resize(stored, 0);
        self.file.read_at(handle.offset, &mut bytes)?;
        let (content, trailer) = bytes.split_at(stored - TRAILER);
        let (&compression, checksum) = trailer.split_first().ok_or_else(|| self.corrupt("no trailer"))?;
        let mut actual = Checksum::default();
        actual.add(content);
        actual.add(&[compression]);
        if actual.masked().to_le_bytes() != checksum {
            return Err(self.corrupt("block checksum mismatch"));
        }
        match compression {
            UNCOMPRESSED => {
                bytes.truncate(stored - TRAILER);
                Ok(bytes)
            }
            SNAPPY => {
                let len = snap::raw::decompress_len(content).unwrap_or(usize::MAX);
                if len > content.len().saturating_mul(SNAPPY_RATIO) {
                    return Err(self.corrupt("corrupted compressed block contents"));
                }
                let unpacked = snap::raw::Decoder::new().decompress_vec(content);
                unpacked.map_err(|_| self.corrupt("corrupted compressed block contents"))
            }
            _ => Err(self.corrupt("bad block type")),
        }
    }
}

fn take_handle(bytes: &mut &[u8]) -> Option<Handle> {
    Some(Handle { offset: take_varint(bytes)?, size: take_varint(bytes)? })
}

#[cfg(test)]
mod tests {
    use super::super::Builder;
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn entries_of_several_blocks_are_read_back() -> Result<()> {
        let dir = TempDir::new()?;
        let path = dir.path().join("table");
        let entries: Vec<(Vec<u8>, Vec<u8>)> =
            (0..3000u32).map(|i| (format!("key{i:06}").into_bytes(), vec![i as u8; 500])).collect();
        let mut builder = Builder::new(store::store_of(&path)?.create(&path)?);
        for (key, value) in &entries {
            builder.add(key, value)?;
        }
        builder.finish()?.commit()?;
        let mut table = Table::open(&path)?;
        assert!(table.blocks.len() > 4);
        let mut all = Vec::new();
        table.for_each(|key, value| {
            all.push((key.to_owned(), value.to_owned()));
            Ok(())
        })?;
        assert_eq!(all, entries);
        for (key, value) in entries.iter().step_by(97) {
            assert_eq!(table.get(key)?.as_ref(), Some(value));
        }
        assert_eq!(table.get(b"key")?, None);
        assert_eq!(table.get(b"z")?, None);
        Ok(())
    }

    #[test]
    fn snappy_blocks_are_read() -> Result<()> {
        let dir = TempDir::new()?;
        let path = dir.path().join("table");
        let mut builder = Builder::new(store::store_of(&path)?.create(&path)?);
        builder.add(b"key", &[7; 1000])?;
        builder.finish()?.commit()?;
        let plain = std::fs::read(&path).map_err(|e| Error::file(&path, &e))?;
        let block = &plain[..plain.len() - FOOTER];
        let len = 1 + 1 + 2 + 3 + 1000 + 8;
        let content = &block[..len];
        let packed =
            snap::raw::Encoder::new().compress_vec(content).map_err(|e| Error::invalid(e.to_string()))?;
        let mut bytes = Vec::new();
        let mut put = |content: &[u8], kind: u8| {
            let at = bytes.len() as u64;
            let mut checksum = Checksum::default();
            checksum.add(content);
            checksum.add(&[kind]);
            bytes.extend_from_slice(content);
            bytes.push(kind);
            bytes.extend_from_slice(&checksum.masked().to_le_bytes());
            Handle { offset: at, size: content.len() as u64 }
        };
        let data = put(&packed, SNAPPY);
        let empty = put(&[0, 0, 0, 0, 1, 0, 0, 0], UNCOMPRESSED);
        let mut index = super::super::block::BlockBuilder::new(1);
        let encoded = |h: Handle| {
            let mut out = Vec::new();
            crate::proto::put_varint(&mut out, h.offset);
            crate::proto::put_varint(&mut out, h.size);
            out
        };
        index.add(b"l", &encoded(data));
        let index = put(&index.finish(), UNCOMPRESSED);
        let mut footer = [encoded(empty), encoded(index)].concat();
        footer.resize(FOOTER - 8, 0);
        bytes.extend(footer);
        bytes.extend(MAGIC.to_le_bytes());
        std::fs::write(&path, &bytes).map_err(|e| Error::file(&path, &e))?;
        assert_eq!(Table::open(&path)?.get(b"key")?, Some(vec![7; 1000]));
        Ok(())
    }
}
