//! Tensor memory that other processes of this machine can map.
//!
//! Each block is a sealed memory file: a process that receives its descriptor can map it for reading, and only its
//! creator can write or shorten it. The system frees it when the last process that has mapped it ends, even by a crash.
//! A block of zeros is ordinary memory at first, which takes no space before it is written, and is converted to a file
//! in place when another process is to read it.

use crate::shared_block::{MemoryKind, SharedBlock, Sharing};
use graph::tensor::{Region, Use, set_large_memory};
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The share of the process's file descriptors that blocks may use, as a divisor; each block uses one descriptor.
const DESCRIPTOR_SHARE: u64 = 2;
/// The number of file descriptors assumed if the process has no limit.
const DEFAULT_DESCRIPTORS: u64 = 1 << 20;

/// The minimum size in bytes of a block for which huge pages are requested.
const MIN_HUGE_PAGES_LEN: usize = 4 << 20;
/// The smallest page size of the system in bytes.
const PAGE: usize = 4096;
/// The number of bytes that [`convert_to_file`] moves into a file at once: a multiple of every page size.
const PIECE_LEN: usize = 16 << 20;

static NUM_BLOCKS: AtomicUsize = AtomicUsize::new(0);
static MAX_BLOCKS: OnceLock<usize> = OnceLock::new();

/// Makes all large buffers that are allocated from now on shareable, as far as file descriptors allow.
pub fn install() {
    MAX_BLOCKS.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        // If the limit cannot be raised, fewer blocks are shared.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        (getrlimit(Resource::Nofile).current.unwrap_or(DEFAULT_DESCRIPTORS) / DESCRIPTOR_SHARE) as usize
    });
    set_large_memory(|len, what_for| {
        let memory = match what_for {
            Use::Writing => SharedMemory::new(len),
            Use::Zeros => SharedMemory::zeros(len),
        };
        memory.ok().map(|memory| Box::new(memory) as Box<dyn Region>)
    });
}

/// Returns whether large buffers of this process are shareable.
pub fn is_installed() -> bool {
    MAX_BLOCKS.get().is_some()
}

/// A shared block that this process has allocated.
pub struct SharedMemory {
    sharing: Sharing,
    /// The memory file and its share of the descriptor limit; `None` for a block of zeros that no other process reads.
    file: Mutex<Option<(File, DescriptorQuota)>>,
    mapping: MmapMut,
}

impl SharedMemory {
    /// Allocates a block of `len` bytes, all of which will be written soon.
    ///
    /// # Errors
    /// Errors of the system, and `QuotaExceeded` if there are too many blocks.
    pub fn new(len: usize) -> io::Result<SharedMemory> {
        let quota = DescriptorQuota::take()?;
        let (file, mapping) = create(len)?;
        if len >= MIN_HUGE_PAGES_LEN {
            // The result is ignored: most systems refuse, because they give huge pages to shared memory only if
            // configured to.
            let _ = mapping.advise(Advice::HugePage);
        }
        // Populates all pages at once, because a page fault for each would take longer. If the system refuses, pages
        // are allocated when first touched.
        let _ = mapping.advise(Advice::PopulateWrite);
        seal(&file)?;
        Ok(SharedMemory::of_mapping(mapping, Some((file, quota))))
    }

    /// Allocates `len` bytes of zeros, which take memory only as they are written.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn zeros(len: usize) -> io::Result<SharedMemory> {
        // Huge pages are not requested, because each written row of a sparsely written table would then take two
        // megabytes.
        Ok(SharedMemory::of_mapping(MmapMut::map_anon(len)?, None))
    }

    fn of_mapping(mapping: MmapMut, file: Option<(File, DescriptorQuota)>) -> SharedMemory {
        SharedMemory { sharing: Sharing::new(), file: Mutex::new(file), mapping }
    }

    /// Returns the shared block behind a buffer's memory, if there is one, and the position of the buffer in it.
    pub fn of(region: &dyn Region) -> Option<(&SharedMemory, usize)> {
        let (block, start) = region.block().unwrap_or((region, 0));
        (block as &dyn Any).downcast_ref().map(|block| (block, start))
    }
}

