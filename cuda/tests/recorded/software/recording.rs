//! A GPU driver for tests, which records its calls and keeps device memory in host vectors. The driver checks
//! that no stream uses memory that another stream may still write or read, or that has been freed. GPUs of one
//! machine share a log and their streams' clocks. A captured graph is checked at each launch. A driver can also
//! execute work, within the call that enqueues it; invalid accesses of a kernel are recorded as races.

use super::{compiler, processor};
use cuda::engine::driver::{
    Address, AllReduce, AllReducePart, CallProgress, CommunicatorId, Convolution, ConvolutionMemory,
    Direction, EventId, FunctionId, GraphId, Grid, IpcMemory, PinnedMemory, Product, StreamId,
    WorkspaceBytes,
};
use cuda::engine::{Arguments, Driver, Program};
use device::device_collectives::CommunicatorPlace;
use device::{Error, Result};
use graph::DType;
use ptx::Kernel;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A vector clock: for each stream, the number of its operations that come before some point in time.
type Clock = BTreeMap<u64, u64>;

#[derive(Debug)]
pub(crate) struct RecordingDriver {
    total: u64,
    /// Number of the GPU on the machine.
    gpu: usize,
    /// True if other GPUs have peer access to this GPU.
    is_reachable: bool,
    /// True if the driver refuses products with an epilogue.
    lacks_epilogues: bool,
    /// True if enqueued work is also executed.
    executes: bool,
    /// Preferred workspace of a convolution, in bytes.
    workspace: usize,
    /// Largest number of blocks in a launch; larger grids are reduced to it, because kernels work with any
    /// number of blocks.
    most_blocks: u32,
    state: Arc<Mutex<RecordingState>>,
}

/// The state shared by the GPUs of one machine.
#[derive(Debug, Default)]
struct RecordingState {
    log: Vec<String>,
    /// Descriptions of errors, such as races, which an asynchronous call cannot return.
    races: Vec<String>,
    next: u64,
    /// Bytes in use, by GPU.
    used: Vec<u64>,
    /// Freed bytes that the simulated driver keeps cached for reuse, by GPU.
    kept: Vec<u64>,
    /// For each stream, the clock of the operations that precede the stream's next operation.
    streams: BTreeMap<u64, Clock>,
    /// The number of the GPU to which each stream and event belongs.
    owners: HashMap<OwnedObject, usize>,
    events: HashMap<u64, Clock>,
    /// The error that collectives fail with.
    collectives_failure: Option<Error>,
    /// The sides of communicators that have not been aborted.
    communicators: BTreeMap<u64, CommunicatorSide>,
    /// The error with which communicators fail.
    communicator_failure: Option<Error>,
    /// Pairs of GPUs between which peer access is enabled.
    reached: BTreeSet<[usize; 2]>,
    memory: Memories,
    /// For each block that processes share, by address, the GPUs that have the block mapped.
    shared: BTreeMap<u64, Vec<usize>>,
    /// The clock of the operations that the host has waited for.
    waited: Clock,
    pinned: HashMap<usize, HostMemory>,
    programs: Vec<Program>,
    /// The loaded kernels, if the GPU executes them.
    kernels: HashMap<u64, Kernel>,
    synchronized: usize,
    /// The stream that captures, and the work captured so far.
    capture: Option<(u64, Vec<RecordedWork>)>,
    graphs: BTreeMap<u64, Vec<RecordedWork>>,
    /// Number of graphs captured.
    captured: usize,
    refuses_captures: bool,
}

/// A GPU's side of a communicator.
#[derive(Debug)]
struct CommunicatorSide {
    place: CommunicatorPlace,
    /// The GPU's part of the next reduction, until all members have started theirs.
    part: Option<(AllReduce, [u64; 2])>,
}

/// A piece of enqueued work.
#[derive(Clone, Debug)]
struct RecordedWork {
    /// The log line of the work, without the stream.
    what: String,
    /// The addresses that the work accesses, each with the kind of the access.
    touches: Vec<(u64, AccessKind)>,
    /// The effect of the work on memory when it is executed.
    effect: Effect,
}

/// The effect of a piece of work on memory.
#[derive(Clone, Debug)]
enum Effect {
    Unknown,
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Kernel(Kernel, Grid, Arguments),
    Product(Product),
    Convolution(Box<Convolution>, ConvolutionMemory),
}

/// Host memory that GPUs read and write.
#[derive(Debug)]
enum HostMemory {
    Own(Box<[u8]>),
    /// Memory of the caller that the driver has pinned.
    Registered(PinnedMemory),
}

