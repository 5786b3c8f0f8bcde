//! GPUs in the tests' place: they write down what they are asked for, keep memory in vectors of the host, and watch that
//! no stream touches memory that another one may still be writing, reading, or has given back. GPUs of one machine share
//! a log and their streams' clocks. What is captured is watched whenever it runs. Some compute, too: work is done when it
//! is enqueued, and what a kernel must not do is written down with what else went wrong.

use super::{compiler, processor};
use anabranch_cuda::engine::driver::{
    Address, AllReduce, Convolution, ConvolutionAt, Direction, EventId, FunctionId, GraphId, Grid, Part,
    Pinned, Product, Shared, StreamId, WorkspaceBytes,
};
use anabranch_cuda::engine::{Arguments, Driver, Program};
use device::{Error, Result};
use graph::DType;
use ptx::Kernel;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far each stream had come.
type Clock = BTreeMap<u64, u64>;

#[derive(Debug)]
pub(crate) struct Recording {
    total: u64,
    /// Its number on the machine.
    gpu: usize,
    /// Whether others reach its memory, and it theirs.
    is_reachable: bool,
    /// As a driver whose libraries have none.
    lacks_epilogues: bool,
    computes: bool,
    /// What a convolution wants to work in, bytes.
    workspace: usize,
    /// Kernels run in so many blocks at most, whatever is asked for: each walks all its work in any number.
    most_blocks: u32,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<String>,
    /// What went wrong: a kernel cannot say so.
    races: Vec<String>,
    next: u64,
    /// By GPU.
    used: Vec<u64>,
    /// What was freed and the driver keeps for reuse, by GPU.
    kept: Vec<u64>,
    /// What each stream knows of the others' work, its own included.
    streams: BTreeMap<u64, Clock>,
    /// Which GPU's a stream or event is.
    owners: HashMap<Owned, usize>,
    events: HashMap<u64, Clock>,
    /// Why collectives fail.
    collectives_failure: Option<Error>,
    /// The GPUs that use each other's memory.
    reached: BTreeSet<[usize; 2]>,
    memory: Memories,
    /// Memory that processes share: the GPUs by which each has mapped it.
    shared: BTreeMap<u64, Vec<usize>>,
    /// How far each stream had come at marks that somebody has waited for.
    waited: Clock,
    pinned: HashMap<usize, Hosted>,
    programs: Vec<Program>,
    /// Those of GPUs that compute.
    kernels: HashMap<u64, Kernel>,
    synchronized: usize,
    /// The stream that captures, and what it was given since.
    capture: Option<(u64, Vec<Work>)>,
    graphs: BTreeMap<u64, Vec<Work>>,
    /// How many graphs were made.
    captured: usize,
    refuses_captures: bool,
}

/// Work on memory, as it is run or captured.
#[derive(Clone, Debug)]
struct Work {
    /// What the log says of it.
    what: String,
    touches: Vec<(u64, Use)>,
    effect: Effect,
}

#[derive(Clone, Debug)]
enum Effect {
    Unknown,
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Kernel(Kernel, Grid, Arguments),
    Product(Product),
    Convolution(Box<Convolution>, ConvolutionAt),
}

/// Memory of the host that GPUs read and write.
#[derive(Debug)]
enum Hosted {
    Own(Box<[u8]>),
    /// It was there, and was pinned.
    Pinned(Pinned),
}

impl Hosted {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Hosted::Own(bytes) => bytes,
            // SAFETY: whoever pinned it keeps it until it is unpinned, and leaves it to the GPU during copies.
            Hosted::Pinned(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.address as *mut u8, memory.len)
            },
        }
    }
}

/// What belongs to one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owned {
    Stream(u64),
    Event(u64),
}

/// By where each begins.
pub(crate) type Memories = BTreeMap<u64, Memory>;

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// Whose it is.
    gpu: usize,
    /// The last use by each stream.
    uses: Clock,
    /// The last write: by which stream, and when.
    written: (u64, u64),
}

