//! Aligned memory for tensors. Large buffers are counted against a limit and cached for reuse, because the page faults
//! of new memory cost more time than the computation on its elements.

use super::region::{Region, Use, large_memory};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The alignment of buffers in bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// The size in bytes from which a buffer counts as large: it is counted against the memory limit, cached for reuse, and
/// mapped on its own instead of allocated from the process's allocator; the operating system supplies zero pages at the
/// first access.
pub const LARGE: usize = 1 << 18;

/// The size in bytes from which huge pages are requested: huge pages cause fewer page faults, and from this size on
/// waste at most a third of the memory.
const HUGE: usize = 4 << 20;

/// The memory limit divided by this number is the limit on cached memory.
const FREE_LIST_SHARE: u64 = 8;

/// The unit of small allocations; its alignment is the alignment of small buffers.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Bytes aligned to [`ALIGNMENT`].
#[derive(Default)]
pub struct Buffer {
    memory: Memory,
    len: usize,
    contents: u64,
}

/// The storage of a buffer.
enum Memory {
    Heap(Vec<Line>),
    Large(Block),
    /// Read-only memory that another object owns; it is not counted against the memory limit.
    Borrowed(Box<dyn Region>),
}

/// The memory of one large buffer, from the operating system or from the function set by
/// [`set_large_memory`](super::set_large_memory).
enum Block {
    Anonymous(MmapMut),
    Region(Box<dyn Region>),
}