impl HostMemory {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            HostMemory::Own(bytes) => bytes,
            // SAFETY: the memory's owner keeps it until it is unpinned, and does not use it during copies.
            HostMemory::Registered(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.address as *mut u8, memory.len)
            },
        }
    }
}

/// An object that belongs to one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnedObject {
    Stream(u64),
    Event(u64),
}

/// Device memory by start address.
pub(crate) type Memories = BTreeMap<u64, Memory>;

/// One allocation of device memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// The number of the GPU to which the memory belongs.
    gpu: usize,
    /// For each stream, the time of its last access to the memory.
    uses: Clock,
    /// The stream of the last write, and its time in that stream's clock.
    written: (u64, u64),
}

/// The kind of access to memory. `Either` means that a kernel may read or write the memory; later work must
/// wait for the kernel as for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessKind {
    Read,
    Write,
    Either,
}

impl RecordingState {
    /// Executes an all-reduce of tensors of `count` floats: writes their sum to each result. `addresses` holds, for
    /// each GPU, the address of the tensor and of the result.
    fn sum(&mut self, count: usize, addresses: &[[u64; 2]]) {
        let mut sum = vec![0.0f32; count];
        for [from, _] in addresses {
            let bytes = self.memory.get(from).map_or(&[][..], |memory| &memory.bytes);
            for (sum, bytes) in sum.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *sum += f32::from_ne_bytes(*bytes);
            }
        }
        for [_, to] in addresses {
            if let Some(memory) = self.memory.get_mut(to) {
                let bytes = sum.iter().flat_map(|x| x.to_ne_bytes());
                memory.bytes.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
        }
    }

    /// Returns a number that was not returned before, for a new object or address.
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Removes pinned host memory, and records an error unless `is_right` returns `true` for it.
    fn remove_pinned(&mut self, memory: PinnedMemory, is_right: impl Fn(&HostMemory) -> bool) {
        if !self.pinned.remove(&memory.address).is_some_and(|hosted| is_right(&hosted)) {
            self.races.push(format!("{memory:?} is given back as what it is not"));
        }
    }

    /// Counts one more operation of a stream, and returns the time of the operation in the stream's clock.
    fn step(&mut self, stream: u64) -> u64 {
        let clock = self.streams.entry(stream).or_default();
        let now = clock.entry(stream).or_default();
        *now += 1;
        *now
    }

    /// Records an error if the stream or event does not belong to the GPU.
    fn check(&mut self, what: &str, gpu: usize, owned: OwnedObject) {
        if self.owners.get(&owned) != Some(&gpu) {
            self.races.push(format!("{what}: {owned:?} is not of GPU {gpu}"));
        }
    }

    /// Returns whether the next operation of `stream` is ordered after the operation of stream `of` at `time`.
    fn happens_before(&self, stream: u64, of: u64, time: u64) -> bool {
        self.streams.get(&stream).and_then(|clock| clock.get(&of)).copied().unwrap_or(0) >= time
    }

    /// Checks and records an access to memory by a stream: any access must be ordered after the last write, and
    /// a write also after all reads.
    fn touch(&mut self, what: &str, address: u64, stream: u64, how: AccessKind) {
        let Some((&start, memory)) = self.memory.range(..=address).next_back() else {
            self.races.push(format!("{what}: {address:#x} is no memory"));
            return;
        };
        if address >= start + memory.bytes.len() as u64 {
            self.races.push(format!("{what}: {address:#x} is no memory any more"));
            return;
        }
        let (uses, written, of) = (memory.uses.clone(), memory.written, memory.gpu);
        let sharers = self.shared.get(&start);
        match self.owners.get(&OwnedObject::Stream(stream)) {
            Some(&gpu) if gpu == of || self.reached.contains(&pair(gpu, of)) => {}
            Some(gpu) if sharers.is_some_and(|gpus| gpus.contains(gpu)) => {}
            other => {
                self.races.push(format!("{what} on stream {stream} of {other:?} uses memory of GPU {of}"))
            }
        }
        // For memory shared between processes, work that the host has waited for also counts as ordered before.
        let is_waited_for = |of: &u64, time: u64| sharers.is_some() && self.waited.get(of) >= Some(&time);
        let happens_before =
            |of: u64, time: u64| self.happens_before(stream, of, time) || is_waited_for(&of, time);
        let is_early = !happens_before(written.0, written.1);
        let late = |(&of, &time): (&u64, &u64)| (!happens_before(of, time)).then_some(of);
        let unwaited: Vec<u64> = match how {
            AccessKind::Write => uses.iter().filter_map(late).collect(),
            AccessKind::Read | AccessKind::Either => Vec::new(),
        };
        if is_early {
            self.races
                .push(format!("{what} on stream {stream} does not wait for the write on {}", written.0));
        }
        for of in unwaited {
            self.races.push(format!("{what} on stream {stream} does not wait for stream {of}"));
        }
        let now = self.step(stream);
        if let Some(memory) = self.memory.get_mut(&start) {
            memory.uses.insert(stream, now);
            if how != AccessKind::Read {
                memory.written = (stream, now);
            }
        }
    }
}

