//! GPUs whose driver records calls and executes kernels in software.

use super::super::Fallible;
use super::super::op_nodes::rows;
use super::recording::RecordingDriver;
use cuda::engine::{Program, device_with_driver};
use device::gpu_options::GpuOptions;
use device::{Device, DeviceTensor, Value};
use graph::{DeviceName, TaskName, Tensor};
use kernels::testing::make_kernel;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Returns options with which all memory may be used and kernels are launched one by one, without CUDA graphs.
pub(crate) fn launching() -> GpuOptions {
    GpuOptions { memory_fraction: 1.0, graphs: false, ..GpuOptions::default() }
}

/// A GPU with the recording driver.
pub(crate) struct Gpu {
    pub(crate) driver: Arc<RecordingDriver>,
    pub(crate) device: Arc<Device>,
}

impl Gpu {
    /// Returns a GPU with `memory` bytes of memory that captures no CUDA graphs.
    pub(crate) fn new(memory: u64) -> Fallible<Gpu> {
        Gpu::with(memory, &launching())
    }

    /// Returns a GPU with `memory` bytes of memory and these options.
    pub(crate) fn with(memory: u64, options: &GpuOptions) -> Fallible<Gpu> {
        Gpu::with_driver(RecordingDriver::new(memory), 0, options)
    }

    /// Returns a GPU with this driver, as device `GPU:id` of its task.
    pub(crate) fn with_driver(driver: RecordingDriver, id: u32, options: &GpuOptions) -> Fallible<Gpu> {
        let driver = Arc::new(driver);
        let name = DeviceName::new(&TaskName::new("localhost", 0), "GPU", id);
        let device = Arc::new(device_with_driver(driver.clone(), name, options)?);
        Ok(Gpu { driver, device })
    }

    /// Returns the GPUs of one task: `GPU:0`, and one further GPU for each element of `are_reachable`, which is
    /// true if other GPUs have peer access to that GPU.
    pub(crate) fn group(memory: u64, are_reachable: &[bool]) -> Fallible<Vec<Gpu>> {
        let options = launching();
        let first = RecordingDriver::new(memory);
        let others: Vec<RecordingDriver> = are_reachable.iter().map(|&can| first.another_gpu(can)).collect();
        (0..)
            .zip([first].into_iter().chain(others))
            .map(|(id, gpu)| Gpu::with_driver(gpu, id, &options))
            .collect()
    }

    /// Uploads a tensor.
    pub(crate) fn upload(&self, tensor: Tensor) -> Fallible<Value> {
        let (sender, receiver) = channel();
        self.device.processor().upload(tensor, Box::new(move |value| drop(sender.send(value))));
        Ok(receiver.recv_timeout(DEADLINE)??)
    }

    /// Downloads a value, and drops it before the download completes.
    pub(crate) fn download(&self, value: Value) -> Fallible<Tensor> {
        let tensor = on_gpu(&value)?;
        drop(value);
        let (sender, receiver) = channel();
        self.device.processor().download(tensor, Box::new(move |tensor| drop(sender.send(tensor))));
        Ok(receiver.recv_timeout(DEADLINE)??)
    }

    /// Copies a value of another GPU to this GPU.
    pub(crate) fn adopt(&self, value: &Value) -> Fallible<Value> {
        let (sender, receiver) = channel();
        self.device.processor().adopt(on_gpu(value)?, Box::new(move |value| drop(sender.send(value))));
        Ok(receiver.recv_timeout(DEADLINE)??)
    }

    /// Returns the log up to the first line that begins with `last`; waits for other threads to write this
    /// line.
    pub(crate) fn log_until(&self, last: &str) -> Fallible<Vec<String>> {
        let (mut log, end) = (Vec::new(), Instant::now() + DEADLINE);
        while !log.iter().any(|line: &String| line.starts_with(last)) {
            if Instant::now() > end {
                return Err(format!("no {last:?} in {log:?}").into());
            }
            log.extend(self.driver.log());
            std::thread::yield_now();
        }
        Ok(log)
    }

    /// Copies a value into an IPC buffer.
    pub(crate) fn lend(&self, value: &Value) -> Fallible<Value> {
        let (sender, receiver) = channel();
        self.device.processor().export(on_gpu(value)?, Box::new(move |value| drop(sender.send(value))));
        Ok(receiver.recv_timeout(DEADLINE)??)
    }
}

fn on_gpu(value: &Value) -> Fallible<DeviceTensor> {
    match value {
        Value::Device(tensor) => Ok(tensor.clone()),
        _ => Err(format!("{value:?} is not on a GPU").into()),
    }
}

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the programs of all kernels in the table.
pub(crate) fn programs() -> Fallible<Vec<Program>> {
    let gpu = Gpu::new(1 << 20)?;
    for (def, nodes) in rows(cuda::table())? {
        for node in nodes {
            make_kernel(&gpu.device, &node).map_err(|e| format!("{def:?} for {:?}: {e}", node.attrs))?;
        }
    }
    Ok(gpu.driver.programs())
}
