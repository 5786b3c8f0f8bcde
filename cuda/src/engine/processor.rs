//! A GPU as a device, opened when the first node is placed on it, so that a process without nodes on the GPU
//! takes none of its memory.

use super::communicators;
use super::copy_path::CopyPath;
use super::driver::Driver;
use super::gpu_engine::{Engine, block};
use super::gpu_list::Gpu;
use super::kernel_stream::KernelStream;
use super::nvidia::Nvidia;
use super::segment_runner::GraphSegmentRunner;
use crate::kernels::table;
use device::collective::Reduction;
use device::device_collectives::{CommunicatorPlace, DeviceCollectives, DeviceCommunicator};
use device::gpu_options::GpuOptions;
use device::peer_buffer::{BorrowedMemory, PeerBuffer};
use device::segment_runner::{SegmentInfo, SegmentRunner};
use device::value::Value;
use device::{Device, DeviceAttributes, DeviceTensor, Processor, Transfer};
use device::{Error, Result};
use graph::{DType, DeviceName, Tensor};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// A GPU that is opened on first use, and only once for all sessions.
#[derive(Debug)]
pub(super) struct CudaProcessor {
    /// The device's name at its creation, for error messages.
    name: DeviceName,
    source: DriverSource,
    options: GpuOptions,
    engine: OnceLock<Result<Arc<Engine>>>,
}

/// The source of a device's driver.
#[derive(Debug)]
enum DriverSource {
    /// A GPU by its number on the machine.
    Machine(u32),
    /// A driver that the caller provides.
    Driver(Arc<dyn Driver>),
}

/// Returns the device for one of the machine's GPUs, with the kernels of this crate. The GPU is opened at the
/// first request for its engine.
///
/// # Errors
/// `InvalidArgument` if the options are invalid.
pub fn device(name: DeviceName, incarnation: u64, gpu: &Gpu, options: &GpuOptions) -> Result<Device> {
    let attributes = DeviceAttributes {
        memory_limit: options.limit(gpu.memory)?,
        physical_description: gpu.description(name.id),
        name,
        incarnation,
    };
    Ok(CudaProcessor::device(attributes, DriverSource::Machine(gpu.number), options))
}

/// Returns a GPU device that makes its calls through `driver`.
///
/// # Errors
/// `InvalidArgument` for the options that [`device()`] refuses, and the driver's errors.
pub fn device_with_driver(driver: Arc<dyn Driver>, name: DeviceName, options: &GpuOptions) -> Result<Device> {
    let attributes = DeviceAttributes {
        name,
        memory_limit: options.limit(driver.memory()?.1)?,
        incarnation: 1,
        physical_description: String::new(),
    };
    Ok(CudaProcessor::device(attributes, DriverSource::Driver(driver), options))
}

/// Returns the engine of a device that is a GPU, and opens the GPU if it is not open yet.
///
/// # Errors
/// `Internal` if the device is no GPU; the driver's error if the GPU cannot be opened.
pub fn engine_of(device: &Device) -> Result<&Arc<Engine>> {
    let processor: &dyn Any = device.processor();
    let gpu = processor.downcast_ref::<CudaProcessor>();
    gpu.ok_or_else(|| Error::internal(format!("{} is no GPU", device.name())))?.engine()
}

impl CudaProcessor {
    fn device(attributes: DeviceAttributes, source: DriverSource, options: &GpuOptions) -> Device {
        let name = attributes.name.clone();
        let processor = CudaProcessor { name, source, options: options.clone(), engine: OnceLock::new() };
        Device::new(attributes, Arc::new(processor), table())
    }

    fn engine(&self) -> Result<&Arc<Engine>> {
        let open = || {
            let driver: Arc<dyn Driver> = match &self.source {
                DriverSource::Machine(number) => Arc::new(Nvidia::open(*number, self.options.autotune)?),
                DriverSource::Driver(driver) => driver.clone(),
            };
            Engine::open(driver, self.name.to_string(), &self.options).map(Arc::new)
        };
        self.engine.get_or_init(open).as_ref().map_err(Error::clone)
    }
}

impl Processor for CudaProcessor {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        // Strings, resources and variants have no device representation, so they stay in host memory.
        if tensor.dtype().size().is_none() {
            return done(Ok(Value::Host(tensor)));
        }
        let holder: Arc<str> = "tensors from the host".into();
        done(self.engine().and_then(|engine| Ok(engine.upload(&holder, &tensor)?.into())));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        let engine = match BorrowedMemory::of(&*tensor.memory) {
            Some(_) => self.engine().cloned(),
            None => block(&tensor).map(|block| block.engine().clone()),
        };
        match engine {
            Ok(engine) => engine.download(tensor, done),
            Err(error) => done(Err(error)),
        }
    }

    fn persist(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
        let lent = block(&tensor)?;
        if !lent.is_graph_memory() {
            return Ok(tensor);
        }
        let stream = KernelStream::compute(lent.engine());
        let kept =
            stream.allocate(&"tensors kept from step to step".into(), tensor.dtype, tensor.shape.clone())?;
        stream.copy(&kept, &tensor)?;
        Ok(kept)
    }

    fn can_adopt(&self) -> bool {
        true
    }

    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let holder: Arc<str> = "tensors from other GPUs".into();
        if BorrowedMemory::of(&*tensor.memory).is_some() {
            return match self.engine() {
                Ok(own) => own.copy_borrowed(holder, tensor, done),
                Err(error) => done(Err(error)),
            };
        }
        let own = self.engine().and_then(|own| Ok((own, own.copy_path_from(block(&tensor)?.engine()))));
        match own {
            Ok((_, CopyPath::SameGpu)) => done(Ok(tensor.into())),
            Ok((own, CopyPath::Peer)) => done(own.adopt(&holder, &tensor).map(Value::from)),
            Ok((_, CopyPath::Host)) => {
                self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
            }
            Err(error) => done(Err(error)),
        }
    }

    fn export(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        match block(&tensor).map(|block| block.engine().clone()) {
            Ok(engine) => engine.lend(tensor, done),
            Err(error) => done(Err(error)),
        }
    }

    fn can_access(&self, window: &PeerBuffer) -> bool {
        self.engine().is_ok_and(|engine| engine.can_map(window))
    }

    fn synchronize(&self) -> Result<()> {
        match self.engine.get() {
            Some(Ok(engine)) => engine.synchronize(),
            _ => Ok(()),
        }
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn can_capture(&self) -> bool {
        self.options.graphs
    }

    fn collectives(&self) -> Option<&dyn DeviceCollectives> {
        Some(self)
    }

    fn segment_runner(&self, segment: SegmentInfo) -> Result<Box<dyn SegmentRunner>> {
        Ok(Box::new(GraphSegmentRunner::new(self.engine()?.clone(), segment)))
    }
}

impl DeviceCollectives for CudaProcessor {
    fn identity(&self) -> Result<String> {
        self.engine()?.driver().communicator_identity()
    }

    fn can_reduce(&self, dtype: DType, reduction: Reduction) -> bool {
        communicators::reduction(dtype, reduction).is_some()
    }

    fn create_key(&self) -> Result<Vec<u8>> {
        self.engine()?.driver().create_communicator_key()
    }

    fn connect(&self, place: &CommunicatorPlace) -> Result<Arc<dyn DeviceCommunicator>> {
        Ok(communicators::connect(self.engine()?, place)?)
    }
}