impl RecordingState {
    /// Runs a piece of work, or adds it to the capture if the stream captures.
    fn enqueue(&mut self, work: RecordedWork, stream: u64) {
        match &mut self.capture {
            Some((capturing, works)) if *capturing == stream => works.push(work),
            _ => self.run(&work, stream),
        }
    }

    /// Checks the memory accesses of a piece of work, executes its effect and logs it.
    fn run(&mut self, work: &RecordedWork, stream: u64) {
        for &(address, how) in &work.touches {
            self.touch(&work.what, address, stream, how);
        }
        let memory = &mut self.memory;
        let outcome = match &work.effect {
            Effect::Unknown => Ok(()),
            &Effect::Copy { to, from, bytes } => copy(memory, to, from, bytes),
            &Effect::Fill { to, byte, bytes } => slice_mut(memory, to, bytes).map(|part| part.fill(byte)),
            Effect::Kernel(kernel, grid, arguments) => processor::launch(kernel, *grid, arguments, memory),
            Effect::Product(product) => processor::product(product, memory),
            Effect::Convolution(convolution, at) => processor::convolve(convolution, at, memory),
        };
        self.races.extend(outcome.err());
        self.log.push(format!("{} on {stream}", work.what));
    }

    /// Records an error if the stream captures, for a call that is not allowed in a capture.
    fn forbid_in_capture(&mut self, what: &str, stream: u64) {
        if self.capture.as_ref().is_some_and(|(capturing, _)| *capturing == stream) {
            self.races.push(format!("{what} on stream {stream}, which captures"));
        }
    }
}

/// Returns the bytes at an address.
pub(crate) fn slice_mut(memories: &mut Memories, address: u64, bytes: usize) -> Result<&mut [u8], String> {
    let found = memories.range_mut(..=address).next_back().and_then(|(start, memory)| {
        let at = (address - start) as usize;
        memory.bytes.get_mut(at..at + bytes)
    });
    found.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not in memory"))
}

/// Returns the bytes at an address.
pub(crate) fn slice(memories: &Memories, address: u64, bytes: usize) -> Result<&[u8], String> {
    let found = memories.range(..=address).next_back().and_then(|(start, memory)| {
        let at = (address - start) as usize;
        memory.bytes.get(at..at + bytes)
    });
    found.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not in memory"))
}

/// Copies bytes within device memory.
fn copy(memories: &mut Memories, to: u64, from: u64, bytes: usize) -> Result<(), String> {
    let source = slice(memories, from, bytes)?.to_vec();
    slice_mut(memories, to, bytes)?.copy_from_slice(&source);
    Ok(())
}

/// The minimum workspace of a convolution, in bytes.
const WORKSPACE: usize = 256;

