//! CUDA, by cudarc's bindings. Every library is checked before the first call into it.

mod blas;
mod collectives;
mod compiler;
mod dnn;
mod exit;
mod light;
mod peers;
mod shares;
mod stopwatch;
mod ways;
mod workspace;

pub use compiler::compile;

use super::arguments::Arguments;
use super::driver::{
    Address, AllReduce, Convolution, ConvolutionAt, Driver, EventId, FunctionId, GraphId, Grid, Part, Pinned,
    Product, Shared, StreamId, WorkspaceBytes,
};
use super::library;
use super::machine::Gpu;
use super::program::Program;
use blas::Blas;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use device::{Error, Result};
use dnn::Dnn;
use graph::Code;
use light::Light;
use parking_lot::Mutex;
use peers::Peers;
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// The machine's GPUs.
///
/// # Errors
/// `Unavailable`: the driver has none.
pub(super) fn list() -> Result<Vec<Gpu>> {
    let none = |error: DriverError| Error::new(Code::Unavailable, format!("the driver says {}", name(error)));
    result::init().map_err(none)?;
    let count = result::device::get_count().map_err(none)?;
    if count <= 0 {
        return Err(Error::new(Code::Unavailable, "the driver sees no GPU"));
    }
    (0..count).map(|number| describe(number).map_err(none)).collect()
}

fn describe(number: c_int) -> Result<Gpu, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let device = result::device::get(number)?;
    let mut bus = [0; 32];
    // SAFETY: `device` is one that the driver has just named, and `bus` is as long as is said.
    let (memory, major, minor) = unsafe {
        sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int - 1, device).result()?;
        (
            result::device::total_mem(device)?,
            result::device::get_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            result::device::get_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        )
    };
    // SAFETY: the last byte is still 0.
    let bus = unsafe { CStr::from_ptr(bus.as_ptr()) }.to_string_lossy().to_lowercase();
    Ok(Gpu {
        number: number as u32,
        name: result::device::get_name(device)?,
        memory: memory as u64,
        capability: [major as u32, minor as u32],
        bus,
    })
}

/// The name of a failure, as CUDA's documents have it.
fn name(error: DriverError) -> String {
    error.error_name().map_or_else(|_| format!("error {:?}", error.0), |n| n.to_string_lossy().into_owned())
}

/// One GPU by way of CUDA. Its context is that of the whole process for the GPU.
#[derive(Debug)]
pub(super) struct Nvidia {
    device: sys::CUdevice,
    context: Context,
    /// `90`.
    architecture: u32,
    /// What the GPU's own name adds to failures: `GPU 0`.
    number: u32,
    owned: Mutex<Owned>,
    peers: Peers,
    /// Whether the libraries' algorithms are tried, and the fastest taken.
    autotunes: bool,
    /// Opened at the first product that cuBLASLt has no way for, the first product, and the first convolution.
    blas: OnceLock<Result<Mutex<Blas>>>,
    light: OnceLock<Result<Mutex<Light>>>,
    dnn: OnceLock<Result<Mutex<Dnn>>>,
}

