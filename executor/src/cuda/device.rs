//! A GPU as a device: opened when the first node is placed on it, so that a process that only could use it holds none of
//! its memory.

use super::driver::Driver;
use super::engine::{Engine, block};
use super::lane::Lane;
use super::machine::Gpu;
use super::nvidia::Nvidia;
use super::repeater::GraphRepeater;
use super::road::Road;
use crate::device::{Device, DeviceAttributes, DeviceTensor, Transfer};
use crate::error::{Error, Result};
use crate::gpus::GpuOptions;
use crate::repeat::{Repeater, SegmentInfo};
use crate::resource::ResourceStore;
use crate::value::Value;
use crate::window::{BorrowedMemory, PeerWindow};
use graph::{DeviceName, Tensor};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// One GPU of one task.
#[derive(Debug)]
pub struct CudaDevice {
    attributes: DeviceAttributes,
    resources: ResourceStore,
    engine: Arc<Opened>,
}

/// A GPU that is opened once, whatever sessions call it.
#[derive(Debug)]
struct Opened {
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

impl CudaDevice {
    /// # Errors
    /// `InvalidArgument` if the options make no sense.
    pub fn new(name: DeviceName, incarnation: u64, gpu: &Gpu, options: &GpuOptions) -> Result<CudaDevice> {
        let attributes = DeviceAttributes {
            memory_limit: options.limit(gpu.memory)?,
            physical_description: gpu.description(name.id),
            name,
            incarnation,
        };
        Ok(CudaDevice::of(attributes, Card::Machine(gpu.number), options))
    }

    /// A device over any driver.
    ///
    /// # Errors
    /// As [`CudaDevice::new`], and the driver's.
    pub fn over(driver: Arc<dyn Driver>, name: DeviceName, options: &GpuOptions) -> Result<CudaDevice> {
        let attributes = DeviceAttributes {
            name,
            memory_limit: options.limit(driver.memory()?.1)?,
            incarnation: 1,
            physical_description: String::new(),
        };
        Ok(CudaDevice::of(attributes, Card::Driver(driver), options))
    }

    fn of(attributes: DeviceAttributes, card: Card, options: &GpuOptions) -> CudaDevice {
        let resources = ResourceStore::new(&attributes.name.job);
        let engine = Opened { card, options: options.clone(), engine: OnceLock::new() };
        CudaDevice { attributes, resources, engine: Arc::new(engine) }
    }

    /// The GPU, opened if it is not yet.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn engine(&self) -> Result<&Arc<Engine>> {
        let open = || {
            let driver: Arc<dyn Driver> = match &self.engine.card {
                Card::Machine(number) => Arc::new(Nvidia::open(*number, self.engine.options.autotune)?),
                Card::Driver(driver) => driver.clone(),
            };
            let device = self.attributes.name.to_string();
            Engine::open(driver, device, &self.engine.options).map(Arc::new)
        };
        self.engine.engine.get_or_init(open).as_ref().map_err(Error::clone)
    }

    /// The GPU that device is, by whatever name.
    ///
    /// # Errors
    /// `Internal` if it is none, and those of [`CudaDevice::engine`].
    pub fn engine_of(device: &dyn Device) -> Result<&Arc<Engine>> {
        let gpu = device.native().downcast_ref::<CudaDevice>();
        gpu.ok_or_else(|| Error::internal(format!("{} is no GPU", device.name())))?.engine()
    }
}

impl Device for CudaDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn resources(&self) -> &ResourceStore {
        &self.resources
    }

    fn isolated(&self, name: DeviceName) -> Arc<dyn Device> {
        let resources = ResourceStore::new(&name.job);
        let attributes = DeviceAttributes { name, ..self.attributes.clone() };
        Arc::new(CudaDevice { attributes, resources, engine: self.engine.clone() })
    }

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

    fn keep(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
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

    fn hands_over(&self) -> bool {
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

    fn lend(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        match block(&tensor).map(|block| block.engine().clone()) {
            Ok(engine) => engine.lend(tensor, done),
            Err(error) => done(Err(error)),
        }
    }

    fn sees(&self, window: &PeerWindow) -> bool {
        self.engine().is_ok_and(|engine| engine.sees(window))
    }

    fn synchronize(&self) -> Result<()> {
        match self.engine.engine.get() {
            Some(Ok(engine)) => engine.synchronize(),
            _ => Ok(()),
        }
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        self.engine.options.graphs
    }

    fn repeater(&self, segment: SegmentInfo) -> Result<Box<dyn Repeater>> {
        Ok(Box::new(GraphRepeater::new(self.engine()?.clone(), segment)))
    }

    fn native(&self) -> &dyn Any {
        self
    }
}
