//! The CUDA driver, called through cudarc's bindings. Each library is checked before the first call into it.

mod blas;
mod blas_lt;
mod candidates;
mod collectives;
mod communicators;
mod compiler;
mod dnn;
mod exit;
mod ipc;
mod peers;
mod stopwatch;
mod workspace;

pub use compiler::{Compiled, compile};

use super::arguments::Arguments;
use super::driver::{
    Address, AllReduce, AllReducePart, CallProgress, CommunicatorId, Convolution, ConvolutionMemory, Driver,
    EventId, FunctionId, GraphId, Grid, IpcMemory, PinnedMemory, Product, StreamId, WorkspaceBytes,
};
use super::gpu_list::Gpu;
use super::library;
use super::program::Program;
use blas::Blas;
use blas_lt::BlasLt;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use device::device_collectives::CommunicatorPlace;
use device::{Error, Result};
use dnn::Dnn;
use graph::Code;
use parking_lot::Mutex;
use peers::Peers;
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// Returns the machine's GPUs.
///
/// # Errors
/// `Unavailable` if the driver finds no GPU.
pub(super) fn list() -> Result<Vec<Gpu>> {
    let none = |error: DriverError| Error::new(Code::Unavailable, format!("the driver says {}", name(error)));
    result::init().map_err(none)?;
    let count = result::device::get_count().map_err(none)?;
    if count <= 0 {
        return Err(Error::new(Code::Unavailable, "the driver sees no GPU"));
    }
    (0..count).map(|number| describe(number).map_err(none)).collect()
}

/// Returns the properties of a GPU.
fn describe(number: c_int) -> Result<Gpu, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let device = result::device::get(number)?;
    let mut bus = [0; 32];
    // SAFETY: `device` comes from the driver, and the driver is told the length of `bus`.
    let (memory, major, minor) = unsafe {
        sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int - 1, device).result()?;
        (
            result::device::total_mem(device)?,
            result::device::get_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            result::device::get_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        )
    };
    // SAFETY: the last byte of `bus` is not written and still 0.
    let bus = unsafe { CStr::from_ptr(bus.as_ptr()) }.to_string_lossy().to_lowercase();
    Ok(Gpu {
        number: number as u32,
        name: result::device::get_name(device)?,
        memory: memory as u64,
        capability: [major as u32, minor as u32],
        bus,
    })
}

/// Returns CUDA's name of an error.
fn name(error: DriverError) -> String {
    error.error_name().map_or_else(|_| format!("error {:?}", error.0), |n| n.to_string_lossy().into_owned())
}

/// One GPU, driven by CUDA in its primary context, which the whole process shares.
#[derive(Debug)]
pub(super) struct Nvidia {
    device: sys::CUdevice,
    context: Context,
    /// Compute capability as two digits, such as `90`.
    architecture: u32,
    /// Number of the GPU on the machine, for error messages.
    number: u32,
    /// PCI bus id, such as `0000:17:00.0`.
    bus: String,
    owned: Mutex<OwnedObjects>,
    peers: Peers,
    /// True if the libraries' algorithms are timed to find the fastest.
    autotunes: bool,
    /// cuBLAS, opened for the first product that cuBLASLt does not support.
    blas: OnceLock<Result<Mutex<Blas>>>,
    /// cuBLASLt, opened for the first product.
    blas_lt: OnceLock<Result<Mutex<BlasLt>>>,
    /// cuDNN, opened for the first convolution.
    dnn: OnceLock<Result<Mutex<Dnn>>>,
}