/// What work does with memory. Of a kernel's argument nobody knows: what comes later waits for it as for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Either,
}

impl State {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Memory of the host that is no longer pinned.
    fn take_back(&mut self, memory: Pinned, is_right: impl Fn(&Hosted) -> bool) {
        if !self.pinned.remove(&memory.address).is_some_and(|hosted| is_right(&hosted)) {
            self.races.push(format!("{memory:?} is given back as what it is not"));
        }
    }

    /// One more piece of work in a stream; gives its time.
    fn step(&mut self, stream: u64) -> u64 {
        let clock = self.streams.entry(stream).or_default();
        let now = clock.entry(stream).or_default();
        *now += 1;
        *now
    }

    /// Who is asked with a stream or event must be its GPU.
    fn check(&mut self, what: &str, gpu: usize, owned: Owned) {
        if self.owners.get(&owned) != Some(&gpu) {
            self.races.push(format!("{what}: {owned:?} is not of GPU {gpu}"));
        }
    }

    /// Whether work that the stream is given now comes after `time` of `of`.
    fn comes_after(&self, stream: u64, of: u64, time: u64) -> bool {
        self.streams.get(&stream).and_then(|clock| clock.get(&of)).copied().unwrap_or(0) >= time
    }

    /// A use of memory by a stream: it must come after the last write, and if it writes, after all uses.
    fn touch(&mut self, what: &str, address: u64, stream: u64, how: Use) {
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
        match self.owners.get(&Owned::Stream(stream)) {
            Some(&gpu) if gpu == of || self.reached.contains(&pair(gpu, of)) => {}
            Some(gpu) if sharers.is_some_and(|gpus| gpus.contains(gpu)) => {}
            other => {
                self.races.push(format!("{what} on stream {stream} of {other:?} uses memory of GPU {of}"))
            }
        }
        // Who knows of shared memory only through its owner knows what that has waited for.
        let is_told = |of: &u64, time: u64| sharers.is_some() && self.waited.get(of) >= Some(&time);
        let comes_after = |of: u64, time: u64| self.comes_after(stream, of, time) || is_told(&of, time);
        let is_early = !comes_after(written.0, written.1);
        let late = |(&of, &time): (&u64, &u64)| (!comes_after(of, time)).then_some(of);
        let unwaited: Vec<u64> = match how {
            Use::Write => uses.iter().filter_map(late).collect(),
            Use::Read | Use::Either => Vec::new(),
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
            if how != Use::Read {
                memory.written = (stream, now);
            }
        }
    }
}

impl State {
    /// Runs work, or writes it down if the stream captures.
    fn enqueue(&mut self, work: Work, stream: u64) {
        match &mut self.capture {
            Some((capturing, works)) if *capturing == stream => works.push(work),
            _ => self.run(&work, stream),
        }
    }

    fn run(&mut self, work: &Work, stream: u64) {
        for &(address, how) in &work.touches {
            self.touch(&work.what, address, stream, how);
        }
        let memory = &mut self.memory;
        let outcome = match &work.effect {
            Effect::Unknown => Ok(()),
            &Effect::Copy { to, from, bytes } => copy(memory, to, from, bytes),
            &Effect::Fill { to, byte, bytes } => part(memory, to, bytes).map(|part| part.fill(byte)),
            Effect::Kernel(kernel, grid, arguments) => processor::launch(kernel, *grid, arguments, memory),
            Effect::Product(product) => processor::product(product, memory),
            Effect::Convolution(convolution, at) => processor::convolve(convolution, at, memory),
        };
        self.races.extend(outcome.err());
        self.log.push(format!("{} on {stream}", work.what));
    }