/// What is destroyed with the context.
#[derive(Debug, Default)]
struct Owned {
    streams: Vec<u64>,
    /// Those of them in which work has been captured: they run none themselves.
    capturing: Vec<u64>,
    modules: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Context(sys::CUcontext);

// SAFETY: CUDA contexts may be used by any thread, each of which makes them its current one first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Context {}

impl Nvidia {
    /// # Errors
    /// `Unavailable` without the driver, and the driver's own.
    pub(super) fn open(number: u32, autotunes: bool) -> Result<Nvidia> {
        library::DRIVER.check()?;
        let failed = |what: &'static str| {
            move |error: DriverError| {
                Error::new(Code::Unavailable, format!("GPU {number}: {what} failed: {}", name(error)))
            }
        };
        result::init().map_err(failed("cuInit"))?;
        let device = result::device::get(number as c_int).map_err(failed("cuDeviceGet"))?;
        // SAFETY: the device is the driver's; the context is released when this value is dropped.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = Context(context.map_err(failed("cuDevicePrimaryCtxRetain"))?);
        let found = describe(number as c_int).map_err(failed("its description"))?;
        let gpu = Nvidia {
            device,
            context,
            architecture: found.capability[0] * 10 + found.capability[1],
            number,
            owned: Mutex::default(),
            peers: Peers::default(),
            autotunes,
            blas: OnceLock::new(),
            light: OnceLock::new(),
            dnn: OnceLock::new(),
        };
        let _entered = gpu.enter()?;
        exit::prepare(&library::DRIVER);
        // What is freed is kept for reuse, until `trim`.
        // SAFETY: the pool is the device's own; the value is of the type that the attribute has.
        unsafe {
            let pool = gpu.pool()?;
            let mut keep = u64::MAX;
            let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let set = result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast());
            gpu.check("cuMemPoolSetAttribute", set)?;
        }
        Ok(gpu)
    }

    /// A GPU that is driven by CUDA, as all of a process are.
    fn of(driver: &dyn Driver) -> Result<&Nvidia> {
        let any: &dyn Any = driver;
        any.downcast_ref().ok_or_else(|| Error::internal(format!("{driver:?} is no GPU of NVIDIA")))
    }

    /// What its memory is taken from.
    fn pool(&self) -> Result<sys::CUmemoryPool> {
        // SAFETY: the device is the driver's.
        let pool = unsafe { result::device::get_default_mem_pool(self.device) };
        self.check("cuDeviceGetDefaultMemPool", pool)
    }

    fn location(&self) -> sys::CUmemLocation {
        let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_, id: self.number as c_int }
    }

    /// That this GPU may use some memory.
    fn access(&self) -> sys::CUmemAccessDesc {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        sys::CUmemAccessDesc { location: self.location(), flags }
    }

    /// Makes the GPU's context this thread's, for calls that are through before the process ends.
    fn enter(&self) -> Result<exit::Entered> {
        let entered = exit::enter()?;
        // SAFETY: the context lives as long as this value.
        self.check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context.0) })?;
        Ok(entered)
    }

    fn check<T>(&self, call: &str, result: Result<T, DriverError>) -> Result<T> {
        result
            .map_err(|error| Error::internal(format!("GPU {}: {call} failed: {}", self.number, name(error))))
    }

    /// The stream, if work that it is given may be tried there: if it runs.
    fn trying(&self, stream: StreamId) -> Option<StreamId> {
        (self.autotunes && !self.owned.lock().capturing.contains(&stream.0)).then_some(stream)
    }

    fn blas(&self) -> Result<&Mutex<Blas>> {
        let opened = self.blas.get_or_init(|| opened(&library::BLAS, Blas::open(self.architecture)));
        opened.as_ref().map_err(Error::clone)
    }

    fn light(&self) -> Result<&Mutex<Light>> {
        let opened = self.light.get_or_init(|| opened(&library::LIGHT_BLAS, Light::open(self.architecture)));
        opened.as_ref().map_err(Error::clone)
    }

    fn dnn(&self) -> Result<&Mutex<Dnn>> {
        let opened = self.dnn.get_or_init(|| opened(&library::DNN, Dnn::open()));
        opened.as_ref().map_err(Error::clone)
    }
}

/// A library's handle, for calls until the process ends.
fn opened<T>(library: &library::Library, handle: Result<T>) -> Result<Mutex<T>> {
    exit::prepare(library);
    handle.map(Mutex::new)
}

fn stream_of(stream: StreamId) -> sys::CUstream {
    stream.0 as sys::CUstream
}

fn event_of(event: EventId) -> sys::CUevent {
    event.0 as sys::CUevent
}