impl SharedBlock for SharedMemory {
    fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The first call for a block of zeros takes as long as copying the block.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        let mut file = self.file.lock();
        let (file, _) = match &mut *file {
            Some(file) => file,
            none => none.insert(convert_to_file(&self.mapping)?),
        };
        Ok(file.try_clone()?.into())
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
}

/// One of the file descriptors that blocks may use; released when dropped.
struct DescriptorQuota;

impl DescriptorQuota {
    fn take() -> io::Result<DescriptorQuota> {
        let most = MAX_BLOCKS.get().copied().unwrap_or(usize::MAX);
        let (others, quota) = (NUM_BLOCKS.fetch_add(1, Ordering::Relaxed), DescriptorQuota);
        if others >= most { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(quota) }
    }
}

impl Drop for DescriptorQuota {
    fn drop(&mut self) {
        NUM_BLOCKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Creates a memory file of `len` zero bytes and maps it.
fn create(len: usize) -> io::Result<(File, MmapMut)> {
    let fd = rustix::fs::memfd_create("anabranch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(len as u64)?;
    // SAFETY: no other process has the file before it is sealed; from then on its length is fixed and others cannot
    // write it.
    let mapping = unsafe { MmapOptions::new().len(len).map_mut(&file)? };
    Ok((file, mapping))
}

fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Replaces ordinary memory by a file with the same contents, at the same addresses. Concurrent readers see no
/// difference.
fn convert_to_file(memory: &MmapMut) -> io::Result<(File, DescriptorQuota)> {
    let quota = DescriptorQuota::take()?;
    let (file, mut copy) = create(memory.len())?;
    // Moves the memory in pieces, so that at most one piece exists twice. If a piece fails, those moved before stay in
    // the file.
    for (i, (to, from)) in copy.chunks_mut(PIECE_LEN).zip(memory.chunks(PIECE_LEN)).enumerate() {
        for (to, from) in to.chunks_mut(PAGE).zip(from.chunks(PAGE)) {
            // A page that was never written stays a hole in the file, and takes no memory until it is read.
            if *from != [0; PAGE][..from.len()] {
                to.copy_from_slice(from);
            }
        }
        map_over(from, &file, i * PIECE_LEN);
    }
    seal(&file)?;
    Ok((file, quota))
}

/// Maps a part of a file over the ordinary memory of which it is a copy.
fn map_over(memory: &[u8], file: &File, offset: usize) {
    let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    let address = memory.as_ptr().cast_mut().cast();
    // SAFETY: the replaced range consists of whole pages of one mapping, which keeps owning their addresses; the bytes
    // are the same before and after, and no thread writes them meanwhile because they are borrowed.
    let mapped = unsafe { rustix::mm::mmap(address, memory.len(), access, how, file, offset as u64) };
    if let Err(error) = mapped {
        // The system may already have removed the old mapping, so the process cannot continue.
        tracing::error!("memory that was to be shared is lost, and the process ends: {error}");
        std::process::abort();
    }
}

impl Region for SharedMemory {
    fn bytes(&self) -> &[u8] {
        &self.mapping
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_writable() { Some(&mut self.mapping) } else { None }
    }

    fn is_writable(&self) -> bool {
        !self.sharing.is_read_only()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.mapping.len())
    }
}

/// A shared block of another process, mapped for reading.
#[derive(Debug)]
pub struct PeerMemory(Mmap);

impl PeerMemory {
    /// Maps a block of `len` bytes that its owner can neither shorten nor let others write. The caller may read it only
    /// while the owner has promised not to write it.
    ///
    /// # Errors
    /// `InvalidData` if the file is not a sealed block of that length; errors of the system.
    pub fn map(file: &File, len: usize) -> io::Result<PeerMemory> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if len == 0 || file.metadata()?.len() != len as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no sealed memory of that length"));
        }
        // SAFETY: the seal keeps the file from becoming shorter, so that every byte of the mapping stays readable. The
        // owner, which has proved to be a task of the cluster, does not write a block while it is borrowed.
        Ok(PeerMemory(unsafe { MmapOptions::new().len(len).populate().map(file)? }))
    }

    /// Returns the bytes of the block.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_block::FreeListener;
    use std::sync::{Arc, Weak};

