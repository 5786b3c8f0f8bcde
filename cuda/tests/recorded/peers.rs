//! Several GPUs of one process: the copies between them, and the memory of copied tensors.

use super::Fallible;
use super::software::gpu::{DEADLINE, Gpu};
use super::streams::node;
use device::cancel::Cancellation;
use device::kernel::Step;
use device::{LocalRendezvous, Pool, Value};
use executor::{Executor, KernelCache};
use graph::builder::Call;
use graph::{DType, Graph, Scope, Tensor};
use kernels::testing::run_node_on;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Checks that the drivers recorded no races and that all memory is freed.
fn check_clean(gpus: &[Gpu]) {
    for gpu in gpus {
        assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    }
}

/// Opens GPUs. The first has the streams 0 to 4, the second 5 to 9: for kernels, uploads, downloads, copies to
/// peers and collectives, in this order.
fn opened(are_reachable: &[bool]) -> Fallible<Vec<Gpu>> {
    let gpus = Gpu::group(1 << 20, are_reachable)?;
    for gpu in &gpus {
        drop(gpu.upload(Tensor::try_from([0i64])?)?);
    }
    gpus[0].driver.log();
    Ok(gpus)
}

#[test]
fn peer_copies_run_on_the_source_gpu() -> Fallible {
    let gpus = opened(&[true])?;
    let tensor = Tensor::try_from([1.0f32, 2.0])?;
    let here = gpus[0].upload(tensor.clone())?;
    gpus[0].driver.log();
    let there = gpus[1].adopt(&here)?;
    assert_eq!(
        gpus[0].driver.log(),
        [
            // Memory is allocated on the target, and a stream of the source waits for the allocation and for
            // the tensor's upload.
            "allocate 8 on 6",
            "mark 6",
            "wait 3",
            "wait 3",
            "copy 8 to GPU 1 on 3",
            "mark 3"
        ]
    );
    // The first kernel that reads the copied tensor waits for the copy; later kernels of the same stream need not wait.
    let exp = node("Exp", DType::Float)?;
    let first = run_node_on(&gpus[1].device, &exp, vec![there.clone()])?;
    assert_eq!(gpus[0].driver.log(), ["allocate 8 on 5", "wait 5", "map<Exp, float, float> on 5"]);
    let second = run_node_on(&gpus[1].device, &exp, vec![there.clone()])?;
    assert_eq!(gpus[0].driver.log(), ["allocate 8 on 5", "map<Exp, float, float> on 5"]);
    assert_eq!(gpus[1].download(there)?, tensor);
    drop((here, first, second));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn source_memory_is_freed_after_the_peer_copy() -> Fallible {
    let gpus = opened(&[true])?;
    let x = gpus[0].upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let y = run_node_on(&gpus[0].device, &node("Exp", DType::Float)?, vec![x])?.remove(0);
    let there = gpus[1].adopt(&y)?;
    gpus[0].driver.log();
    drop(y);
    assert_eq!(gpus[0].driver.log(), ["mark 0", "wait 3", "free 8 on 3"]);
    // A copied tensor that no kernel has used is freed after the copy as well.
    drop(there);
    assert_eq!(gpus[0].driver.log(), ["wait 6", "free 8 on 6"]);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn kernel_that_overwrites_a_peer_copy_source_waits() -> Fallible {
    let gpus = opened(&[true])?;
    let x = gpus[0].upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let there = gpus[1].adopt(&x)?;
    gpus[0].driver.log();
    // `x` is the only holder of its memory, so the memory is reused for the result.
    let y = run_node_on(&gpus[0].device, &node("Exp", DType::Float)?, vec![x])?;
    assert_eq!(gpus[0].driver.log(), ["wait 0", "wait 0", "map<Exp, float, float> on 0"]);
    drop((y, there));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn tensor_on_the_same_gpu_is_not_copied() -> Fallible {
    let gpus = opened(&[true])?;
    let x = gpus[0].upload(Tensor::try_from([1.0f32])?)?;
    gpus[0].driver.log();
    let same = gpus[0].adopt(&x)?;
    assert_eq!(gpus[0].driver.log(), Vec::<String>::new());
    let (Value::Device(x), Value::Device(same)) = (x, same) else { return Err("not on a GPU".into()) };
    assert!(Arc::ptr_eq(&x.memory, &same.memory));
    drop((x, same));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn gpus_without_peer_access_copy_through_the_host() -> Fallible {
    let gpus = opened(&[false])?;
    let tensor = Tensor::try_from([1.0f32, 2.0])?;
    let here = gpus[0].upload(tensor.clone())?;
    gpus[0].driver.log();
    let Value::Host(came) = gpus[1].adopt(&here)? else { return Err("it is not on the host".into()) };
    assert_eq!(came, tensor);
    let log = gpus[0].driver.log();
    assert!(log.contains(&"copy out 8 on 2".to_owned()), "{log:?}");
    drop(here);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn empty_tensors_are_not_copied() -> Fallible {
    let gpus = opened(&[true])?;
    let empty = Tensor::zeros(DType::Int64, graph::Shape::new(&[0, 3])?)?;
    let there = gpus[1].adopt(&gpus[0].upload(empty.clone())?)?;
    assert_eq!(gpus[1].download(there)?, empty);
    assert!(!gpus[0].driver.log().iter().any(|line| line.starts_with("copy")));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn peer_copy_without_memory_is_an_error_without_double_free() -> Fallible {
    let gpus = opened(&[true])?;
    let large = || Tensor::zeros(DType::Float, graph::Shape::new(&[150_000])?);
    let here = gpus[0].upload(large()?)?;
    let held = gpus[1].upload(large()?)?;
    let error = gpus[1].adopt(&here).err().ok_or("it fits")?.to_string();
    assert!(error.contains("on /job:localhost/replica:0/task:0/device:GPU:1: 600000 bytes"), "{error}");
    drop((here, held));
    check_clean(&gpus);
    Ok(())
}

/// Returns the device name of a GPU.
fn gpu(id: usize) -> String {
    format!("/job:localhost/replica:0/task:0/device:GPU:{id}")
}

/// Adds the attributes of a Send or Recv between two devices.
fn edge<'a>(op: Call<'a>, from: &str, to: &str, name: &str) -> Call<'a> {
    op.attr("tensor_name", name)
        .attr("send_device", from)
        .attr("recv_device", to)
        .attr("send_device_incarnation", 1i64)
}

/// Returns the partition of GPU `own`: it sends a tensor to GPU `other`, uses the tensor afterwards, and
/// squares the tensor that GPU `other` sends.
fn exchanging(own: usize, other: usize) -> Fallible<Graph> {
    let (here, there) = (gpu(own), gpu(other));
    let scope = Scope::new().device(&here);
    let count = scope.constant_vector(&[4i32]);
    let x = scope.op("Fill").input(count).input(scope.constant(0.5f32)).output();
    let x = scope.op("Exp").input(x).output();
    edge(scope.op("_Send").input(x), &here, &there, &format!("from {own}")).node();
    let came =
        edge(scope.op("_Recv").attr("tensor_type", DType::Float), &there, &here, &format!("from {other}"));
    let square = scope.op("Square").input(came.output()).output();
    scope.op("Mul").input(square).input(x).node();
    Ok(scope.finish()?)
}

/// Runs `steps` steps in which the partitions of two GPUs exchange tensors.
fn exchange(gpus: &[Gpu], steps: i64) -> Fallible {
    let pool = Pool::new(2)?;
    let executors: Vec<Arc<Executor>> = [(0, 1), (1, 0)]
        .into_iter()
        .map(|(own, other)| {
            let device = gpus[own].device.clone();
            let graph = exchanging(own, other)?;
            Ok(Arc::new(Executor::new(&graph, device, pool.clone(), &KernelCache::new())?))
        })
        .collect::<Fallible<_>>()?;
    for id in 0..steps {
        let step = Arc::new(Step::new(id, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())));
        let (sender, receiver) = channel();
        for executor in &executors {
            let sender = sender.clone();
            executor.run(step.clone(), false, Box::new(move |result| drop(sender.send(result))));
        }
        for _ in &executors {
            receiver.recv_timeout(DEADLINE)??;
        }
    }
    Ok(())
}

#[test]
fn partitions_exchange_tensors_by_peer_copies_without_races() -> Fallible {
    for reachable in [true, false] {
        let gpus = Gpu::group(1 << 20, &[reachable])?;
        exchange(&gpus, 20)?;
        let log = gpus[0].driver.log();
        let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
        let expected = if reachable { (40, 0) } else { (0, 40) };
        assert_eq!((count("copy 16 to GPU"), count("copy out 16")), expected, "{log:#?}");
        // The thread that ended the last step may still hold a partition, and thus memory.
        let deadline = Instant::now() + DEADLINE;
        while gpus.iter().any(|gpu| gpu.driver.used() > 0) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        check_clean(&gpus);
    }
    Ok(())
}