/// The streams and modules that are destroyed before the context is released.
#[derive(Debug, Default)]
struct OwnedObjects {
    streams: Vec<u64>,
    /// The streams in which captures have begun; work is only captured in these streams, never run.
    capturing: Vec<u64>,
    modules: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Context(sys::CUcontext);

// SAFETY: any thread may use a CUDA context after making it current.
unsafe impl Send for Context {}
// SAFETY: any thread may use a CUDA context, and the driver locks internally.
unsafe impl Sync for Context {}

impl Nvidia {
    /// Opens a GPU.
    ///
    /// # Errors
    /// `Unavailable` if the driver is missing or cannot open the GPU; `Internal` for other failed calls.
    pub(super) fn open(number: u32, autotunes: bool) -> Result<Nvidia> {
        library::DRIVER.check()?;
        let failed = |what: &'static str| {
            move |error: DriverError| {
                Error::new(Code::Unavailable, format!("GPU {number}: {what} failed: {}", name(error)))
            }
        };
        result::init().map_err(failed("cuInit"))?;
        let device = result::device::get(number as c_int).map_err(failed("cuDeviceGet"))?;
        // SAFETY: the device comes from the driver; the context is released when this value is dropped.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = Context(context.map_err(failed("cuDevicePrimaryCtxRetain"))?);
        let found = describe(number as c_int).map_err(failed("its description"))?;
        let gpu = Nvidia {
            device,
            context,
            architecture: found.capability[0] * 10 + found.capability[1],
            number,
            bus: found.bus,
            owned: Mutex::default(),
            peers: Peers::default(),
            autotunes,
            blas: OnceLock::new(),
            blas_lt: OnceLock::new(),
            dnn: OnceLock::new(),
        };
        let _guard = gpu.enter()?;
        exit::register_exit_handler(&library::DRIVER);
        // The pool keeps freed memory for reuse until `trim`.
        // SAFETY: the pool belongs to the device; the value has the attribute's type.
        unsafe {
            let pool = gpu.pool()?;
            let mut keep = u64::MAX;
            let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let set = result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast());
            gpu.check("cuMemPoolSetAttribute", set)?;
        }
        Ok(gpu)
    }

    /// Casts a driver to `Nvidia`; all drivers outside tests are of this type.
    fn of(driver: &dyn Driver) -> Result<&Nvidia> {
        let any: &dyn Any = driver;
        any.downcast_ref().ok_or_else(|| Error::internal(format!("{driver:?} is no GPU of NVIDIA")))
    }

    /// Returns the driver's memory pool from which stream-ordered allocations come.
    fn pool(&self) -> Result<sys::CUmemoryPool> {
        // SAFETY: the device comes from the driver.
        let pool = unsafe { result::device::get_default_mem_pool(self.device) };
        self.check("cuDeviceGetDefaultMemPool", pool)
    }

    /// Returns the description of this GPU as a location of memory.
    fn location(&self) -> sys::CUmemLocation {
        let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_, id: self.number as c_int }
    }

    /// Returns the description of read and write access by this GPU.
    fn access(&self) -> sys::CUmemAccessDesc {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        sys::CUmemAccessDesc { location: self.location(), flags }
    }

    /// Makes the GPU's context current in this thread. While the returned guard is alive, the process does not
    /// end.
    fn enter(&self) -> Result<exit::CallGuard> {
        let guard = exit::enter()?;
        // SAFETY: the context lives as long as this value.
        self.check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context.0) })?;
        Ok(guard)
    }

    fn check<T>(&self, call: &str, result: Result<T, DriverError>) -> Result<T> {
        result
            .map_err(|error| Error::internal(format!("GPU {}: {call} failed: {}", self.number, name(error))))
    }

    /// Returns `stream` if algorithms may be timed in it; `None` for a stream that captures, because work in it
    /// does not run.
    fn timing_stream(&self, stream: StreamId) -> Option<StreamId> {
        (self.autotunes && !self.owned.lock().capturing.contains(&stream.0)).then_some(stream)
    }

    fn blas(&self) -> Result<&Mutex<Blas>> {
        let opened = self.blas.get_or_init(|| opened(&library::BLAS, Blas::open(self.architecture)));
        opened.as_ref().map_err(Error::clone)
    }

    fn blas_lt(&self) -> Result<&Mutex<BlasLt>> {
        let opened = self.blas_lt.get_or_init(|| opened(&library::BLAS_LT, BlasLt::open(self.architecture)));
        opened.as_ref().map_err(Error::clone)
    }

    fn dnn(&self) -> Result<&Mutex<Dnn>> {
        let opened = self.dnn.get_or_init(|| opened(&library::DNN, Dnn::open()));
        opened.as_ref().map_err(Error::clone)
    }
}