    /// What is no work on memory has no place in a capture.
    fn forbid_in_capture(&mut self, what: &str, stream: u64) {
        if self.capture.as_ref().is_some_and(|(capturing, _)| *capturing == stream) {
            self.races.push(format!("{what} on stream {stream}, which captures"));
        }
    }
}

/// A part of what is there.
pub(crate) fn part(memories: &mut Memories, address: u64, bytes: usize) -> Result<&mut [u8], String> {
    let found = memories.range_mut(..=address).next_back().and_then(|(start, memory)| {
        let at = (address - start) as usize;
        memory.bytes.get_mut(at..at + bytes)
    });
    found.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not in memory"))
}

pub(crate) fn part_of(memories: &Memories, address: u64, bytes: usize) -> Result<&[u8], String> {
    let found = memories.range(..=address).next_back().and_then(|(start, memory)| {
        let at = (address - start) as usize;
        memory.bytes.get(at..at + bytes)
    });
    found.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not in memory"))
}

fn copy(memories: &mut Memories, to: u64, from: u64, bytes: usize) -> Result<(), String> {
    let source = part_of(memories, from, bytes)?.to_vec();
    part(memories, to, bytes)?.copy_from_slice(&source);
    Ok(())
}

/// What a convolution needs to work in, bytes.
const WORKSPACE: usize = 256;

