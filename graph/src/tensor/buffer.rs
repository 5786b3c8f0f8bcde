//! Aligned memory of tensors: counted against a limit, and kept for reuse when large, because the page faults
//! of fresh memory cost more than the work done on it.

use super::region::{Region, Use, large_memory};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Buffers start on this boundary, bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Buffers from this size on are counted, reused, and mapped by themselves, bytes: the kernel gives pages of
/// zeros as they are touched, whatever the process's allocator does.
pub const LARGE: usize = 1 << 18;

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
    contents: u64,
}

enum Memory {
    Heap(Vec<Line>),
    Large(Block),
    /// To be read only, and not counted: it is somebody else's.
    Borrowed(Box<dyn Region>),
}

/// Memory of one large buffer, from the operating system or from the process's source of large memory.
enum Block {
    Anonymous(MmapMut),
    Region(Box<dyn Region>),
}

impl Block {
    /// Memory of zeros.
    fn new(len: usize, what_for: Use) -> Option<Block> {
        if let Some(region) = large_memory(len, what_for) {
            return Some(Block::Region(region));
        }
        let mapping = MmapMut::map_anon(len).ok()?;
        #[cfg(target_os = "linux")]
        if len >= HUGE && what_for == Use::Writing {
            // A kernel that has no huge pages refuses, and small ones serve.
            let _ = mapping.advise(memmap2::Advice::HugePage);
        }
        Some(Block::Anonymous(mapping))
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Block::Anonymous(mapping) => mapping,
            Block::Region(region) => region.bytes(),
        }
    }

    fn is_writable(&self) -> bool {
        match self {
            Block::Anonymous(_) => true,
            Block::Region(region) => region.is_writable(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Block::Anonymous(mapping) => mapping,
            Block::Region(region) => region.bytes_mut().unwrap_or_default(),
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Heap(Vec::new())
    }
}

impl Buffer {
    /// `len` bytes of zero. Large ones take memory as they are written, unless as much was there for reuse.
    pub fn zeroed(len: usize) -> Result<Buffer> {
        Buffer::new(len, Use::Zeros)
    }

    /// `len` bytes whose contents are whatever was there (initialised, but meaningless): to be overwritten.
    pub fn unspecified(len: usize) -> Result<Buffer> {
        Buffer::new(len, Use::Writing)
    }

    fn new(len: usize, what_for: Use) -> Result<Buffer> {
        if len < LARGE {
            let lines = vec![Line::zeroed(); len.div_ceil(ALIGNMENT)];
            return Ok(Buffer { memory: Memory::Heap(lines), len, contents: fresh() });
        }
        let kept = kept().lock().take(len);
        if let Some(mut block) = kept {
            if what_for == Use::Zeros {
                block.as_mut_slice().fill(0);
            }
            return Ok(Buffer { memory: Memory::Large(block), len, contents: fresh() });
        }
        reserve(len as u64)?;
        let block = Block::new(len, what_for).ok_or_else(|| {
            LIVE.fetch_sub(len as u64, Ordering::Relaxed);
            out_of_memory(len as u128)
        })?;
        Ok(Buffer { memory: Memory::Large(block), len, contents: fresh() })
    }

    /// A buffer over memory that is somebody else's, and is only read.
    pub fn borrowed(region: Box<dyn Region>) -> Buffer {
        let len = region.bytes().len();
        Buffer { memory: Memory::Borrowed(region), len, contents: fresh() }
    }

    /// Where its memory comes from, unless that is the operating system.
    pub fn region(&self) -> Option<&dyn Region> {
        match &self.memory {
            Memory::Large(Block::Region(region)) | Memory::Borrowed(region) => Some(region.as_ref()),
            _ => None,
        }
    }

    /// Whether its memory is its own, and nobody else may be reading it.
    pub fn is_writable(&self) -> bool {
        match &self.memory {
            Memory::Heap(_) => true,
            Memory::Large(block) => block.is_writable(),
            Memory::Borrowed(_) => false,
        }
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
            Memory::Large(block) => block.as_slice(),
            Memory::Borrowed(region) => region.bytes(),
        }
    }

    /// A number that no other buffer has, nor this one before it was written to last.
    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// Nothing, if the memory [is not to be written](Buffer::is_writable).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.contents = fresh();
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Large(block) => block.as_mut_slice(),
            Memory::Borrowed(_) => &mut [],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Large(block) = std::mem::take(&mut self.memory) {
            let freed = kept().lock().put(block);
            drop(freed);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A number that was never given out: each thread takes some at a time.
fn fresh() -> u64 {
    const AT_A_TIME: u64 = 1 << 16;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: Cell<Range<u64>> = const { Cell::new(0..0) };
    }
    let mut own = OWN.take();
    let number = own.next().unwrap_or_else(|| {
        let first = NEXT.fetch_add(AT_A_TIME, Ordering::Relaxed);
        own = first + 1..first + AT_A_TIME;
        first
    });
    OWN.set(own);
    number
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
    let freed = kept().lock().trim(idle);
    drop(freed);
}

/// Bytes of the machine's memory that nobody needs just now; `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    of_machine("MemAvailable:")
}

