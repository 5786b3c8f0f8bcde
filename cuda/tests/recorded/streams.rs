//! The order of enqueued work across CUDA streams, and the allocation of GPU memory.

use super::Fallible;
use super::software::gpu::{Gpu, launching};
use super::software::recording::RecordingDriver;
use cuda::engine::device_with_driver;
use device::Device;
use device::Value;
use device::gpu_options::GpuOptions;
use graph::{AttrList, AttrValue, Code, DType, DeviceName, Node, TaskName, Tensor};
use kernels::testing::run_node_on;
use std::sync::Arc;

/// Returns a node of an op with attribute `T` set to the dtype.
pub(crate) fn node(op: &str, dtype: DType) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    Ok(Node::new("n", op).with_attr("T", dtype))
}

#[test]
fn gpu_is_opened_on_first_use() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    gpu.device.processor().synchronize()?;
    assert_eq!(gpu.device.attributes().memory_limit, 1 << 20);
    assert_eq!((gpu.driver.log(), gpu.driver.synchronized()), (vec![], 0));
    gpu.upload(Tensor::try_from([1.0f32])?)?;
    gpu.device.processor().synchronize()?;
    assert!(!gpu.driver.log().is_empty());
    assert_eq!(gpu.driver.synchronized(), 1);
    Ok(())
}

#[test]
fn uploaded_tensors_are_downloaded_unchanged() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let tensor = Tensor::try_from([[1.0f32, 2.0], [3.0, 4.0]])?;
    let value = gpu.upload(tensor.clone())?;
    assert_eq!(gpu.download(value.clone())?, tensor);
    assert_eq!(gpu.download(value)?, tensor);
    let empty = Tensor::zeros(DType::Int64, graph::Shape::new(&[0, 3])?)?;
    assert_eq!(gpu.download(gpu.upload(empty.clone())?)?, empty);
    let text = gpu.upload(Tensor::from("text"))?;
    assert!(matches!(text, Value::Host(_)), "{text:?}");
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