impl Block {
    /// Allocates zeroed memory.
    fn new(len: usize, purpose: Use) -> Option<Block> {
        if let Some(region) = large_memory(len, purpose) {
            return Some(Block::Region(region));
        }
        let mapping = MmapMut::map_anon(len).ok()?;
        #[cfg(target_os = "linux")]
        if len >= HUGE && purpose == Use::Writing {
            // A system without huge pages returns an error, and the mapping has small pages.
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
    /// Allocates `len` zeroed bytes. The pages of a large buffer are allocated when they are first written, unless a
    /// cached block of this size is reused.
    pub fn zeroed(len: usize) -> Result<Buffer> {
        Buffer::new(len, Use::Zeros)
    }

    /// Allocates `len` bytes with arbitrary but initialized contents, for callers that overwrite all bytes.
    pub fn unspecified(len: usize) -> Result<Buffer> {
        Buffer::new(len, Use::Writing)
    }

    fn new(len: usize, purpose: Use) -> Result<Buffer> {
        if len < LARGE {
            let lines = vec![Line::zeroed(); len.div_ceil(ALIGNMENT)];
            return Ok(Buffer { memory: Memory::Heap(lines), len, contents: next_contents_number() });
        }
        let reused = free_list().lock().take(len);
        if let Some(mut block) = reused {
            if purpose == Use::Zeros {
                block.as_mut_slice().fill(0);
            }
            return Ok(Buffer { memory: Memory::Large(block), len, contents: next_contents_number() });
        }
        reserve(len as u64)?;
        let block = Block::new(len, purpose).ok_or_else(|| {
            LIVE.fetch_sub(len as u64, Ordering::Relaxed);
            out_of_memory(len as u128)
        })?;
        Ok(Buffer { memory: Memory::Large(block), len, contents: next_contents_number() })
    }

    /// Returns a read-only buffer over memory that `region` owns.
    pub fn borrowed(region: Box<dyn Region>) -> Buffer {
        let len = region.bytes().len();
        Buffer { memory: Memory::Borrowed(region), len, contents: next_contents_number() }
    }

    /// Returns a read-only buffer over a range of another buffer's bytes, without copying them.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not within the buffer or does not begin at a multiple of [`ALIGNMENT`].
    pub fn view(of: &Arc<Buffer>, range: Range<usize>) -> Result<Buffer> {
        if range.start > range.end || range.end > of.len() || !range.start.is_multiple_of(ALIGNMENT) {
            crate::invalid!("bytes {range:?} are no view of a buffer of {} bytes", of.len());
        }
        Ok(Buffer::borrowed(Box::new(View { of: of.clone(), range })))
    }

    /// Returns the region that holds the memory; `None` if the memory is from the allocator or the operating system.
    pub fn region(&self) -> Option<&dyn Region> {
        match &self.memory {
            Memory::Large(Block::Region(region)) | Memory::Borrowed(region) => Some(region.as_ref()),
            _ => None,
        }
    }

    /// Returns whether the buffer owns its memory and nothing else reads that memory.
    pub fn is_writable(&self) -> bool {
        match &self.memory {
            Memory::Heap(_) => true,
            Memory::Large(block) => block.is_writable(),
            Memory::Borrowed(_) => false,
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Large(block) => block.as_slice(),
            Memory::Borrowed(region) => region.bytes(),
        }
    }

    /// Returns a number that changes with each write access and is never equal to the number of another buffer.
    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// Returns the bytes for writing; empty if the memory is [not writable](Buffer::is_writable).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.contents = next_contents_number();
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
            let freed = free_list().lock().put(block);
            drop(freed);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A range of another buffer's bytes.
struct View {
    of: Arc<Buffer>,
    range: Range<usize>,
}

impl Region for View {
    fn bytes(&self) -> &[u8] {
        &self.of.as_slice()[self.range.clone()]
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn block(&self) -> Option<(&dyn Region, usize)> {
        let region = self.of.region()?;
        let (block, start) = region.block().unwrap_or((region, 0));
        Some((block, start + self.range.start))
    }
}

/// Returns a number that has never been returned before. Each thread reserves a range of numbers at a time, so that
/// threads do not contend for the counter.
fn next_contents_number() -> u64 {
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

/// The total size in bytes of all allocated large buffers, including cached ones.
static LIVE: AtomicU64 = AtomicU64::new(0);
/// The limit on `LIVE` in bytes; 0 if no limit is set.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Sets the limit in bytes for all large tensors together; an allocation beyond the limit fails. The default limit is
/// nine tenths of the machine's memory.
pub fn set_memory_limit(bytes: u64) {
    LIMIT.store(bytes.max(1), Ordering::Relaxed);
}

/// Returns the limit in bytes for all large tensors together.
pub fn memory_limit() -> u64 {
    static MACHINE: OnceLock<u64> = OnceLock::new();
    match LIMIT.load(Ordering::Relaxed) {
        0 => *MACHINE.get_or_init(|| machine_memory().unwrap_or(u64::MAX) / 10 * 9),
        limit => limit,
    }
}

/// Frees cached memory that has not been reused within `idle`.
pub fn trim_memory(idle: Duration) {
    let freed = free_list().lock().trim(idle);
    drop(freed);
}

/// Returns the bytes of machine memory that are available for new allocations; `None` if the system does not report
/// them.
pub fn available_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn machine_memory() -> Option<u64> {
    meminfo("MemTotal:")
}

/// Returns an entry of `/proc/meminfo` in bytes.
fn meminfo(entry: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(entry))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Adds `bytes` to `LIVE`, if the limit allows it; frees all cached memory first if necessary.
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

/// Returns the error of an allocation that does not fit the limit.
pub(crate) fn out_of_memory(bytes: u128) -> Error {
    Error::OutOfMemory { bytes, live: LIVE.load(Ordering::Relaxed), limit: memory_limit() }
}

/// The cache of free large blocks, by size in bytes. Methods return blocks to be freed, and the caller drops them
/// without holding the lock, because freeing a block may need communication.
#[derive(Default)]
struct FreeList {
    by_len: BTreeMap<usize, Vec<(Instant, Block)>>,
    bytes: u64,
}

fn free_list() -> &'static Mutex<FreeList> {
    static FREE_LIST: OnceLock<Mutex<FreeList>> = OnceLock::new();
    FREE_LIST.get_or_init(Mutex::default)
}

impl FreeList {
    /// Takes a cached block of exactly `len` bytes. Steps repeat, so buffers of the same sizes are allocated again and
    /// again.
    fn take(&mut self, len: usize) -> Option<Block> {
        let stack = self.by_len.get_mut(&len)?;
        let (_, block) = stack.pop()?;
        if stack.is_empty() {
            self.by_len.remove(&len);
        }
        self.bytes -= len as u64;
        Some(block)
    }

    /// Caches a block. Returns the blocks that the caller must free: idle ones, or the block itself if the cache is
    /// full.
    #[must_use]
    fn put(&mut self, block: Block) -> Vec<Block> {
        let bytes = block.as_slice().len() as u64;
        let cap = memory_limit() / FREE_LIST_SHARE;
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

    /// Removes the blocks that have been idle for `idle`, and returns them.
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
    fn contents_numbers_are_unique_and_change_on_writes() -> Result<()> {
        let (mut a, b) = (Buffer::zeroed(8)?, Buffer::zeroed(LARGE)?);
        let before = a.contents();
        assert_eq!((a.as_slice()[0], a.contents()), (0, before));
        a.as_mut_slice()[0] = 1;
        let others = std::thread::spawn(|| Buffer::zeroed(8).map(|c| c.contents()));
        let other = others.join().map_err(|_| Error::invalid("the thread panicked"))??;
        let mut all = vec![before, a.contents(), b.contents(), other];
        all.extend((0..1 << 17).map(|_| next_contents_number()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 + (1 << 17));
        Ok(())
    }

    #[test]
    fn an_allocation_beyond_the_limit_is_an_error() {
        let code = Buffer::zeroed(1 << 50).map_err(|e| e.code()).err();
        assert_eq!(code, Some(crate::Code::ResourceExhausted));
    }
}
