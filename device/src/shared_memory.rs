//! Memory of tensors that other processes of this machine can read where it is.
//!
//! Each block is a file without a name: whoever is given its descriptor can map it to read, and nobody but its maker
//! can write it, or make it shorter. It goes when the last process that has it mapped ends, however that ends. Zeros are
//! common memory, which takes none before it is written, and become a file in their place when somebody is to read them.

use crate::shared_block::{Place, SharedBlock, Sharing};
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

/// Each block takes a descriptor: at most this share of those that the process may have.
const SHARE: u64 = 2;
/// Descriptors that the process may have if it is not limited.
const UNLIMITED: u64 = 1 << 20;

/// From this size on, huge pages are asked for, bytes.
const HUGE: usize = 4 << 20;
/// What a system gives memory in, at least, bytes.
const PAGE: usize = 4096;
/// What is moved into a file at once, bytes: whole pages, of whatever size.
const PIECE: usize = 16 << 20;

static EXISTING: AtomicUsize = AtomicUsize::new(0);
static MOST: OnceLock<usize> = OnceLock::new();

/// Makes large buffers from now on shareable, as far as the system gives descriptors for them.
pub fn install() {
    MOST.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        // Where more is not to be had, fewer blocks are shared.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        (getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED) / SHARE) as usize
    });
    set_large_memory(|len, what_for| {
        let memory = match what_for {
            Use::Writing => SharedMemory::new(len),
            Use::Zeros => SharedMemory::zeros(len),
        };
        memory.ok().map(|memory| Box::new(memory) as Box<dyn Region>)
    });
}

/// Whether large buffers of this process are to be shareable.
pub fn is_installed() -> bool {
    MOST.get().is_some()
}

/// A block of this process.
pub struct SharedMemory {
    sharing: Sharing,
    /// Zeros that nobody else reads have none.
    file: Mutex<Option<(File, Share)>>,
    mapping: MmapMut,
}

impl SharedMemory {
    /// So many bytes, all of which are about to be written.
    ///
    /// # Errors
    /// What the system says, and that there are too many blocks.
    pub fn new(len: usize) -> io::Result<SharedMemory> {
        let counted = Share::take()?;
        let (file, mapping) = create(len)?;
        if len >= HUGE {
            // Systems that give no huge pages to shared memory, as most do unless told to, refuse.
            let _ = mapping.advise(Advice::HugePage);
        }
        // All pages at once: one fault each would take longer. Where the system cannot, it gives them as they are touched.
        let _ = mapping.advise(Advice::PopulateWrite);
        seal(&file)?;
        Ok(SharedMemory::of_mapping(mapping, Some((file, counted))))
    }

    /// So many bytes of zeros, which take memory as they are written.
    ///
    /// # Errors
    /// What the system says.
    pub fn zeros(len: usize) -> io::Result<SharedMemory> {
        // Huge pages are not asked for: a row of a table that is written would take two megabytes.
        Ok(SharedMemory::of_mapping(MmapMut::map_anon(len)?, None))
    }

    fn of_mapping(mapping: MmapMut, file: Option<(File, Share)>) -> SharedMemory {
        SharedMemory { sharing: Sharing::new(), file: Mutex::new(file), mapping }
    }

    /// The block behind a buffer's memory, if that is one: the buffer begins where it does.
    pub fn of(region: &dyn Region) -> Option<&SharedMemory> {
        (region.block().unwrap_or(region) as &dyn Any).downcast_ref()
    }
}

impl SharedBlock for SharedMemory {
    fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Takes as long as to copy the block, the first time that one of zeros is asked for it.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        let mut file = self.file.lock();
        let (file, _) = match &mut *file {
            Some(file) => file,
            none => none.insert(share(&self.mapping)?),
        };
        Ok(file.try_clone()?.into())
    }

    fn place(&self) -> Place {
        Place::Host
    }
}

/// One of the descriptors that blocks may have, given back when dropped: its block has it until then.
struct Share;

