//! A GPU as a device: opened when the first node is placed on it, so that a process that only could use it holds none of
//! its memory.

use super::driver::Driver;
use super::engine::{Engine, block};
use super::lane::Lane;
use super::machine::Gpu;
use super::nvidia::Nvidia;
use super::repeater::GraphRepeater;
use super::road::Road;
use crate::kernels::table;
use device::gpu_options::GpuOptions;
use device::repeat::{Repeater, SegmentInfo};
use device::value::Value;
use device::window::{BorrowedMemory, PeerWindow};
use device::{Device, DeviceAttributes, DeviceTensor, Processor, Transfer};
use device::{Error, Result};
use graph::{DeviceName, Tensor};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// A GPU, opened once, whatever sessions call it.
#[derive(Debug)]
pub(super) struct CudaProcessor {
    /// The device's name when it was made, for messages.
    name: DeviceName,
    card: Card,
    options: GpuOptions,
    engine: OnceLock<Result<Arc<Engine>>>,
}

#[derive(Debug)]
enum Card {
    /// By its number on the machine.
    Machine(u32),
    Driver(Arc<dyn Driver>),
}

/// The device of one of the machine's GPUs, with kernels of this table. It is opened when its engine is first asked for.
///
/// # Errors
/// `InvalidArgument` if the options make no sense.
pub fn device(name: DeviceName, incarnation: u64, gpu: &Gpu, options: &GpuOptions) -> Result<Device> {
    let attributes = DeviceAttributes {
        memory_limit: options.limit(gpu.memory)?,
        physical_description: gpu.description(name.id),
        name,
        incarnation,
    };
    Ok(CudaProcessor::device(attributes, Card::Machine(gpu.number), options))
}

/// A device over any driver.
///
/// # Errors
/// As [`device`], and the driver's.
pub fn device_over(driver: Arc<dyn Driver>, name: DeviceName, options: &GpuOptions) -> Result<Device> {
    let attributes = DeviceAttributes {
        name,
        memory_limit: options.limit(driver.memory()?.1)?,
        incarnation: 1,
        physical_description: String::new(),
    };
    Ok(CudaProcessor::device(attributes, Card::Driver(driver), options))
}

/// The engine of a device that is a GPU, opened if it is not yet.
///
/// # Errors
/// `Internal` if the device is no GPU; why it cannot be opened.
pub fn engine_of(device: &Device) -> Result<&Arc<Engine>> {
    let processor: &dyn Any = device.processor();
    let gpu = processor.downcast_ref::<CudaProcessor>();
    gpu.ok_or_else(|| Error::internal(format!("{} is no GPU", device.name())))?.engine()
}

impl CudaProcessor {
    fn device(attributes: DeviceAttributes, card: Card, options: &GpuOptions) -> Device {
        let name = attributes.name.clone();
        let processor = CudaProcessor { name, card, options: options.clone(), engine: OnceLock::new() };
        Device::new(attributes, Arc::new(processor), table())
    }

    fn engine(&self) -> Result<&Arc<Engine>> {
        let open = || {
            let driver: Arc<dyn Driver> = match &self.card {
                Card::Machine(number) => Arc::new(Nvidia::open(*number, self.options.autotune)?),
                Card::Driver(driver) => driver.clone(),
            };
            Engine::open(driver, self.name.to_string(), &self.options).map(Arc::new)
        };
        self.engine.get_or_init(open).as_ref().map_err(Error::clone)
    }
}

impl Processor for CudaProcessor {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        // Objects have no form but the host's.
        if tensor.dtype().size().is_none() {
            return done(Ok(Value::Host(tensor)));
        }
        let what: Arc<str> = "tensors from the host".into();
        done(self.engine().and_then(|engine| Ok(engine.upload(&what, &tensor)?.into())));
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
        if !lent.is_of_graph() {
            return Ok(tensor);
        }
        let lane = Lane::to(lent.engine());
        let kept =
            lane.allocate(&"tensors kept from step to step".into(), tensor.dtype, tensor.shape.clone())?;
        lane.copy(&kept, &tensor)?;
        Ok(kept)
    }

    fn can_adopt(&self) -> bool {
        true
    }

    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let what: Arc<str> = "tensors from other GPUs".into();
        if BorrowedMemory::of(&*tensor.memory).is_some() {
            return match self.engine() {
                Ok(own) => own.take_in(what, tensor, done),
                Err(error) => done(Err(error)),
            };
        }
        let own = self.engine().and_then(|own| Ok((own, own.road_from(block(&tensor)?.engine()))));
        match own {
            Ok((_, Road::Stay)) => done(Ok(tensor.into())),
            Ok((own, Road::Peer)) => done(own.adopt(&what, &tensor).map(Value::from)),
            Ok((_, Road::Host)) => {
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

    fn can_access(&self, window: &PeerWindow) -> bool {
        self.engine().is_ok_and(|engine| engine.sees(window))
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

    fn repeater(&self, segment: SegmentInfo) -> Result<Box<dyn Repeater>> {
        Ok(Box::new(GraphRepeater::new(self.engine()?.clone(), segment)))
    }
}