fn machine_memory() -> Option<u64> {
    of_machine("MemTotal:")
}

fn of_machine(what: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(what))?;
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
            trim_memory(Duration::ZERO);
        } else if LIVE.compare_exchange(live, live + bytes, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Ok(());
        }
    }
}

pub(crate) fn out_of_memory(bytes: u128) -> Error {
    Error::OutOfMemory { bytes, live: LIVE.load(Ordering::Relaxed), limit: memory_limit() }
}

/// Free memory by size, bytes. What is to be given back is returned, to be dropped without the lock: a source of
/// memory may have to tell others.
#[derive(Default)]
struct Kept {
    by_len: BTreeMap<usize, Vec<(Instant, Block)>>,
    bytes: u64,
}

fn kept() -> &'static Mutex<Kept> {
    static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();
    KEPT.get_or_init(Mutex::default)
}

impl Kept {
    /// Memory of exactly `len` bytes: steps repeat, so sizes do.
    fn take(&mut self, len: usize) -> Option<Block> {
        let stack = self.by_len.get_mut(&len)?;
        let (_, block) = stack.pop()?;
        if stack.is_empty() {
            self.by_len.remove(&len);
        }
        self.bytes -= len as u64;
        Some(block)
    }

    #[must_use]
    fn put(&mut self, block: Block) -> Vec<Block> {
        let bytes = block.as_slice().len() as u64;
        let cap = memory_limit() / KEPT_SHARE;
        let mut freed = Vec::new();
        if !block.is_writable() {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
            freed.push(block);
            return freed;
        }
        if self.bytes + bytes > cap {
            freed = self.trim(Duration::from_secs(1));
        }
        if self.bytes + bytes > cap {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
            freed.push(block);
            return freed;
        }
        self.bytes += bytes;
        self.by_len.entry(bytes as usize).or_default().push((Instant::now(), block));
        freed
    }

    #[must_use]
    fn trim(&mut self, idle: Duration) -> Vec<Block> {
        let (mut freed, mut bytes) = (Vec::new(), 0);
        self.by_len.retain(|len, stack| {
            let old = stack.extract_if(.., |(since, _)| since.elapsed() >= idle);
            freed.extend(old.map(|(_, block)| block).inspect(|_| bytes += *len as u64));
            !stack.is_empty()
        });
        self.bytes -= bytes;
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
        freed
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
    fn contents_have_a_number_of_their_own_until_they_are_written() -> Result<()> {
        let (mut a, b) = (Buffer::zeroed(8)?, Buffer::zeroed(LARGE)?);
        let before = a.contents();
        assert_eq!((a.as_slice()[0], a.contents()), (0, before));
        a.as_mut_slice()[0] = 1;
        let others = std::thread::spawn(|| Buffer::zeroed(8).map(|c| c.contents()));
        let other = others.join().map_err(|_| Error::invalid("the thread panicked"))??;
        let mut all = vec![before, a.contents(), b.contents(), other];
        all.extend((0..1 << 17).map(|_| fresh()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 + (1 << 17));
        Ok(())
    }

    #[test]
    fn what_the_machine_cannot_hold_is_an_error() {
        let code = Buffer::zeroed(1 << 50).map_err(|e| e.code()).err();
        assert_eq!(code, Some(crate::Code::ResourceExhausted));
    }
}