impl Share {
    fn take() -> io::Result<Share> {
        let most = MOST.get().copied().unwrap_or(usize::MAX);
        let (others, share) = (EXISTING.fetch_add(1, Ordering::Relaxed), Share);
        if others >= most { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(share) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        EXISTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A file of so many bytes of zero, and its memory.
fn create(len: usize) -> io::Result<(File, MmapMut)> {
    let fd = rustix::fs::memfd_create("anabranch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(len as u64)?;
    // SAFETY: nobody else has the file before it is sealed: its length is kept for ever, and others cannot write it.
    let mapping = unsafe { MmapOptions::new().len(len).map_mut(&file)? };
    Ok((file, mapping))
}

fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Puts a file of the same contents where common memory is. Whoever reads there meanwhile sees no difference.
fn share(memory: &MmapMut) -> io::Result<(File, Share)> {
    let counted = Share::take()?;
    let (file, mut copy) = create(memory.len())?;
    // Piece by piece, so that no more than one is there twice. If that ends halfway, what has been moved stays where it is.
    for (i, (to, from)) in copy.chunks_mut(PIECE).zip(memory.chunks(PIECE)).enumerate() {
        for (to, from) in to.chunks_mut(PAGE).zip(from.chunks(PAGE)) {
            // What was never written takes no memory here either, until somebody reads it.
            if *from != [0; PAGE][..from.len()] {
                to.copy_from_slice(from);
            }
        }
        take_place(from, &file, i * PIECE);
    }
    seal(&file)?;
    Ok((file, counted))
}

/// Maps a part of a file in the place of a part of common memory, of which it is a copy.
fn take_place(memory: &[u8], file: &File, offset: usize) {
    let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    let address = memory.as_ptr().cast_mut().cast();
    // SAFETY: what is replaced are whole pages of one mapping, which stays the owner of their addresses; the bytes there are
    // the same before and after, and nobody writes them meanwhile, for they are borrowed.
    let mapped = unsafe { rustix::mm::mmap(address, memory.len(), access, how, file, offset as u64) };
    if let Err(error) = mapped {
        // The system may have taken away what was there.
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
        !self.sharing.is_given_up()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.mapping.len())
    }
}

/// A block of another process, to be read.
#[derive(Debug)]
pub struct PeerMemory(Mmap);

impl PeerMemory {
    /// Maps a block of `len` bytes that its maker can neither shorten nor let others write. The caller reads it only
    /// while the maker has promised not to write it.
    ///
    /// # Errors
    /// `InvalidData` if it is no such block; what the system says.
    pub fn map(file: &File, len: usize) -> io::Result<PeerMemory> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if len == 0 || file.metadata()?.len() != len as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no sealed memory of that length"));
        }
        // SAFETY: the seal keeps the file from becoming shorter, so that every byte of the mapping stays readable. The
        // maker, which has proved to be a task of the cluster, does not write what it has lent.
        Ok(PeerMemory(unsafe { MmapOptions::new().len(len).populate().map(file)? }))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_block::Freed;
    use std::sync::{Arc, Weak};

    #[derive(Default)]
    struct Log(Mutex<Vec<u64>>);

    impl Freed for Log {
        fn freed(&self, id: u64) {
            self.0.lock().push(id);
        }
    }

    #[test]
    fn what_is_written_is_read_through_the_descriptor_and_by_nobody_changed() -> io::Result<()> {
        let log = Arc::new(Log::default());
        let mut own = SharedMemory::new(5000)?;
        let told: Weak<dyn Freed> = Arc::<Log>::downgrade(&log);
        own.sharing().tell(told);
        own.bytes_mut().unwrap_or_default()[4999] = 7;
        let given = File::from(own.descriptor()?);
        let peer = PeerMemory::map(&given, 5000)?;
        assert_eq!((peer.bytes().len(), peer.bytes()[4999]), (5000, 7));
        assert!(PeerMemory::map(&given, 6000).is_err() && PeerMemory::map(&given, 0).is_err());
        assert!(given.set_len(0).is_err() && given.set_len(10_000).is_err());
        assert!(std::os::unix::fs::FileExt::write_at(&given, &[1], 0).is_err());
        // SAFETY: it fails.
        assert!(unsafe { MmapMut::map_mut(&given) }.is_err());
        let id = own.sharing().id();
        drop(own);
        assert_eq!(*log.0.lock(), [id]);
        assert_eq!(peer.bytes()[4999], 7, "it stays while somebody has it");
        Ok(())
    }

    #[test]
    fn zeros_take_memory_where_they_are_written_and_are_shared_in_their_place() -> io::Result<()> {
        const LEN: usize = (64 << 20) + 5;
        let mut own = SharedMemory::zeros(LEN)?;
        let bytes = own.bytes_mut().unwrap_or_default();
        (bytes[0], bytes[30 << 20], bytes[LEN - 1]) = (1, 2, 3);
        assert!(own.bytes().iter().step_by(PAGE).filter(|b| **b != 0).count() == 2);
        let address = own.bytes().as_ptr();
        let peer = PeerMemory::map(&own.descriptor()?.into(), LEN)?;
        assert_eq!((own.bytes().as_ptr(), own.bytes()), (address, peer.bytes()));
        assert_eq!((peer.bytes()[0], peer.bytes()[30 << 20], peer.bytes()[LEN - 1]), (1, 2, 3));
        // One block, whoever asks for it.
        own.bytes_mut().unwrap_or_default()[7] = 7;
        assert_eq!((peer.bytes()[7], PeerMemory::map(&own.descriptor()?.into(), LEN)?.bytes()[7]), (7, 7));
        assert!(File::from(own.descriptor()?).set_len(10).is_err());
        drop(peer);
        let untouched = SharedMemory::zeros(256 << 20)?;
        assert!(untouched.bytes().iter().step_by(PAGE).all(|b| *b == 0));
        assert!(resident(untouched.bytes())? < 128 << 20, "256 MiB of zeros take more than half of that");
        Ok(())
    }

    /// The bytes that are in memory of these, and of what the system counts with them.
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
        Ok(kib.ok_or_else(|| io::Error::other("the system does not say"))? << 10)
    }

    #[test]
    fn what_was_given_up_is_not_written_nor_used_again() -> io::Result<()> {
        let own = SharedMemory::new(1 << 20)?;
        assert!(own.is_writable());
        own.sharing().give_up();
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