impl RecordingDriver {
    /// Returns the first GPU of a machine, with `total` bytes of memory.
    pub(crate) fn new(total: u64) -> RecordingDriver {
        let state = RecordingState { used: vec![0], kept: vec![0], ..RecordingState::default() };
        RecordingDriver {
            total,
            gpu: 0,
            is_reachable: true,
            lacks_epilogues: false,
            executes: false,
            workspace: WORKSPACE,
            most_blocks: u32::MAX,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns another GPU of the same machine.
    pub(crate) fn another_gpu(&self, is_reachable: bool) -> RecordingDriver {
        let mut state = self.state();
        state.used.push(0);
        state.kept.push(0);
        let gpu = state.used.len() - 1;
        RecordingDriver { gpu, is_reachable, state: self.state.clone(), ..*self }
    }

    /// Returns the driver without support for epilogues.
    pub(crate) fn without_epilogues(self) -> RecordingDriver {
        RecordingDriver { lacks_epilogues: true, ..self }
    }

    /// Returns the driver with execution of kernels by their PTX.
    pub(crate) fn executing_ptx(self) -> RecordingDriver {
        RecordingDriver { executes: true, ..self }
    }

    /// Returns the driver with convolutions that prefer a workspace of `bytes`.
    pub(crate) fn with_workspace(self, bytes: usize) -> RecordingDriver {
        RecordingDriver { workspace: bytes, ..self }
    }

    /// Returns the driver with all launches reduced to one block.
    pub(crate) fn with_one_block(self) -> RecordingDriver {
        RecordingDriver { most_blocks: 1, ..self }
    }

    /// Makes collectives fail from now on.
    pub(crate) fn fail_collectives(&self, error: Error) {
        self.state().collectives_failure = Some(error);
    }

    /// Makes communicators fail from now on.
    pub(crate) fn fail_communicators(&self, error: Error) {
        self.state().communicator_failure = Some(error);
    }

    /// Returns the number of sides of communicators that have not been aborted.
    pub(crate) fn communicators(&self) -> usize {
        self.state().communicators.len()
    }

    /// Casts a driver to `RecordingDriver`.
    fn of(driver: &dyn Driver) -> Result<&RecordingDriver> {
        let any: &dyn Any = driver;
        any.downcast_ref().ok_or_else(|| Error::internal("a driver that does not record"))
    }

    /// Locks the state that the GPUs of the machine share.
    fn state(&self) -> MutexGuard<'_, RecordingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a piece of work in a stream of this GPU.
    fn enqueue(&self, work: RecordedWork, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.enqueue(work, stream.0);
        self.outcome(&state)
    }

    /// Returns the first recorded error if the driver executes work, so that tests that are shared with real
    /// GPUs fail; otherwise errors are only recorded.
    fn outcome(&self, state: &RecordingState) -> Result<()> {
        match state.races.first() {
            Some(race) if self.executes => Err(Error::internal(race.clone())),
            _ => Ok(()),
        }
    }

    /// Returns and clears the log.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the errors recorded so far.
    pub(crate) fn races(&self) -> Vec<String> {
        self.state().races.clone()
    }

    /// Returns and clears the recorded errors.
    pub(crate) fn take_races(&self) -> Vec<String> {
        std::mem::take(&mut self.state().races)
    }

    /// Returns the number of bytes in use on this GPU.
    pub(crate) fn used(&self) -> u64 {
        self.state().used[self.gpu]
    }

    /// Returns the number of calls of `synchronize`.
    pub(crate) fn synchronized(&self) -> usize {
        self.state().synchronized
    }

    /// Returns the number of graphs captured, and the number that still exist.
    pub(crate) fn graphs(&self) -> (usize, usize) {
        let state = self.state();
        (state.captured, state.graphs.len())
    }

    /// Makes captures fail from now on.
    pub(crate) fn refuse_captures(&self) {
        self.state().refuses_captures = true;
    }

    /// Returns the loaded programs.
    pub(crate) fn programs(&self) -> Vec<Program> {
        self.state().programs.clone()
    }
}

/// Returns the descriptor of a file that contains an address, in place of a descriptor of shared memory.
fn descriptor_of(address: u64) -> Result<OwnedFd> {
    let made = rustix::fs::memfd_create("recording", rustix::fs::MemfdFlags::CLOEXEC).and_then(|file| {
        rustix::io::pwrite(&file, &address.to_le_bytes(), 0)?;
        Ok(file)
    });
    made.map_err(|error| Error::internal(error.to_string()))
}

/// Returns the address that a file from `descriptor_of` contains.
fn address_in(descriptor: BorrowedFd<'_>) -> Result<u64> {
    let mut address = [0; 8];
    match rustix::io::pread(descriptor, &mut address, 0) {
        Ok(8) => Ok(u64::from_le_bytes(address)),
        other => Err(Error::internal(format!("no descriptor of shared memory: {other:?}"))),
    }
}

/// Returns a pair of GPUs in a fixed order, as the key of a set.
fn pair(one: usize, other: usize) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

impl Driver for RecordingDriver {
    fn memory(&self) -> Result<(u64, u64)> {
        Ok((self.total - self.used(), self.total))
    }

    fn create_stream(&self) -> Result<StreamId> {
        let mut state = self.state();
        // Streams are numbered in the order of creation.
        let id = state.streams.len() as u64;
        state.streams.insert(id, Clock::new());
        state.owners.insert(OwnedObject::Stream(id), self.gpu);
        Ok(StreamId(id))
    }

    fn create_event(&self) -> Result<EventId> {
        let mut state = self.state();
        let id = state.fresh();
        state.owners.insert(OwnedObject::Event(id), self.gpu);
        Ok(EventId(id))
    }

    fn destroy_event(&self, event: EventId) {
        self.state().events.remove(&event.0);
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.check("mark", self.gpu, OwnedObject::Event(event.0));
        state.check("mark", self.gpu, OwnedObject::Stream(stream.0));
        state.forbid_in_capture("a mark", stream.0);
        let clock = state.streams.get(&stream.0).cloned().unwrap_or_default();
        state.events.insert(event.0, clock);
        state.log.push(format!("mark {}", stream.0));
        Ok(())
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.state();
        state.check("wait", self.gpu, OwnedObject::Stream(stream.0));
        state.forbid_in_capture("a wait", stream.0);
        let reached = state.events.get(&event.0).cloned().unwrap_or_default();
        let clock = state.streams.entry(stream.0).or_default();
        for (of, time) in reached {
            let known = clock.entry(of).or_default();
            *known = time.max(*known);
        }
        state.log.push(format!("wait {}", stream.0));
        Ok(())
    }

    fn wait_on_host(&self, event: EventId) -> Result<()> {
        let mut state = self.state();
        let reached = state.events.get(&event.0).cloned().unwrap_or_default();
        for (of, time) in reached {
            let known = state.waited.entry(of).or_default();
            *known = time.max(*known);
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        self.state().synchronized += 1;
        Ok(())
    }

    fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>> {
        let mut state = self.state();
        state.forbid_in_capture("memory taken", stream.0);
        if state.used[self.gpu] + bytes as u64 > self.total {
            state.log.push(format!("no room for {bytes}"));
            return Ok(None);
        }
        state.used[self.gpu] += bytes as u64;
        state.kept[self.gpu] = state.kept[self.gpu].saturating_sub(bytes as u64);
        state.check("allocate", self.gpu, OwnedObject::Stream(stream.0));
        // Addresses are never reused, so that a late use of freed memory is found.
        let address = state.fresh() << 32;
        let now = state.step(stream.0);
        let uses = Clock::from([(stream.0, now)]);
        // The content is arbitrary, so that a read of unwritten memory changes the result.
        let memory = Memory { bytes: vec![0xcd; bytes], gpu: self.gpu, uses, written: (stream.0, now) };
        state.memory.insert(address, memory);
        state.log.push(format!("allocate {bytes} on {}", stream.0));
        Ok(Some(Address(address)))
    }

    fn free(&self, address: Address, stream: StreamId) {
        if address.0 == 0 {
            return;
        }
        let mut state = self.state();
        state.check("free", self.gpu, OwnedObject::Stream(stream.0));
        state.forbid_in_capture("memory given back", stream.0);
        state.touch("free", address.0, stream.0, AccessKind::Write);
        match state.memory.remove(&address.0) {
            Some(memory) => {
                state.used[memory.gpu] -= memory.bytes.len() as u64;
                state.kept[memory.gpu] += memory.bytes.len() as u64;
                let bytes = memory.bytes.len();
                state.log.push(format!("free {bytes} on {}", stream.0));
            }
            None => state.races.push(format!("{:#x} is freed twice", address.0)),
        }
    }

    fn trim(&self) -> Result<()> {
        let mut state = self.state();
        state.kept[self.gpu] = 0;
        state.log.push("trim".to_owned());
        Ok(())
    }

    fn share(&self, bytes: usize) -> Result<Option<IpcMemory>> {
        let mut state = self.state();
        if state.used[self.gpu] + state.kept[self.gpu] + bytes as u64 > self.total {
            state.log.push(format!("no room to share {bytes}"));
            return Ok(None);
        }
        state.used[self.gpu] += bytes as u64;
        let address = state.fresh() << 32;
        // The memory has not been written, so the first use has nothing to wait for.
        let (uses, written) = (Clock::new(), (0, 0));
        state.memory.insert(address, Memory { bytes: vec![0xcd; bytes], gpu: self.gpu, uses, written });
        state.shared.insert(address, vec![self.gpu]);
        state.log.push(format!("share {bytes}"));
        Ok(Some(IpcMemory { address: Address(address), descriptor: descriptor_of(address)? }))
    }

    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
        let mut state = self.state();
        let address = address_in(descriptor)?;
        let is_long = state.memory.get(&address).is_some_and(|memory| memory.bytes.len() >= bytes);
        match state.shared.get_mut(&address) {
            Some(gpus) if is_long && self.is_reachable => gpus.push(self.gpu),
            _ => return Err(Error::internal("no memory to be mapped")),
        }
        state.log.push(format!("map {bytes}"));
        Ok(Address(address))
    }

    fn unmap(&self, address: Address, bytes: usize) {
        let mut state = self.state();
        state.log.push(format!("unmap {bytes}"));
        let left = state.shared.get_mut(&address.0).and_then(|gpus| {
            let at = gpus.iter().position(|gpu| *gpu == self.gpu)?;
            gpus.remove(at);
            Some(gpus.len())
        });
        match left {
            None => state
                .races
                .push(format!("{address:?} is unmapped by GPU {}, which has not mapped it", self.gpu)),
            Some(0) => {
                state.shared.remove(&address.0);
                if let Some(memory) = state.memory.remove(&address.0) {
                    state.used[memory.gpu] -= memory.bytes.len() as u64;
                }
            }
            Some(_) => {}
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedMemory> {
        let mut memory = vec![0u8; bytes].into_boxed_slice();
        let address = memory.as_mut_ptr() as usize;
        self.state().pinned.insert(address, HostMemory::Own(memory));
        Ok(PinnedMemory { address, len: bytes })
    }

    fn free_pinned(&self, memory: PinnedMemory) {
        self.state().remove_pinned(memory, |hosted| matches!(hosted, HostMemory::Own(_)));
    }

    fn pin(&self, memory: PinnedMemory) -> Result<()> {
        self.state().pinned.insert(memory.address, HostMemory::Registered(memory));
        Ok(())
    }

    fn unpin(&self, memory: PinnedMemory) {
        self.state().remove_pinned(memory, |hosted| matches!(hosted, HostMemory::Registered(_)));
    }

    fn copy_in(&self, to: Address, from: PinnedMemory, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.forbid_in_capture("a copy in", stream.0);
        state.touch("copy in", to.0, stream.0, AccessKind::Write);
        let source = state.pinned.get_mut(&from.address).map(|memory| memory.bytes_mut()[..bytes].to_vec());
        let source = source.ok_or_else(|| Error::internal("a copy from memory that is not pinned"))?;
        let outcome = slice_mut(&mut state.memory, to.0, bytes).map(|part| part.copy_from_slice(&source));
        state.races.extend(outcome.err());
        state.log.push(format!("copy in {bytes} on {}", stream.0));
        Ok(())
    }

    fn copy_out(&self, to: PinnedMemory, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.forbid_in_capture("a copy out", stream.0);
        state.touch("copy out", from.0, stream.0, AccessKind::Read);
        let source = slice(&state.memory, from.0, bytes).map_err(Error::internal)?.to_vec();
        let target = state.pinned.get_mut(&to.address);
        let target = target.ok_or_else(|| Error::internal("a copy to memory that is not pinned"))?;
        target.bytes_mut()[..bytes].copy_from_slice(&source);
        state.log.push(format!("copy out {bytes} on {}", stream.0));
        Ok(())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let work = RecordedWork {
            what: format!("copy {bytes}"),
            touches: vec![(from.0, AccessKind::Read), (to.0, AccessKind::Write)],
            effect: Effect::Copy { to: to.0, from: from.0, bytes },
        };
        self.enqueue(work, stream)
    }

    fn enable_peer_access(&self, peer: &dyn Driver) -> Result<bool> {
        let peer = RecordingDriver::of(peer)?;
        let can = self.is_reachable && peer.is_reachable && Arc::ptr_eq(&self.state, &peer.state);
        if can {
            self.state().reached.insert(pair(self.gpu, peer.gpu));
        }
        Ok(can)
    }

    fn copy_to_peer(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()> {
        let peer = RecordingDriver::of(peer)?.gpu;
        let mut state = self.state();
        state.check("copy to a peer", self.gpu, OwnedObject::Stream(stream.0));
        state.touch("copy to a peer", from.0, stream.0, AccessKind::Read);
        state.touch("copy to a peer", to.0, stream.0, AccessKind::Write);
        let outcome = copy(&mut state.memory, to.0, from.0, bytes);
        state.races.extend(outcome.err());
        state.log.push(format!("copy {bytes} to GPU {peer} on {}", stream.0));
        Ok(())
    }

    /// Only sums of `float` are executed; other collectives are only recorded.
    fn all_reduce(&self, operation: &AllReduce, parts: &[AllReducePart<'_>]) -> Result<()> {
        let gpus: Vec<usize> =
            parts.iter().map(|part| Ok(RecordingDriver::of(part.driver)?.gpu)).collect::<Result<_>>()?;
        let mut state = self.state();
        if let Some(error) = &state.collectives_failure {
            return Err(error.clone());
        }
        for (part, &gpu) in parts.iter().zip(&gpus) {
            state.check("all-reduce", gpu, OwnedObject::Stream(part.stream.0));
            state.touch("all-reduce", part.from.0, part.stream.0, AccessKind::Read);
            state.touch("all-reduce", part.to.0, part.stream.0, AccessKind::Write);
        }
        let addresses: Vec<[u64; 2]> = parts.iter().map(|part| [part.from.0, part.to.0]).collect();
        state.sum(operation.count, &addresses);
        state.log.push(format!(
            "{:?} of {} {} on GPUs {gpus:?}",
            operation.reduction, operation.count, operation.dtype
        ));
        Ok(())
    }

    fn communicator_identity(&self) -> Result<String> {
        Ok(format!("machine/{}", self.gpu))
    }

    fn create_communicator_key(&self) -> Result<Vec<u8>> {
        Ok(self.state().fresh().to_ne_bytes().to_vec())
    }

    fn connect_communicator(&self, place: &CommunicatorPlace) -> Result<CommunicatorId> {
        let mut state = self.state();
        let id = state.fresh();
        state.communicators.insert(id, CommunicatorSide { place: place.clone(), part: None });
        Ok(CommunicatorId(id))
    }

    /// A reduction is enqueued, and executed, when all members have started their parts.
    fn communicator_progress(&self, communicator: CommunicatorId) -> Result<CallProgress> {
        let mut state = self.state();
        if let Some(error) = &state.communicator_failure {
            return Err(error.clone());
        }
        let Some(side) = state.communicators.get(&communicator.0) else {
            state.races.push("a call with an aborted communicator".to_owned());
            return Err(Error::internal("the communicator is aborted"));
        };
        let (place, has_part) = (side.place.clone(), side.part.is_some());
        let sides = || state.communicators.values().filter(|side| side.place.key == place.key);
        let started: Vec<(AllReduce, [u64; 2])> = sides().filter_map(|side| side.part).collect();
        if sides().count() < place.size || (has_part && started.len() < place.size) {
            return Ok(CallProgress::Pending);
        }
        if has_part {
            let addresses: Vec<[u64; 2]> = started.iter().map(|(_, addresses)| *addresses).collect();
            state.sum(started[0].0.count, &addresses);
            let sides = state.communicators.values_mut().filter(|side| side.place.key == place.key);
            sides.for_each(|side| side.part = None);
        }
        Ok(CallProgress::Done)
    }

    fn all_reduce_of_members(
        &self,
        communicator: CommunicatorId,
        operation: &AllReduce,
        from: Address,
        to: Address,
        stream: StreamId,
    ) -> Result<()> {
        let mut state = self.state();
        state.check("all-reduce", self.gpu, OwnedObject::Stream(stream.0));
        state.touch("all-reduce", from.0, stream.0, AccessKind::Read);
        state.touch("all-reduce", to.0, stream.0, AccessKind::Write);
        let side = state.communicators.get_mut(&communicator.0);
        let side = side.ok_or_else(|| Error::internal("the communicator is aborted"))?;
        side.part = Some((*operation, [from.0, to.0]));
        let line = format!("{:?} of {} {}", operation.reduction, operation.count, operation.dtype);
        let CommunicatorPlace { rank, size, .. } = side.place;
        state.log.push(format!("{line}, rank {rank} of {size} on {}", stream.0));
        Ok(())
    }

    fn abort_communicator(&self, communicator: CommunicatorId) {
        let mut state = self.state();
        match state.communicators.remove(&communicator.0) {
            Some(side) => state.log.push(format!("abort rank {}", side.place.rank)),
            None => state.races.push("a communicator is aborted twice".to_owned()),
        }
    }

    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()> {
        let work = RecordedWork {
            what: format!("fill {bytes}"),
            touches: vec![(to.0, AccessKind::Write)],
            effect: Effect::Fill { to: to.0, byte, bytes },
        };
        self.enqueue(work, stream)
    }

    fn load(&self, program: &Program) -> Result<FunctionId> {
        let kernel = self.executes.then(|| compiler::kernel(program)).transpose()?;
        let mut state = self.state();
        let id = state.programs.len() as u64;
        state.programs.push(program.clone());
        state.kernels.extend(kernel.map(|kernel| (id, kernel)));
        Ok(FunctionId(id))
    }

    /// Enqueues a kernel, which may access all memory whose address is among its arguments.
    fn launch(
        &self,
        function: FunctionId,
        grid: Grid,
        arguments: &Arguments,
        stream: StreamId,
    ) -> Result<()> {
        let mut state = self.state();
        let name = state.programs[function.0 as usize].function.clone();
        if grid.blocks == 0 || grid.threads == 0 {
            state.races.push(format!("{name} runs on nothing"));
        }
        let addresses: Vec<u64> =
            arguments.iter().flatten().copied().filter(|word| *word >= 1 << 32 && *word < 1 << 60).collect();
        let last = addresses.len().saturating_sub(1);
        // Element-wise kernels write to the last address and read the others; other kernels may read or write
        // any address.
        let is_elementwise = ["map<", "zip<", "zip_axes<"].iter().any(|kind| name.starts_with(kind));
        let how = |at: usize| match is_elementwise {
            true if at == last => AccessKind::Write,
            true => AccessKind::Read,
            false => AccessKind::Either,
        };
        let touches = addresses.iter().enumerate().map(|(at, address)| (*address, how(at)));
        let kernel = state.kernels.get(&function.0).cloned();
        let grid = Grid { blocks: grid.blocks.min(self.most_blocks), ..grid };
        let effect = kernel.map_or(Effect::Unknown, |kernel| Effect::Kernel(kernel, grid, arguments.clone()));
        let work = RecordedWork { what: name, touches: touches.collect(), effect };
        drop(state);
        self.enqueue(work, stream)
    }

    fn product(&self, product: &Product, stream: StreamId) -> Result<()> {
        if product.epilogue.is_some() && self.lacks_epilogues {
            return Err(Error::unimplemented("no epilogues"));
        }
        let Product { m, n, k, count, flips, steps, epilogue, .. } = product;
        let bias = epilogue.and_then(|epilogue| epilogue.bias);
        let relu = epilogue.is_some_and(|epilogue| epilogue.relu);
        let then = [bias.map(|_| " + bias"), relu.then_some(" > relu")];
        let then: String = then.into_iter().flatten().collect();
        let mut touches = vec![
            (product.a.0, AccessKind::Read),
            (product.b.0, AccessKind::Read),
            (product.c.0, AccessKind::Write),
        ];
        touches.extend(bias.map(|bias| (bias.0, AccessKind::Read)));
        let work = RecordedWork {
            what: format!("product {m} {n} {k} x {count} {flips:?} {steps:?}{then}"),
            touches,
            effect: if self.executes { Effect::Product(product.clone()) } else { Effect::Unknown },
        };
        self.enqueue(work, stream)
    }

    /// Supports the same convolutions as cuDNN, which lacks gradients of dilated convolutions of `double` with
    /// channels last.
    fn convolution_workspace(&self, of: &Convolution, _: StreamId) -> Result<Option<WorkspaceBytes>> {
        let is_lacking = of.direction != Direction::Forward
            && of.dtype == DType::Double
            && of.dilations != [1, 1]
            && of.input.channels_last;
        Ok((!is_lacking).then_some(WorkspaceBytes { preferred: self.workspace, minimum: WORKSPACE }))
    }

    fn convolve(&self, convolution: &Convolution, at: &ConvolutionMemory, stream: StreamId) -> Result<()> {
        let used = [at.input, at.filter, at.output].into_iter().chain(at.workspace.map(|space| space.0));
        let Convolution { direction, input, filter, output, padding, .. } = convolution;
        let (x, y, bytes) = (input.sizes, output.sizes, at.workspace.map_or(0, |(_, bytes)| bytes));
        let work = RecordedWork {
            what: format!("{direction:?} {x:?} {filter:?} {y:?} {padding:?} in {bytes} bytes"),
            touches: used.map(|address| (address.0, AccessKind::Either)).collect(),
            effect: if self.executes {
                Effect::Convolution(Box::new(convolution.clone()), *at)
            } else {
                Effect::Unknown
            },
        };
        self.enqueue(work, stream)
    }

    fn begin_capture(&self, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        if state.capture.is_some() {
            state.races.push("a capture within a capture".to_owned());
        }
        state.capture = Some((stream.0, Vec::new()));
        state.log.push(format!("capture on {}", stream.0));
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId> {
        let mut state = self.state();
        let works = match state.capture.take() {
            Some((capturing, works)) if capturing == stream.0 => works,
            _ => return Err(Error::internal("the end of a capture that has not begun")),
        };
        if state.refuses_captures {
            return Err(Error::internal("no capture today"));
        }
        let id = state.fresh();
        state.log.push(format!("captured {}", works.len()));
        state.graphs.insert(id, works);
        state.captured += 1;
        Ok(GraphId(id))
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        let Some(works) = state.graphs.get(&graph.0).cloned() else {
            state.races.push(format!("graph {} is destroyed", graph.0));
            return Ok(());
        };
        state.log.push(format!("graph of {} on {}", works.len(), stream.0));
        for work in &works {
            state.run(work, stream.0);
        }
        self.outcome(&state)
    }

    fn destroy_graph(&self, graph: GraphId) {
        let mut state = self.state();
        if state.graphs.remove(&graph.0).is_none() {
            state.races.push(format!("graph {} is destroyed twice", graph.0));
        }
    }
}