    #[derive(Default)]
    struct Log(Mutex<Vec<u64>>);

    impl FreeListener for Log {
        fn freed(&self, id: u64) {
            self.0.lock().push(id);
        }
    }

    #[test]
    fn a_block_is_read_but_not_written_through_its_descriptor() -> io::Result<()> {
        let log = Arc::new(Log::default());
        let mut own = SharedMemory::new(5000)?;
        let listener: Weak<dyn FreeListener> = Arc::<Log>::downgrade(&log);
        own.sharing().tell(listener);
        own.bytes_mut().unwrap_or_default()[4999] = 7;
        let given = File::from(own.descriptor()?);
        let peer = PeerMemory::map(&given, 5000)?;
        assert_eq!((peer.bytes().len(), peer.bytes()[4999]), (5000, 7));
        assert!(PeerMemory::map(&given, 6000).is_err() && PeerMemory::map(&given, 0).is_err());
        assert!(given.set_len(0).is_err() && given.set_len(10_000).is_err());
        assert!(std::os::unix::fs::FileExt::write_at(&given, &[1], 0).is_err());
        // SAFETY: no mapping is created, because the sealed file cannot be mapped for writing.
        assert!(unsafe { MmapMut::map_mut(&given) }.is_err());
        let id = own.sharing().id();
        drop(own);
        assert_eq!(*log.0.lock(), [id]);
        assert_eq!(peer.bytes()[4999], 7, "the memory stays while a process has mapped it");
        Ok(())
    }

    #[test]
    fn zeros_take_memory_when_written_and_are_shared_at_the_same_address() -> io::Result<()> {
        const LEN: usize = (64 << 20) + 5;
        let mut own = SharedMemory::zeros(LEN)?;
        let bytes = own.bytes_mut().unwrap_or_default();
        (bytes[0], bytes[30 << 20], bytes[LEN - 1]) = (1, 2, 3);
        assert!(own.bytes().iter().step_by(PAGE).filter(|b| **b != 0).count() == 2);
        let address = own.bytes().as_ptr();
        let peer = PeerMemory::map(&own.descriptor()?.into(), LEN)?;
        assert_eq!((own.bytes().as_ptr(), own.bytes()), (address, peer.bytes()));
        assert_eq!((peer.bytes()[0], peer.bytes()[30 << 20], peer.bytes()[LEN - 1]), (1, 2, 3));
        // Every descriptor refers to the same block.
        own.bytes_mut().unwrap_or_default()[7] = 7;
        assert_eq!((peer.bytes()[7], PeerMemory::map(&own.descriptor()?.into(), LEN)?.bytes()[7]), (7, 7));
        assert!(File::from(own.descriptor()?).set_len(10).is_err());
        drop(peer);
        let untouched = SharedMemory::zeros(256 << 20)?;
        assert!(untouched.bytes().iter().step_by(PAGE).all(|b| *b == 0));
        assert!(resident(untouched.bytes())? < 128 << 20, "256 MiB of zeros take more than half of that");
        Ok(())
    }

    /// Returns the resident bytes of the mapping that contains `bytes`.
    fn resident(bytes: &[u8]) -> io::Result<usize> {
        let address = bytes.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps")?;
        let holds = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let hex = |text| usize::from_str_radix(text, 16).ok();
            Some((hex(from)?..hex(to)?).contains(&address))
        };
        let own = maps.lines().skip_while(|line| holds(line) != Some(true));
        let kib = own.skip(1).find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB"));
        let kib = kib.and_then(|kib| kib.parse::<usize>().ok());
        Ok(kib.ok_or_else(|| io::Error::other("the mapping is not in smaps"))? << 10)
    }

    #[test]
    fn a_read_only_block_is_not_written_again() -> io::Result<()> {
        let own = SharedMemory::new(1 << 20)?;
        assert!(own.is_writable());
        own.sharing().set_read_only();
        let mut own: Box<dyn Region> = Box::new(own);
        assert!(!own.is_writable() && own.bytes_mut().is_none() && own.bytes().len() == 1 << 20);
        Ok(())
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() -> io::Result<()> {
        let fd = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_len(100)?;
        assert!(PeerMemory::map(&file, 100).is_err());
        Ok(())
    }
}
