//! Several GPUs of one process: how tensors go from one to another, and what becomes of their memory.

use super::Fallible;
use super::streams::{DEADLINE, Gpu, node};
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

/// Nothing raced, and nothing is left.
fn check_clean(gpus: &[Gpu]) {
    for gpu in gpus {
        assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    }
}

/// Streams of the first GPU are 0 to 4, of the second 5 to 9, if they are opened in this order: kernels, copies in,
/// copies out, copies to others, collectives.
fn opened(are_reachable: &[bool]) -> Fallible<Vec<Gpu>> {
    let gpus = Gpu::together(1 << 20, are_reachable)?;
    for gpu in &gpus {
        drop(gpu.upload(Tensor::try_from([0i64])?)?);
    }
    gpus[0].driver.log();
    Ok(gpus)
}

#[test]
fn a_tensor_is_copied_by_its_own_gpu_into_the_memory_of_the_other() -> Fallible {
    let gpus = opened(&[true])?;
    let tensor = Tensor::try_from([1.0f32, 2.0])?;
    let here = gpus[0].upload(tensor.clone())?;
    gpus[0].driver.log();
    let there = gpus[1].adopt(&here)?;
    assert_eq!(
        gpus[0].driver.log(),
        [
            // Memory there, and the source's own stream waits for it and for what fills the tensor.
            "allocate 8 on 6",
            "mark 6",
            "wait 3",
            "wait 3",
            "copy 8 to GPU 1 on 3",
            "mark 3"
        ]
    );
    // Kernels there wait for the copy, once.
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
fn memory_that_a_copy_to_a_peer_reads_is_freed_behind_it() -> Fallible {
    let gpus = opened(&[true])?;
    let x = gpus[0].upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let y = run_node_on(&gpus[0].device, &node("Exp", DType::Float)?, vec![x])?.remove(0);
    let there = gpus[1].adopt(&y)?;
    gpus[0].driver.log();
    drop(y);
    assert_eq!(gpus[0].driver.log(), ["mark 0", "wait 3", "free 8 on 3"]);
    // What came and was not used is freed behind its copy too.
    drop(there);
    assert_eq!(gpus[0].driver.log(), ["wait 6", "free 8 on 6"]);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn a_kernel_that_changes_what_a_copy_to_a_peer_reads_waits_for_the_copy() -> Fallible {
    let gpus = opened(&[true])?;
    let x = gpus[0].upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let there = gpus[1].adopt(&x)?;
    gpus[0].driver.log();
    // The only holder: its memory becomes the result's.
    let y = run_node_on(&gpus[0].device, &node("Exp", DType::Float)?, vec![x])?;
    assert_eq!(gpus[0].driver.log(), ["wait 0", "wait 0", "map<Exp, float, float> on 0"]);
    drop((y, there));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn what_a_gpu_has_already_stays_where_it_is() -> Fallible {
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
fn a_gpu_out_of_reach_is_reached_through_the_host() -> Fallible {
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
fn an_empty_tensor_needs_no_copy() -> Fallible {
    let gpus = opened(&[true])?;
    let empty = Tensor::zeros(DType::Int64, graph::Shape::new(&[0, 3])?)?;
    let there = gpus[1].adopt(&gpus[0].upload(empty.clone())?)?;
    assert_eq!(gpus[1].download(there)?, empty);
    assert!(!gpus[0].driver.log().iter().any(|line| line.starts_with("copy")));
    check_clean(&gpus);
    Ok(())
}

#[test]
fn a_gpu_without_room_for_what_comes_is_an_error_and_frees_nothing_twice() -> Fallible {
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

/// The name of a GPU for nodes.
fn gpu(id: usize) -> String {
    format!("/job:localhost/replica:0/task:0/device:GPU:{id}")
}

/// The ends of an edge between two devices.
fn edge<'a>(op: Call<'a>, from: &str, to: &str, name: &str) -> Call<'a> {
    op.attr("tensor_name", name)
        .attr("send_device", from)
        .attr("recv_device", to)
        .attr("send_device_incarnation", 1i64)
}

/// A partition that gives a tensor to its peer, changes its own, and squares what the peer gives.
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

/// Runs a step of both partitions, some times.
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
fn partitions_exchange_tensors_without_the_host_and_without_races() -> Fallible {
    for reachable in [true, false] {
        let gpus = Gpu::together(1 << 20, &[reachable])?;
        exchange(&gpus, 20)?;
        let log = gpus[0].driver.log();
        let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
        let expected = if reachable { (40, 0) } else { (0, 40) };
        assert_eq!((count("copy 16 to GPU"), count("copy out 16")), expected, "{log:#?}");
        // The thread that ended the last step may still hold a partition.
        let deadline = Instant::now() + DEADLINE;
        while gpus.iter().any(|gpu| gpu.driver.used() > 0) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        check_clean(&gpus);
    }
    Ok(())
}
