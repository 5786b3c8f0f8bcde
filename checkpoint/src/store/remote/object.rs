//! A reader of objects. Large reads are split into concurrent requests, and a small read fetches and keeps a
//! larger range (a window) for the small reads that follow.

use super::{IN_FLIGHT, PART, Remote};
use crate::error::{Error, Result};
use crate::store::Readable;
use futures::future::try_join_all;
use object_store::ObjectStoreExt;
use std::path::{Path, PathBuf};

/// Size of a window in bytes. Smaller reads fetch a whole window, because a checkpoint's tensors are mostly
/// read in file order.
const WINDOW: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Object {
    remote: Remote,
    path: PathBuf,
    size: u64,
    /// The window of the last small read: its offset and bytes.
    window: (u64, Vec<u8>),
}

impl Object {
    pub(super) fn open(remote: &Remote, path: &Path) -> Result<Object> {
        let meta = remote.call(path, |store, key| async move { store.head(&key).await })?;
        Ok(Object { remote: remote.clone(), path: path.to_owned(), size: meta.size, window: (0, Vec::new()) })
    }

    fn fetch(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for group in out.chunks_mut(PART * IN_FLIGHT) {
            let lengths = group.chunks(PART).map(|part| part.len() as u64);
            let ranges: Vec<_> = lengths
                .map(|length| {
                    at += length;
                    at - length..at
                })
                .collect();
            let parts = self.remote.call(&self.path, |store, key| async move {
                try_join_all(ranges.into_iter().map(|range| store.get_range(&key, range))).await
            })?;
            for (out, part) in group.chunks_mut(PART).zip(parts) {
                if out.len() != part.len() {
                    return Err(self.cut_off());
                }
                out.copy_from_slice(&part);
            }
        }
        Ok(())
    }

    fn cut_off(&self) -> Error {
        Error::corrupt(&self.path, "ends before the bytes to be read")
    }
}

impl Readable for Object {
    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.size);
        let end = end.ok_or_else(|| self.cut_off())?;
        if out.len() >= WINDOW {
            return self.fetch(offset, out);
        }
        let (start, bytes) = &self.window;
        if offset < *start || end > start + bytes.len() as u64 {
            let start = offset - offset % WINDOW as u64;
            let stop = (start + WINDOW as u64).min(self.size).max(end);
            // The allocation is bounded, because the range has at most `2 * WINDOW` bytes.
            let mut bytes = vec![0; (stop - start) as usize];
            self.fetch(start, &mut bytes)?;
            self.window = (start, bytes);
        }
        let (start, bytes) = &self.window;
        let at = (offset - start) as usize;
        out.copy_from_slice(&bytes[at..at + out.len()]);
        Ok(())
    }
}