/// Wraps a library's handle and registers the exit handler for the library.
fn opened<T>(library: &library::Library, handle: Result<T>) -> Result<Mutex<T>> {
    exit::register_exit_handler(library);
    handle.map(Mutex::new)
}

fn stream_of(stream: StreamId) -> sys::CUstream {
    stream.0 as sys::CUstream
}

fn event_of(event: EventId) -> sys::CUevent {
    event.0 as sys::CUevent
}

// SAFETY of the calls below: streams, events, functions, graphs and memory were created by this driver, and the
// caller keeps them alive until the streams have passed their use (the contract of `Driver`).
impl Driver for Nvidia {
    fn memory(&self) -> Result<(u64, u64)> {
        let _guard = self.enter()?;
        let (free, total) = self.check("cuMemGetInfo", result::mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    fn create_stream(&self) -> Result<StreamId> {
        let _guard = self.enter()?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = self.check("cuStreamCreate", result::stream::create(kind))? as u64;
        self.owned.lock().streams.push(stream);
        Ok(StreamId(stream))
    }

    fn create_event(&self) -> Result<EventId> {
        let _guard = self.enter()?;
        // Threads that wait for the event sleep, and the event records no time.
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: the call writes the new event's handle.
        self.check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) }.result())?;
        Ok(EventId(event as u64))
    }

    fn destroy_event(&self, event: EventId) {
        if let Ok(_guard) = self.enter() {
            // SAFETY: see the comment before the impl block.
            let _ = unsafe { result::event::destroy(event_of(event)) };
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block.
        self.check("cuEventRecord", unsafe { result::event::record(event_of(event), stream_of(stream)) })
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _guard = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see the comment before the impl block.
        let waits = unsafe { result::stream::wait_event(stream_of(stream), event_of(event), flags) };
        self.check("cuStreamWaitEvent", waits)
    }

    fn wait_on_host(&self, event: EventId) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block.
        self.check("cuEventSynchronize", unsafe { result::event::synchronize(event_of(event)) })
    }

    fn synchronize(&self) -> Result<()> {
        let _guard = self.enter()?;
        // During a capture CUDA allows waiting neither for the capturing stream nor for the whole context.
        let streams = {
            let owned = self.owned.lock();
            let runs = |stream: &u64| !owned.capturing.contains(stream);
            owned.streams.iter().copied().filter(runs).collect::<SmallVec<[u64; 4]>>()
        };
        for stream in streams {
            // SAFETY: see the comment before the impl block.
            let waited = unsafe { result::stream::synchronize(stream as sys::CUstream) };
            self.check("cuStreamSynchronize", waited)?;
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block.
        match unsafe { result::malloc_async(stream_of(stream), bytes) } {
            Ok(address) => Ok(Some(Address(address))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => self.check("cuMemAllocAsync", Err(error)),
        }
    }

    fn free(&self, address: Address, stream: StreamId) {
        // An error is ignored, because it means that the context is broken, and its memory is lost with it.
        if address.0 != 0
            && let Ok(_guard) = self.enter()
        {
            // SAFETY: see the comment before the impl block.
            let _ = unsafe { result::free_async(address.0, stream_of(stream)) };
        }
    }

    fn trim(&self) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: the pool belongs to the device.
        unsafe {
            let pool = self.pool()?;
            self.check("cuMemPoolTrimTo", result::mem_pool::trim_to(pool, 0))
        }
    }

    fn share(&self, bytes: usize) -> Result<Option<IpcMemory>> {
        let _guard = self.enter()?;
        ipc::share(self, bytes)
    }

    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
        let _guard = self.enter()?;
        ipc::map(self, descriptor, bytes)
    }

    fn unmap(&self, address: Address, bytes: usize) {
        if let Ok(_guard) = self.enter() {
            ipc::unmap(address, bytes);
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedMemory> {
        let _guard = self.enter()?;
        // SAFETY: `free_pinned` frees the memory.
        let memory = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = self.check("cuMemHostAlloc", memory)?.cast::<u8>();
        // SAFETY: the allocation has `bytes` bytes. They are initialised because safe code may read them before
        // it writes them.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(PinnedMemory { address: memory as usize, len: bytes })
    }

    fn free_pinned(&self, memory: PinnedMemory) {
        if let Ok(_guard) = self.enter() {
            // SAFETY: see the comment before the impl block.
            let _ = unsafe { result::free_host(memory.address as *mut c_void) };
        }
    }

    fn pin(&self, memory: PinnedMemory) -> Result<()> {
        let _guard = self.enter()?;
        let address = memory.address as *mut c_void;
        // SAFETY: the memory is not moved or freed before `unpin`.
        let pinned =
            unsafe { sys::cuMemHostRegister_v2(address, memory.len, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        self.check("cuMemHostRegister", pinned.result())
    }

    fn unpin(&self, memory: PinnedMemory) {
        if let Ok(_guard) = self.enter() {
            // SAFETY: see the comment before the impl block.
            let _ = unsafe { sys::cuMemHostUnregister(memory.address as *mut c_void) };
        }
    }

    fn copy_in(&self, to: Address, from: PinnedMemory, bytes: usize, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        let from = from.address as *const c_void;
        // SAFETY: see the comment before the impl block.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from, bytes, stream_of(stream)) };
        self.check("cuMemcpyHtoDAsync", copied.result())
    }

    fn copy_out(&self, to: PinnedMemory, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        let to = to.address as *mut c_void;
        // SAFETY: see the comment before the impl block.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from.0, bytes, stream_of(stream)) };
        self.check("cuMemcpyDtoHAsync", copied.result())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block.
        let copied = unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, stream_of(stream)) };
        self.check("cuMemcpyDtoDAsync", copied)
    }

    fn enable_peer_access(&self, peer: &dyn Driver) -> Result<bool> {
        self.peers.enable_peer_access(self, Nvidia::of(peer)?)
    }

    fn copy_to_peer(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()> {
        let there = Nvidia::of(peer)?.context.0;
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block; both contexts live as long as their drivers.
        let copied = unsafe {
            result::memcpy_peer_async(there, to.0, self.context.0, from.0, bytes, stream_of(stream))
        };
        self.check("cuMemcpyPeerAsync", copied)
    }

    fn all_reduce(&self, operation: &AllReduce, parts: &[AllReducePart<'_>]) -> Result<()> {
        let _guard = exit::enter()?;
        collectives::all_reduce(operation, parts)
    }

    fn communicator_identity(&self) -> Result<String> {
        communicators::check()?;
        communicators::identity(&self.bus)
    }

    fn create_communicator_key(&self) -> Result<Vec<u8>> {
        let _guard = self.enter()?;
        communicators::create_key()
    }

    fn connect_communicator(&self, place: &CommunicatorPlace) -> Result<CommunicatorId> {
        let _guard = self.enter()?;
        communicators::connect(place)
    }

    fn communicator_progress(&self, communicator: CommunicatorId) -> Result<CallProgress> {
        let _guard = self.enter()?;
        communicators::progress(communicator)
    }

    fn all_reduce_of_members(
        &self,
        communicator: CommunicatorId,
        operation: &AllReduce,
        from: Address,
        to: Address,
        stream: StreamId,
    ) -> Result<()> {
        let _guard = self.enter()?;
        communicators::all_reduce(communicator, operation, [from, to], stream)
    }

    fn abort_communicator(&self, communicator: CommunicatorId) {
        if let Ok(_guard) = self.enter() {
            communicators::abort(communicator);
        }
    }

    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block.
        let filled = unsafe { result::memset_d8_async(to.0, byte, bytes, stream_of(stream)) };
        self.check("cuMemsetD8Async", filled)
    }

    fn load(&self, program: &Program) -> Result<FunctionId> {
        let compiled = compiler::compile_cached(program, &format!("sm_{}", self.architecture))?;
        let _guard = self.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is complete, and the driver copies it.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, compiled.code.as_ptr().cast()) };
        self.check("cuModuleLoadData", loaded.result())?;
        self.owned.lock().modules.push(module as u64);
        let mut function = std::ptr::null_mut();
        // SAFETY: the name ends with 0; the module stays loaded as long as this value lives.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, compiled.name.as_ptr()) };
        self.check("cuModuleGetFunction", found.result())?;
        Ok(FunctionId(function as u64))
    }

    fn launch(
        &self,
        function: FunctionId,
        grid: Grid,
        arguments: &Arguments,
        stream: StreamId,
    ) -> Result<()> {
        let _guard = self.enter()?;
        let mut addresses: SmallVec<[*mut c_void; 12]> =
            arguments.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        // SAFETY: see the comment before the impl block; the driver reads each argument, in the size that the
        // kernel declares, before it returns.
        let launched = unsafe {
            result::launch_kernel(
                function.0 as sys::CUfunction,
                (grid.blocks, 1, 1),
                (grid.threads, 1, 1),
                grid.shared,
                stream_of(stream),
                &mut addresses,
            )
        };
        self.check("cuLaunchKernel", launched)
    }

    fn product(&self, product: &Product, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        let timing_stream = self.timing_stream(stream);
        let cannot = |why: &str| Error::unimplemented(format!("a product with what follows it: {why}"));
        let done = match self.blas_lt() {
            Ok(blas_lt) => blas_lt.lock().multiply(product, stream, timing_stream)?,
            Err(error) if product.epilogue.is_some() => return Err(cannot(&error.to_string())),
            Err(_) => false,
        };
        match (done, &product.epilogue) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(cannot("no algorithm")),
            (false, None) => self.blas()?.lock().multiply(product, stream),
        }
    }

    fn convolution_workspace(
        &self,
        convolution: &Convolution,
        stream: StreamId,
    ) -> Result<Option<WorkspaceBytes>> {
        let _guard = self.enter()?;
        self.dnn()?.lock().workspace(convolution, self.timing_stream(stream).is_some())
    }

    fn convolve(&self, convolution: &Convolution, at: &ConvolutionMemory, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        self.dnn()?.lock().convolve(convolution, at, stream, self.timing_stream(stream))
    }

    fn begin_capture(&self, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        {
            let mut owned = self.owned.lock();
            if !owned.capturing.contains(&stream.0) {
                owned.capturing.push(stream.0);
            }
        }
        // In relaxed mode this thread may allocate memory during the capture, and other threads may load
        // kernels and open libraries.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: see the comment before the impl block.
        self.check("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream_of(stream), mode) })
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block; a failed capture ends as well and leaves no graph.
        let graph =
            self.check("cuStreamEndCapture", unsafe { result::stream::end_capture(stream_of(stream)) })?;
        if graph.is_null() {
            return Err(Error::internal(format!("GPU {}: nothing was captured", self.number)));
        }
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was created by this call; it is instantiated, then destroyed.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            let _ = result::graph::destroy(graph);
            made
        };
        self.check("cuGraphInstantiate", made.result())?;
        Ok(GraphId(executable as u64))
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: see the comment before the impl block; the caller has exclusive use of the graph.
        let launched = unsafe { result::graph::launch(graph.0 as sys::CUgraphExec, stream_of(stream)) };
        self.check("cuGraphLaunch", launched)
    }

    fn destroy_graph(&self, graph: GraphId) {
        if let Ok(_guard) = self.enter() {
            // SAFETY: see the comment before the impl block; CUDA destroys a running graph when it has run.
            let _ = unsafe { result::graph::exec_destroy(graph.0 as sys::CUgraphExec) };
        }
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // At the end of the process the driver frees everything.
        let Ok(_guard) = self.enter() else { return };
        // The libraries' handles are destroyed before the streams and the context that they use.
        self.blas.take();
        self.blas_lt.take();
        self.dnn.take();
        let owned = std::mem::take(&mut *self.owned.lock());
        // SAFETY: the objects have no other users; `release` drops this value's reference to the context.
        unsafe {
            for stream in owned.streams {
                let _ = result::stream::destroy(stream as sys::CUstream);
            }
            for module in owned.modules {
                let _ = result::module::unload(module as sys::CUmodule);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