/// The first upload has more chunks than may be in flight, and its last chunk is smaller. The downloaded tensor
/// is in pinned memory already, so its upload is one copy.
#[test]
fn large_uploads_are_chunked_unless_already_pinned() -> Fallible {
    const MEBIBYTE: usize = 1 << 20;
    let gpu = Gpu::new(1 << 28)?;
    let numbers: Vec<i64> = (0..(60 * MEBIBYTE / 8) as i64).collect();
    let tensor = Tensor::vector(&numbers)?;
    let value = gpu.upload(tensor.clone())?;
    let copies = |log: Vec<String>| -> Vec<String> {
        log.into_iter().filter(|line| line.starts_with("copy in")).collect()
    };
    let mut pieces = vec![format!("copy in {} on 1", 8 * MEBIBYTE); 7];
    pieces.push(format!("copy in {} on 1", 4 * MEBIBYTE));
    assert_eq!(copies(gpu.driver.log()), pieces);
    let back = gpu.download(value)?;
    assert_eq!(back, tensor);
    let again = gpu.upload(back)?;
    assert_eq!(copies(gpu.driver.log()), [format!("copy in {} on 1", 60 * MEBIBYTE)]);
    assert_eq!(gpu.download(again)?, tensor);
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn first_kernel_waits_for_the_upload_of_its_input() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let x = gpu.upload(Tensor::try_from([1.0f32, 2.0])?)?;
    assert_eq!(gpu.driver.log(), ["allocate 8 on 1", "copy in 8 on 1", "mark 1"]);
    let exp = node("Exp", DType::Float)?;
    let y = run_node_on(&gpu.device, &exp, vec![x.clone()])?;
    assert_eq!(gpu.driver.log(), ["allocate 8 on 0", "wait 0", "map<Exp, float, float> on 0"]);
    let z = run_node_on(&gpu.device, &exp, vec![x.clone()])?;
    assert_eq!(gpu.driver.log(), ["allocate 8 on 0", "map<Exp, float, float> on 0"]);
    drop((x, y, z));
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn memory_is_freed_after_its_download_without_blocking_kernels() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let x = gpu.upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let y = run_node_on(&gpu.device, &node("Exp", DType::Float)?, vec![x])?.remove(0);
    gpu.driver.log();
    gpu.download(y)?;
    assert_eq!(
        gpu.driver.log(),
        ["mark 0", "wait 2", "copy out 8 on 2", "mark 2", "mark 0", "wait 2", "free 8 on 2"]
    );
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn kernel_that_overwrites_a_download_source_waits() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let x = gpu.upload(Tensor::try_from([1.0f32, 2.0])?)?;
    gpu.download(x.clone())?;
    gpu.driver.log();
    // `x` is the only holder of its memory, so the memory is reused for the result.
    let y = run_node_on(&gpu.device, &node("Exp", DType::Float)?, vec![x])?;
    assert_eq!(gpu.driver.log(), ["wait 0", "wait 0", "map<Exp, float, float> on 0"]);
    drop(y);
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn shared_memory_is_not_written_in_place() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let x = gpu.upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let same = run_node_on(&gpu.device, &node("AddV2", DType::Float)?, vec![x.clone(), x.clone()])?;
    assert!(gpu.driver.log().contains(&"allocate 8 on 0".to_owned()));
    let reused = run_node_on(&gpu.device, &node("AddV2", DType::Float)?, vec![same[0].clone(), x.clone()])?;
    assert!(gpu.driver.log().contains(&"allocate 8 on 0".to_owned()), "the first sum is still held");
    drop(same);
    let sum = run_node_on(&gpu.device, &node("AddV2", DType::Float)?, vec![x, reused[0].clone()])?;
    drop((reused, sum));
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn out_of_memory_error_names_requester_and_holders() -> Fallible {
    let gpu = Gpu::new(1000)?;
    let large = gpu.upload(Tensor::zeros(DType::Float, graph::Shape::new(&[150])?)?)?;
    let exp = node("Exp", DType::Float)?;
    let error = run_node_on(&gpu.device, &exp, vec![large.clone()]).err().ok_or("no error")?;
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert_eq!(
        error.to_string(),
        "OOM when allocating tensor with shape[150] and type float for n on \
         /job:localhost/replica:0/task:0/device:GPU:0: 600 bytes, with 600 of 1000 in use; most is held by outputs \
         of these nodes: tensors from the host (600)"
    );
    // Freed memory can be allocated again.
    drop(large);
    let large = gpu.upload(Tensor::zeros(DType::Float, graph::Shape::new(&[240])?)?)?;
    let result = run_node_on(&gpu.device, &exp, vec![large])?;
    drop(result);
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn convolution_falls_back_to_the_minimum_workspace() -> Fallible {
    let strides = AttrValue::List(AttrList::Int(vec![1; 4]));
    let convolution =
        node("Conv2D", DType::Float)?.with_attr("strides", strides).with_attr("padding", "SAME");
    for (wanted, taken) in [(4096, 4096), (1 << 20, 256)] {
        let gpu = Gpu::with_driver(RecordingDriver::new(1 << 16).with_workspace(wanted), 0, &launching())?;
        let image = gpu.upload(Tensor::zeros(DType::Float, graph::Shape::new(&[2, 6, 6, 3])?)?)?;
        let filter = gpu.upload(Tensor::zeros(DType::Float, graph::Shape::new(&[3, 3, 3, 4])?)?)?;
        run_node_on(&gpu.device, &convolution, vec![image, filter])?;
        let log = gpu.driver.log();
        let within = format!(" in {taken} bytes");
        assert!(log.iter().any(|line| line.contains("Forward") && line.contains(&within)), "{log:?}");
        assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    }
    Ok(())
}

#[test]
fn failed_allocation_is_retried_after_synchronize_and_trim() -> Fallible {
    // The driver has less free memory than the GPU's limit allows, because the test takes 500 bytes from it
    // directly.
    let driver = Arc::new(RecordingDriver::new(1000));
    let name = DeviceName::new(&TaskName::new("localhost", 0), "GPU", 0);
    let options = launching();
    let device: Arc<Device> = Arc::new(device_with_driver(driver.clone(), name, &options)?);
    let gpu = Gpu { driver, device };
    let other = graph::Shape::new(&[200])?;
    let held = cuda::engine::Driver::allocate(&*gpu.driver, 500, cuda::engine::driver::StreamId(0))?;
    assert!(held.is_some());
    let error = gpu.upload(Tensor::zeros(DType::Float, other)?).err().ok_or("no error")?;
    assert!(error.to_string().contains("OOM when allocating"), "{error}");
    assert_eq!(gpu.driver.synchronized(), 1);
    assert!(gpu.driver.log().contains(&"trim".to_owned()));
    Ok(())
}

#[test]
fn all_memory_can_be_reserved_at_start() -> Fallible {
    let options = GpuOptions { memory_fraction: 0.5, allow_growth: false, ..GpuOptions::default() };
    let gpu = Gpu::with(1 << 20, &options)?;
    drop(gpu.upload(Tensor::try_from([1i64])?)?);
    let log = gpu.driver.log();
    assert_eq!(log[..2], [format!("allocate {} on 0", 1 << 19), format!("free {} on 0", 1 << 19)]);
    Ok(())
}

#[test]
fn poison_fills_new_memory_but_not_uploads() -> Fallible {
    let options = GpuOptions { memory_fraction: 1.0, poison: true, ..GpuOptions::default() };
    let gpu = Gpu::with(1 << 20, &options)?;
    let tensor = Tensor::try_from([1.0f32, 2.0])?;
    let x = gpu.upload(tensor.clone())?;
    assert_eq!(gpu.driver.log(), ["allocate 8 on 1", "copy in 8 on 1", "mark 1"]);
    let y = run_node_on(&gpu.device, &node("Exp", DType::Float)?, vec![x.clone()])?.remove(0);
    let wanted = ["allocate 8 on 0", "fill 8 on 0", "wait 0", "map<Exp, float, float> on 0"];
    assert_eq!(gpu.driver.log(), wanted);
    // The recording driver does not execute the kernel, so the output still has the bytes of the fill.
    assert!(gpu.download(y)?.values::<f32>()?.iter().all(|value| value.is_nan()));
    assert_eq!(gpu.download(x)?, tensor);
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}
