//! Aligned memory of tensors: counted against a limit, and kept for reuse when large, because the page faults
//! of fresh memory cost more than the work done on it.

use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Buffers start on this boundary, bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Buffers from this size on are counted, reused, and mapped by themselves, bytes: the kernel gives pages of
/// zeros as they are touched, whatever the process's allocator does.
const LARGE: usize = 1 << 18;

/// From this size on, huge pages are asked for: fewer faults, and at most one page in three of no use, bytes.
const HUGE: usize = 4 << 20;

/// At most this share of the limit is kept for reuse.
const KEPT_SHARE: u64 = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Bytes, aligned to [`ALIGNMENT`].
#[derive(Default)]
pub struct Buffer {
    memory: Memory,
    len: usize,
}

enum Memory {
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Heap(Vec::new())
    }
}

impl Buffer {
    /// `len` bytes of zero.
    pub fn zeroed(len: usize) -> Result<Buffer> {
        Buffer::new(len, true)
    }

    /// `len` bytes whose contents are whatever was there (initialised, but meaningless): to be overwritten.
    pub fn unspecified(len: usize) -> Result<Buffer> {
        Buffer::new(len, false)
    }

    fn new(len: usize, zeroed: bool) -> Result<Buffer> {
        if len < LARGE {
            let lines = vec![Line::zeroed(); len.div_ceil(ALIGNMENT)];
            return Ok(Buffer { memory: Memory::Heap(lines), len });
        }
        let kept = kept().lock().take(len);
        if let Some(mut mapping) = kept {
            if zeroed {
                mapping.fill(0);
            }
            return Ok(Buffer { memory: Memory::Mapped(mapping), len });
        }
        reserve(len as u64)?;
        let mapping = MmapMut::map_anon(len).map_err(|_| {
            LIVE.fetch_sub(len as u64, Ordering::Relaxed);
            out_of_memory(len as u128)
        })?;
        #[cfg(target_os = "linux")]
        if len >= HUGE {
            // A kernel that has no huge pages refuses, and small ones serve.
            let _ = mapping.advise(memmap2::Advice::HugePage);
        }
        Ok(Buffer { memory: Memory::Mapped(mapping), len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Mapped(mapping) => mapping,
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Mapped(mapping) => mapping,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Mapped(mapping) = std::mem::take(&mut self.memory) {
            kept().lock().put(mapping);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Bytes of large buffers that exist, those kept for reuse included.
static LIVE: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// The number of bytes that large tensors may take in all; beyond it, allocation is an error.
/// Unless set, nine tenths of the machine's memory.
pub fn set_memory_limit(bytes: u64) {
    LIMIT.store(bytes.max(1), Ordering::Relaxed);
}

pub fn memory_limit() -> u64 {
    static MACHINE: OnceLock<u64> = OnceLock::new();
    match LIMIT.load(Ordering::Relaxed) {
        0 => *MACHINE.get_or_init(|| machine_memory().unwrap_or(u64::MAX) / 10 * 9),
        limit => limit,
    }
}

/// Frees what is kept for reuse and was not wanted within `idle`.
pub fn trim_memory(idle: Duration) {
    kept().lock().trim(idle);
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn reserve(bytes: u64) -> Result<()> {
    let limit = memory_limit();
    let mut retried = false;
    loop {
        let live = LIVE.load(Ordering::Relaxed);
        if live.saturating_add(bytes) > limit {
            if retried {
                return Err(out_of_memory(bytes as u128));
            }
            retried = true;
            kept().lock().trim(Duration::ZERO);
        } else if LIVE.compare_exchange(live, live + bytes, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Ok(());
        }
    }
}

pub(crate) fn out_of_memory(bytes: u128) -> Error {
    Error::OutOfMemory { bytes, live: LIVE.load(Ordering::Relaxed), limit: memory_limit() }
}

/// Free mappings by size, bytes.
#[derive(Default)]
struct Kept {
    by_len: BTreeMap<usize, Vec<(Instant, MmapMut)>>,
    bytes: u64,
}

fn kept() -> &'static Mutex<Kept> {
    static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();
    KEPT.get_or_init(Mutex::default)
}

impl Kept {
    /// A mapping of exactly `len` bytes: steps repeat, so sizes do.
    fn take(&mut self, len: usize) -> Option<MmapMut> {
        let stack = self.by_len.get_mut(&len)?;
        let (_, mapping) = stack.pop()?;
        if stack.is_empty() {
            self.by_len.remove(&len);
        }
        self.bytes -= len as u64;
        Some(mapping)
    }

    fn put(&mut self, mapping: MmapMut) {
        let bytes = mapping.len() as u64;
        let cap = memory_limit() / KEPT_SHARE;
        if self.bytes + bytes > cap {
            self.trim(Duration::from_secs(1));
        }
        if self.bytes + bytes > cap {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        self.bytes += bytes;
        self.by_len.entry(mapping.len()).or_default().push((Instant::now(), mapping));
    }

    fn trim(&mut self, idle: Duration) {
        let mut freed = 0u64;
        self.by_len.retain(|_, stack| {
            stack.retain(|(since, mapping)| {
                let keep = since.elapsed() < idle;
                if !keep {
                    freed += mapping.len() as u64;
                }
                keep
            });
            !stack.is_empty()
        });
        self.bytes -= freed;
        LIVE.fetch_sub(freed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zeroed() -> Result<()> {
        for len in [0, 1, 63, 64, 65, LARGE, LARGE + 1] {
            let b = Buffer::zeroed(len)?;
            assert_eq!(b.as_slice().len(), len);
            assert_eq!(b.as_slice().as_ptr() as usize % ALIGNMENT, 0);
            assert!(b.as_slice().iter().all(|&x| x == 0));
        }
        Ok(())
    }

    #[test]
    fn what_the_machine_cannot_hold_is_an_error() {
        let code = Buffer::zeroed(1 << 50).map_err(|e| e.code()).err();
        assert_eq!(code, Some(crate::Code::ResourceExhausted));
    }
}
