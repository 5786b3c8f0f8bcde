//! One GPU's side of a communicator whose members may be in several processes. A thread of the communicator starts the
//! reductions in their order, and waits for the GPU.

use super::driver::{AllReduce, CallProgress, CommunicatorId, Driver, Reduction};
use super::gpu_engine::{Engine, block};
use super::result_memory::ResultMemory;
use super::streams::Stream;
use super::waiter_thread::WaiterThread;
use device::collective::{Merge, Reduction as MemberReduction};
use device::device_collectives::{CommunicatorPlace, DeviceCommunicator};
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use graph::{Code, DType};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The shortest and the longest pause between two queries of a call's progress.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// The engines that have been in communicators. NCCL reads tensors of other GPUs of its process directly, so these GPUs
/// get access to each other's memory.
static ENGINES: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

/// Returns the driver's reduction for a reduction of members; `None` if the driver has none. Only sums can be divided
/// by the number of members.
pub(super) fn reduction(dtype: DType, reduction: MemberReduction) -> Option<Reduction> {
    use DType::{BFloat16, Double, Float, Half, Int64};
    if !matches!(dtype, BFloat16 | Double | Float | Half | Int64) {
        return None;
    }
    match (reduction.merge, reduction.is_mean) {
        (Merge::Add, false) => Some(Reduction::Sum),
        // The library's mean of integers is not the quotient that TensorFlow's kernels compute.
        (Merge::Add, true) => (dtype != Int64).then_some(Reduction::Mean),
        (Merge::Mul, false) => Some(Reduction::Product),
        (Merge::Min, false) => Some(Reduction::Minimum),
        (Merge::Max, false) => Some(Reduction::Maximum),
        (Merge::Mul | Merge::Min | Merge::Max, true) => None,
    }
}

/// Begins to create a GPU's side of a communicator.
///
/// # Errors
/// The errors of the driver.
pub(super) fn connect(engine: &Arc<Engine>, place: &CommunicatorPlace) -> Result<Arc<GpuCommunicator>> {
    grant_access(engine)?;
    let thread = WaiterThread::new("anabranch-gpu-reduce")?;
    let id = engine.driver().connect_communicator(place)?;
    let side = Side { engine: engine.clone(), id: Mutex::new(Some(id)) };
    Ok(Arc::new(GpuCommunicator { side: Arc::new(side), thread }))
}

/// Gives a GPU and the other GPUs of this process that have been in communicators access to each other's memory.
fn grant_access(engine: &Arc<Engine>) -> Result<()> {
    let mut engines = ENGINES.lock();
    engines.retain(|other| other.strong_count() > 0);
    for other in engines.iter().filter_map(Weak::upgrade) {
        if !Arc::ptr_eq(&other, engine) {
            engine.driver().enable_peer_access(&**other.driver())?;
        }
    }
    let own = Arc::downgrade(engine);
    if !engines.iter().any(|other| other.ptr_eq(&own)) {
        engines.push(own);
    }
    Ok(())
}

/// A GPU's side of a communicator, and the thread that starts its reductions.
#[derive(Debug)]
pub(super) struct GpuCommunicator {
    side: Arc<Side>,
    thread: WaiterThread,
}

/// The driver's communicator of one GPU, which the thread and the owner of a [`GpuCommunicator`] share.
#[derive(Debug)]
struct Side {
    engine: Arc<Engine>,
    /// The driver's id of the communicator; `None` once it is aborted. The lock is held during each call, because the
    /// driver allows one call at a time.
    id: Mutex<Option<CommunicatorId>>,
}

impl DeviceCommunicator for GpuCommunicator {
    fn is_connected(&self) -> Result<bool> {
        Ok(self.side.progress()? == CallProgress::Done)
    }

    fn all_reduce(&self, by: MemberReduction, tensor: DeviceTensor, done: Transfer<DeviceTensor>) {
        let side = self.side.clone();
        self.thread.run(move || done(side.all_reduce(by, &tensor)));
    }

    fn abort(&self) {
        self.side.abort();
    }
}

impl Drop for GpuCommunicator {
    fn drop(&mut self) {
        self.side.abort();
    }
}

impl Side {
    /// Calls the driver with the id of the communicator.
    ///
    /// # Errors
    /// `Aborted` if the communicator has been aborted, and the errors of the driver.
    fn call<T>(&self, call: impl FnOnce(&dyn Driver, CommunicatorId) -> Result<T>) -> Result<T> {
        let id = self.id.lock();
        match *id {
            Some(id) => call(&**self.engine.driver(), id),
            None => Err(Error::new(Code::Aborted, "the communicator of the GPU was aborted")),
        }
    }

    fn progress(&self) -> Result<CallProgress> {
        self.call(|driver, id| driver.communicator_progress(id))
    }

    fn abort(&self) {
        let id = self.id.lock().take();
        if let Some(id) = id {
            self.engine.driver().abort_communicator(id);
        }
    }

    /// Reduces a tensor with those of the other members, and waits until the GPU has computed the result.
    fn all_reduce(&self, by: MemberReduction, tensor: &DeviceTensor) -> Result<DeviceTensor> {
        let (dtype, count) = (tensor.dtype, tensor.shape.num_elements());
        let reduction = reduction(dtype, by);
        let reduction =
            reduction.ok_or_else(|| Error::unimplemented(format!("{by:?} of {dtype} between GPUs")))?;
        let operation = AllReduce { reduction, dtype, count };
        let result = ResultMemory::new(&self.engine, tensor, &"the result of a reduction".into())?;
        let (from, to) = (block(tensor)?.read_on(Stream::Collective)?, result.address());
        let stream = self.engine.streams().id(Stream::Collective);
        let enqueued = self.call(|driver, id| driver.all_reduce_of_members(id, &operation, from, to, stream));
        let enqueued = enqueued.and_then(|()| self.wait_until_enqueued());
        // After a failure, the GPU may read the input and write the result until it has stopped the reduction, so both
        // are kept until the mark.
        let (tensor, mark) = result.into_tensor()?;
        enqueued?;
        mark.wait_on_host()?;
        // An aborted collective ends with an arbitrary result, so the communicator is checked before the result is
        // returned.
        self.progress()?;
        Ok(tensor)
    }

    /// Waits until the last call has been carried out, or the communicator has failed or is aborted.
    fn wait_until_enqueued(&self) -> Result<()> {
        let [mut pause, longest] = PAUSES;
        while self.progress()? == CallProgress::Pending {
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
        Ok(())
    }
}