// SAFETY of the calls below: streams, events, functions, graphs and memory are what this driver gave out, and whoever
// calls keeps them alive until the streams have passed their use (the contract of `Driver`).
impl Driver for Nvidia {
    fn memory(&self) -> Result<(u64, u64)> {
        let _entered = self.enter()?;
        let (free, total) = self.check("cuMemGetInfo", result::mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    fn create_stream(&self) -> Result<StreamId> {
        let _entered = self.enter()?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = self.check("cuStreamCreate", result::stream::create(kind))? as u64;
        self.owned.lock().streams.push(stream);
        Ok(StreamId(stream))
    }

    fn create_event(&self) -> Result<EventId> {
        let _entered = self.enter()?;
        // Waiting threads sleep; nobody asks an event for its time.
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: writes the new event's handle.
        self.check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) }.result())?;
        Ok(EventId(event as u64))
    }

    fn destroy_event(&self, event: EventId) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: see above the block.
            let _ = unsafe { result::event::destroy(event_of(event)) };
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: see above the block.
        self.check("cuEventRecord", unsafe { result::event::record(event_of(event), stream_of(stream)) })
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _entered = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see above the block.
        let waits = unsafe { result::stream::wait_event(stream_of(stream), event_of(event), flags) };
        self.check("cuStreamWaitEvent", waits)
    }

    fn wait_here(&self, event: EventId) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: see above the block.
        self.check("cuEventSynchronize", unsafe { result::event::synchronize(event_of(event)) })
    }

    fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // While a stream captures, neither it nor the context as a whole may be waited for.
        let streams = {
            let owned = self.owned.lock();
            let runs = |stream: &u64| !owned.capturing.contains(stream);
            owned.streams.iter().copied().filter(runs).collect::<SmallVec<[u64; 4]>>()
        };
        for stream in streams {
            // SAFETY: see above the block.
            let waited = unsafe { result::stream::synchronize(stream as sys::CUstream) };
            self.check("cuStreamSynchronize", waited)?;
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>> {
        let _entered = self.enter()?;
        // SAFETY: see above the block.
        match unsafe { result::malloc_async(stream_of(stream), bytes) } {
            Ok(address) => Ok(Some(Address(address))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => self.check("cuMemAllocAsync", Err(error)),
        }
    }

    fn free(&self, address: Address, stream: StreamId) {
        // A context that is broken takes its memory along.
        if address.0 != 0
            && let Ok(_entered) = self.enter()
        {
            // SAFETY: see above the block.
            let _ = unsafe { result::free_async(address.0, stream_of(stream)) };
        }
    }

    fn trim(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the pool is the device's own.
        unsafe {
            let pool = self.pool()?;
            self.check("cuMemPoolTrimTo", result::mem_pool::trim_to(pool, 0))
        }
    }

    fn share(&self, bytes: usize) -> Result<Option<Shared>> {
        let _entered = self.enter()?;
        shares::share(self, bytes)
    }

    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
        let _entered = self.enter()?;
        shares::map(self, descriptor, bytes)
    }

    fn unmap(&self, address: Address, bytes: usize) {
        if let Ok(_entered) = self.enter() {
            shares::unmap(address, bytes);
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned> {
        let _entered = self.enter()?;
        // SAFETY: the memory is given back by `free_pinned`.
        let memory = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = self.check("cuMemHostAlloc", memory)?.cast::<u8>();
        // SAFETY: of so many bytes. Memory that is read before it is written must still hold something.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Pinned { address: memory as usize, len: bytes })
    }

    fn free_pinned(&self, memory: Pinned) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: see above the block.
            let _ = unsafe { result::free_host(memory.address as *mut c_void) };
        }
    }

    fn pin(&self, memory: Pinned) -> Result<()> {
        let _entered = self.enter()?;
        let address = memory.address as *mut c_void;
        // SAFETY: the memory stays where it is until `unpin`.
        let pinned =
            unsafe { sys::cuMemHostRegister_v2(address, memory.len, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        self.check("cuMemHostRegister", pinned.result())
    }

    fn unpin(&self, memory: Pinned) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: see above the block.
            let _ = unsafe { sys::cuMemHostUnregister(memory.address as *mut c_void) };
        }
    }

    fn copy_in(&self, to: Address, from: Pinned, bytes: usize, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        let from = from.address as *const c_void;
        // SAFETY: see above the block.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from, bytes, stream_of(stream)) };
        self.check("cuMemcpyHtoDAsync", copied.result())
    }

    fn copy_out(&self, to: Pinned, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        let to = to.address as *mut c_void;
        // SAFETY: see above the block.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from.0, bytes, stream_of(stream)) };
        self.check("cuMemcpyDtoHAsync", copied.result())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: see above the block.
        let copied = unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, stream_of(stream)) };
        self.check("cuMemcpyDtoDAsync", copied)
    }

    fn reach(&self, peer: &dyn Driver) -> Result<bool> {
        self.peers.reach(self, Nvidia::of(peer)?)
    }

    fn copy_to(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()> {
        let there = Nvidia::of(peer)?.context.0;
        let _entered = self.enter()?;
        // SAFETY: see above the block; both contexts live as long as their drivers.
        let copied = unsafe {
            result::memcpy_peer_async(there, to.0, self.context.0, from.0, bytes, stream_of(stream))
        };
        self.check("cuMemcpyPeerAsync", copied)
    }

    fn all_reduce(&self, what: &AllReduce, parts: &[Part<'_>]) -> Result<()> {
        let _entered = exit::enter()?;
        collectives::all_reduce(what, parts)
    }

    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: see above the block.
        let filled = unsafe { result::memset_d8_async(to.0, byte, bytes, stream_of(stream)) };
        self.check("cuMemsetD8Async", filled)
    }

    fn load(&self, program: &Program) -> Result<FunctionId> {
        let compiled = compiler::compile_cached(program, &format!("sm_{}", self.architecture))?;
        let _entered = self.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is whole, and the driver copies it.
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
        let _entered = self.enter()?;
        let mut addresses: SmallVec<[*mut c_void; 12]> =
            arguments.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        // SAFETY: see above the block; the driver reads each argument, in the size that the kernel declares, before
        // it returns.
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
        let _entered = self.enter()?;
        let trying = self.trying(stream);
        let cannot = |why: &str| Error::unimplemented(format!("a product with what follows it: {why}"));
        let done = match self.light() {
            Ok(light) => light.lock().multiply(product, stream, trying)?,
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
        let _entered = self.enter()?;
        self.dnn()?.lock().workspace(convolution, self.trying(stream).is_some())
    }

    fn convolve(&self, convolution: &Convolution, at: &ConvolutionAt, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        self.dnn()?.lock().convolve(convolution, at, stream, self.trying(stream))
    }

    fn begin_capture(&self, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        {
            let mut owned = self.owned.lock();
            if !owned.capturing.contains(&stream.0) {
                owned.capturing.push(stream.0);
            }
        }
        // Relaxed: meanwhile this thread takes memory, and others load kernels and open what they need.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: see above the block.
        self.check("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream_of(stream), mode) })
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId> {
        let _entered = self.enter()?;
        // SAFETY: see above the block; a capture that has failed ends as well, and leaves no graph.
        let graph =
            self.check("cuStreamEndCapture", unsafe { result::stream::end_capture(stream_of(stream)) })?;
        if graph.is_null() {
            return Err(Error::internal(format!("GPU {}: nothing was captured", self.number)));
        }
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is the driver's own, and this call's: it is copied, then destroyed.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            let _ = result::graph::destroy(graph);
            made
        };
        self.check("cuGraphInstantiate", made.result())?;
        Ok(GraphId(executable as u64))
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: see above the block; whoever launches a graph has it alone.
        let launched = unsafe { result::graph::launch(graph.0 as sys::CUgraphExec, stream_of(stream)) };
        self.check("cuGraphLaunch", launched)
    }

    fn destroy_graph(&self, graph: GraphId) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: see above the block; a graph that is running is destroyed when it has run.
            let _ = unsafe { result::graph::exec_destroy(graph.0 as sys::CUgraphExec) };
        }
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // A process that ends takes everything along.
        let Ok(_entered) = self.enter() else { return };
        // The libraries' handles go before what they use.
        self.blas.take();
        self.light.take();
        self.dnn.take();
        let owned = std::mem::take(&mut *self.owned.lock());
        // SAFETY: nobody has them any more; the context is this value's own claim on it.
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
