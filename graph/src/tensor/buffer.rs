//! Aligned memory of tensors: counted against a limit, and kept for reuse when large, because the page faults
//! of fresh memory cost more than the work done on it.

use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Buffers start on this boundary, bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Buffers from this size on are counted and reused, bytes.
const LARGE: usize = 1 << 18;

/// At most this share of the limit is kept for reuse.
const KEPT_SHARE: u64 = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Bytes, aligned to [`ALIGNMENT`].
#[derive(Default)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// `len` bytes of zero.
    pub fn zeroed(len: usize) -> Result<Buffer> {
        let mut buffer = Buffer::unspecified(len)?;
        buffer.as_mut_slice().fill(0);
        Ok(buffer)
    }

    /// `len` bytes whose contents are whatever was there (initialised, but meaningless): to be overwritten.
    pub fn unspecified(len: usize) -> Result<Buffer> {
        let count = len.div_ceil(ALIGNMENT);
        if len < LARGE {
            return Ok(Buffer { lines: vec![Line::zeroed(); count], len });
        }
        if let Some(lines) = kept().lock().take(count) {
            return Ok(Buffer { lines, len });
        }
        reserve((count * ALIGNMENT) as u64)?;
        let mut lines = Vec::new();
        if lines.try_reserve_exact(count).is_err() {
            LIVE.fetch_sub((count * ALIGNMENT) as u64, Ordering::Relaxed);
            return Err(out_of_memory(len as u128));
        }
        lines.resize(count, Line::zeroed());
        Ok(Buffer { lines, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len >= LARGE {
            kept().lock().put(std::mem::take(&mut self.lines));
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

/// Free buffers by size, in lines.
#[derive(Default)]
struct Kept {
    by_lines: BTreeMap<usize, Vec<(Instant, Vec<Line>)>>,
    bytes: u64,
}

fn kept() -> &'static Mutex<Kept> {
    static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();
    KEPT.get_or_init(Mutex::default)
}

impl Kept {
    /// A buffer of exactly `count` lines: steps repeat, so sizes do.
    fn take(&mut self, count: usize) -> Option<Vec<Line>> {
        let stack = self.by_lines.get_mut(&count)?;
        let (_, lines) = stack.pop()?;
        if stack.is_empty() {
            self.by_lines.remove(&count);
        }
        self.bytes -= (count * ALIGNMENT) as u64;
        Some(lines)
    }

    fn put(&mut self, lines: Vec<Line>) {
        let bytes = (lines.len() * ALIGNMENT) as u64;
        let cap = memory_limit() / KEPT_SHARE;
        if self.bytes + bytes > cap {
            self.trim(Duration::from_secs(1));
        }
        if self.bytes + bytes > cap {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        self.bytes += bytes;
        self.by_lines.entry(lines.len()).or_default().push((Instant::now(), lines));
    }

    fn trim(&mut self, idle: Duration) {
        let mut freed = 0u64;
        self.by_lines.retain(|_, stack| {
            stack.retain(|(since, lines)| {
                let keep = since.elapsed() < idle;
                if !keep {
                    freed += (lines.len() * ALIGNMENT) as u64;
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