impl Recording {
    /// The first GPU of a machine, with so many bytes of memory.
    pub(crate) fn new(total: u64) -> Recording {
        let state = State { used: vec![0], kept: vec![0], ..State::default() };
        Recording {
            total,
            gpu: 0,
            is_reachable: true,
            lacks_epilogues: false,
            computes: false,
            workspace: WORKSPACE,
            most_blocks: u32::MAX,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// One more GPU of the same machine.
    pub(crate) fn beside(&self, is_reachable: bool) -> Recording {
        let mut state = self.state();
        state.used.push(0);
        state.kept.push(0);
        let gpu = state.used.len() - 1;
        Recording { gpu, is_reachable, state: self.state.clone(), ..*self }
    }

    /// The same, which multiplies and does nothing more.
    pub(crate) fn without_epilogues(self) -> Recording {
        Recording { lacks_epilogues: true, ..self }
    }

    /// The same, which computes.
    pub(crate) fn that_computes(self) -> Recording {
        Recording { computes: true, ..self }
    }

    /// The same, whose convolutions want so many bytes to work in.
    pub(crate) fn wanting_workspace(self, bytes: usize) -> Recording {
        Recording { workspace: bytes, ..self }
    }

    /// The same, of so few processors that all work is one block's.
    pub(crate) fn with_one_block(self) -> Recording {
        Recording { most_blocks: 1, ..self }
    }

    /// From now on collectives fail.
    pub(crate) fn fail_collectives(&self, error: Error) {
        self.state().collectives_failure = Some(error);
    }

    fn of(driver: &dyn Driver) -> Result<&Recording> {
        let any: &dyn Any = driver;
        any.downcast_ref().ok_or_else(|| Error::internal("a driver that does not record"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, work: Work, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.enqueue(work, stream.0);
        self.outcome(&state)
    }

    /// Who computes fails once anything went wrong, for tests that know nothing of this driver; who only records goes on.
    fn outcome(&self, state: &State) -> Result<()> {
        match state.races.first() {
            Some(race) if self.computes => Err(Error::internal(race.clone())),
            _ => Ok(()),
        }
    }

    /// What was asked since the last time.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    pub(crate) fn races(&self) -> Vec<String> {
        self.state().races.clone()
    }

    /// The races since the last time, which are forgotten.
    pub(crate) fn take_races(&self) -> Vec<String> {
        std::mem::take(&mut self.state().races)
    }

    /// Bytes that are not given back.
    pub(crate) fn used(&self) -> u64 {
        self.state().used[self.gpu]
    }

    /// How often all was waited for.
    pub(crate) fn synchronized(&self) -> usize {
        self.state().synchronized
    }

    /// How many graphs were captured, and how many of them are left.
    pub(crate) fn graphs(&self) -> (usize, usize) {
        let state = self.state();
        (state.captured, state.graphs.len())
    }

    /// From now on no capture succeeds.
    pub(crate) fn refuse_captures(&self) {
        self.state().refuses_captures = true;
    }

    /// The kernels that were loaded.
    pub(crate) fn programs(&self) -> Vec<Program> {
        self.state().programs.clone()
    }
}

/// What another process finds memory by: a file that says where it is.
fn descriptor_of(address: u64) -> Result<OwnedFd> {
    let made = rustix::fs::memfd_create("recording", rustix::fs::MemfdFlags::CLOEXEC).and_then(|file| {
        rustix::io::pwrite(&file, &address.to_le_bytes(), 0)?;
        Ok(file)
    });
    made.map_err(|error| Error::internal(error.to_string()))
}

fn found_by(descriptor: BorrowedFd<'_>) -> Result<u64> {
    let mut address = [0; 8];
    match rustix::io::pread(descriptor, &mut address, 0) {
        Ok(8) => Ok(u64::from_le_bytes(address)),
        other => Err(Error::internal(format!("no descriptor of shared memory: {other:?}"))),
    }
}

/// Two GPUs, in whichever order.
fn pair(one: usize, other: usize) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

impl Driver for Recording {
    fn memory(&self) -> Result<(u64, u64)> {
        Ok((self.total - self.used(), self.total))
    }

    fn create_stream(&self) -> Result<StreamId> {
        let mut state = self.state();
        // Streams are numbered in the order in which they are made.
        let id = state.streams.len() as u64;
        state.streams.insert(id, Clock::new());
        state.owners.insert(Owned::Stream(id), self.gpu);
        Ok(StreamId(id))
    }

    fn create_event(&self) -> Result<EventId> {
        let mut state = self.state();
        let id = state.fresh();
        state.owners.insert(Owned::Event(id), self.gpu);
        Ok(EventId(id))
    }

    fn destroy_event(&self, event: EventId) {
        self.state().events.remove(&event.0);
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.check("mark", self.gpu, Owned::Event(event.0));
        state.check("mark", self.gpu, Owned::Stream(stream.0));
        state.forbid_in_capture("a mark", stream.0);
        let clock = state.streams.get(&stream.0).cloned().unwrap_or_default();
        state.events.insert(event.0, clock);
        state.log.push(format!("mark {}", stream.0));
        Ok(())
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.state();
        state.check("wait", self.gpu, Owned::Stream(stream.0));
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

    fn wait_here(&self, event: EventId) -> Result<()> {
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
        state.check("allocate", self.gpu, Owned::Stream(stream.0));
        // Addresses are never used twice: a late use of freed memory shows.
        let address = state.fresh() << 32;
        let now = state.step(stream.0);
        let uses = Clock::from([(stream.0, now)]);
        // What it held before is nobody's: kernels that read it unwritten show in their results.
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
        state.check("free", self.gpu, Owned::Stream(stream.0));
        state.forbid_in_capture("memory given back", stream.0);
        state.touch("free", address.0, stream.0, Use::Write);
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

    fn share(&self, bytes: usize) -> Result<Option<Shared>> {
        let mut state = self.state();
        if state.used[self.gpu] + state.kept[self.gpu] + bytes as u64 > self.total {
            state.log.push(format!("no room to share {bytes}"));
            return Ok(None);
        }
        state.used[self.gpu] += bytes as u64;
        let address = state.fresh() << 32;
        // Nobody has written it: whoever does comes after nothing.
        let (uses, written) = (Clock::new(), (0, 0));
        state.memory.insert(address, Memory { bytes: vec![0xcd; bytes], gpu: self.gpu, uses, written });
        state.shared.insert(address, vec![self.gpu]);
        state.log.push(format!("share {bytes}"));
        Ok(Some(Shared { address: Address(address), descriptor: descriptor_of(address)? }))
    }

    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
        let mut state = self.state();
        let address = found_by(descriptor)?;
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

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned> {
        let mut memory = vec![0u8; bytes].into_boxed_slice();
        let address = memory.as_mut_ptr() as usize;
        self.state().pinned.insert(address, Hosted::Own(memory));
        Ok(Pinned { address, len: bytes })
    }

    fn free_pinned(&self, memory: Pinned) {
        self.state().take_back(memory, |hosted| matches!(hosted, Hosted::Own(_)));
    }

    fn pin(&self, memory: Pinned) -> Result<()> {
        self.state().pinned.insert(memory.address, Hosted::Pinned(memory));
        Ok(())
    }

    fn unpin(&self, memory: Pinned) {
        self.state().take_back(memory, |hosted| matches!(hosted, Hosted::Pinned(_)));
    }

    fn copy_in(&self, to: Address, from: Pinned, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.forbid_in_capture("a copy in", stream.0);
        state.touch("copy in", to.0, stream.0, Use::Write);
        let source = state.pinned.get_mut(&from.address).map(|memory| memory.bytes_mut()[..bytes].to_vec());
        let source = source.ok_or_else(|| Error::internal("a copy from memory that is not pinned"))?;
        let outcome = part(&mut state.memory, to.0, bytes).map(|part| part.copy_from_slice(&source));
        state.races.extend(outcome.err());
        state.log.push(format!("copy in {bytes} on {}", stream.0));
        Ok(())
    }

    fn copy_out(&self, to: Pinned, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.state();
        state.forbid_in_capture("a copy out", stream.0);
        state.touch("copy out", from.0, stream.0, Use::Read);
        let source = part_of(&state.memory, from.0, bytes).map_err(Error::internal)?.to_vec();
        let target = state.pinned.get_mut(&to.address);
        let target = target.ok_or_else(|| Error::internal("a copy to memory that is not pinned"))?;
        target.bytes_mut()[..bytes].copy_from_slice(&source);
        state.log.push(format!("copy out {bytes} on {}", stream.0));
        Ok(())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let work = Work {
            what: format!("copy {bytes}"),
            touches: vec![(from.0, Use::Read), (to.0, Use::Write)],
            effect: Effect::Copy { to: to.0, from: from.0, bytes },
        };
        self.enqueue(work, stream)
    }

    fn reach(&self, peer: &dyn Driver) -> Result<bool> {
        let peer = Recording::of(peer)?;
        let can = self.is_reachable && peer.is_reachable && Arc::ptr_eq(&self.state, &peer.state);
        if can {
            self.state().reached.insert(pair(self.gpu, peer.gpu));
        }
        Ok(can)
    }

    fn copy_to(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()> {
        let peer = Recording::of(peer)?.gpu;
        let mut state = self.state();
        state.check("copy to a peer", self.gpu, Owned::Stream(stream.0));
        state.touch("copy to a peer", from.0, stream.0, Use::Read);
        state.touch("copy to a peer", to.0, stream.0, Use::Write);
        let outcome = copy(&mut state.memory, to.0, from.0, bytes);
        state.races.extend(outcome.err());
        state.log.push(format!("copy {bytes} to GPU {peer} on {}", stream.0));
        Ok(())
    }

    /// Sums of `float` alone are computed.
    fn all_reduce(&self, what: &AllReduce, parts: &[Part<'_>]) -> Result<()> {
        let gpus: Vec<usize> =
            parts.iter().map(|part| Ok(Recording::of(part.driver)?.gpu)).collect::<Result<_>>()?;
        let mut state = self.state();
        if let Some(error) = &state.collectives_failure {
            return Err(error.clone());
        }
        let mut sum = vec![0.0f32; what.count];
        for (part, &gpu) in parts.iter().zip(&gpus) {
            state.check("all-reduce", gpu, Owned::Stream(part.stream.0));
            state.touch("all-reduce", part.from.0, part.stream.0, Use::Read);
            state.touch("all-reduce", part.to.0, part.stream.0, Use::Write);
            let bytes = state.memory.get(&part.from.0).map_or(&[][..], |memory| &memory.bytes);
            for (sum, bytes) in sum.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *sum += f32::from_ne_bytes(*bytes);
            }
        }
        for part in parts {
            if let Some(memory) = state.memory.get_mut(&part.to.0) {
                let bytes = sum.iter().flat_map(|x| x.to_ne_bytes());
                memory.bytes.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
        }
        state.log.push(format!("{:?} of {} {} on GPUs {gpus:?}", what.reduction, what.count, what.dtype));
        Ok(())
    }

    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()> {
        let work = Work {
            what: format!("fill {bytes}"),
            touches: vec![(to.0, Use::Write)],
            effect: Effect::Fill { to: to.0, byte, bytes },
        };
        self.enqueue(work, stream)
    }

    fn load(&self, program: &Program) -> Result<FunctionId> {
        let kernel = self.computes.then(|| compiler::kernel(program)).transpose()?;
        let mut state = self.state();
        let id = state.programs.len() as u64;
        state.programs.push(program.clone());
        state.kernels.extend(kernel.map(|kernel| (id, kernel)));
        Ok(FunctionId(id))
    }

    /// A kernel may write all memory whose address it is given.
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
        // Element-wise kernels write where their last address is; of others nobody knows.
        let is_elementwise = ["map<", "zip<", "zip_axes<"].iter().any(|kind| name.starts_with(kind));
        let how = |at: usize| match is_elementwise {
            true if at == last => Use::Write,
            true => Use::Read,
            false => Use::Either,
        };
        let touches = addresses.iter().enumerate().map(|(at, address)| (*address, how(at)));
        let kernel = state.kernels.get(&function.0).cloned();
        let grid = Grid { blocks: grid.blocks.min(self.most_blocks), ..grid };
        let effect = kernel.map_or(Effect::Unknown, |kernel| Effect::Kernel(kernel, grid, arguments.clone()));
        let work = Work { what: name, touches: touches.collect(), effect };
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
        let mut touches = vec![(product.a.0, Use::Read), (product.b.0, Use::Read), (product.c.0, Use::Write)];
        touches.extend(bias.map(|bias| (bias.0, Use::Read)));
        let work = Work {
            what: format!("product {m} {n} {k} x {count} {flips:?} {steps:?}{then}"),
            touches,
            effect: if self.computes { Effect::Product(product.clone()) } else { Effect::Unknown },
        };
        self.enqueue(work, stream)
    }

    /// As cuDNN, which has no gradients of dilated convolutions of doubles whose channels come last.
    fn convolution_workspace(&self, of: &Convolution, _: StreamId) -> Result<Option<WorkspaceBytes>> {
        let is_lacking = of.direction != Direction::Forward
            && of.dtype == DType::Double
            && of.dilations != [1, 1]
            && of.input.channels_last;
        Ok((!is_lacking).then_some(WorkspaceBytes { wanted: self.workspace, needed: WORKSPACE }))
    }

    fn convolve(&self, convolution: &Convolution, at: &ConvolutionAt, stream: StreamId) -> Result<()> {
        let used = [at.input, at.filter, at.output].into_iter().chain(at.workspace.map(|space| space.0));
        let Convolution { direction, input, filter, output, padding, .. } = convolution;
        let (x, y, bytes) = (input.sizes, output.sizes, at.workspace.map_or(0, |(_, bytes)| bytes));
        let work = Work {
            what: format!("{direction:?} {x:?} {filter:?} {y:?} {padding:?} in {bytes} bytes"),
            touches: used.map(|address| (address.0, Use::Either)).collect(),
            effect: if self.computes {
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
