//! Collectives over several GPUs: waiting for all participants, the enqueued work, and errors.

use super::Fallible;
use super::software::gpu::{DEADLINE, Gpu};
use device::cancel::Cancellation;
use device::kernel::{AsyncContext, Kernel, LoopPosition, Step};
use device::{Error, LocalRendezvous, Pool, Result, Value};
use executor::{Executor, KernelCache};
use graph::{Code, DType, Node, Scope, Shape, Tensor};
use kernels::testing::{make_kernel, run_node_on};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

fn step() -> Arc<Step> {
    Arc::new(Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}

fn sum(members: i64) -> Fallible<Node> {
    let op = graph::ops::lookup("NcclAllReduce").ok_or("no such op")?;
    let node = Node::new("sum", op).with_attr("T", DType::Float).with_attr("reduction", "sum");
    Ok(node.with_attr("num_devices", members).with_attr("shared_name", "all"))
}

/// Starts one GPU's part of a sum, and returns the receiver of its result.
fn join(gpu: &Gpu, step: &Arc<Step>, members: i64, value: Value) -> Fallible<Receiver<Result<Value>>> {
    let node = sum(members)?;
    let Kernel::Async(start) = make_kernel(&gpu.device, &node)? else {
        return Err("it does not wait".into());
    };
    let (sender, receiver) = channel();
    let done = Box::new(move |result: Result<_>| {
        let one = result
            .map(|outputs: smallvec::SmallVec<[Value; 4]>| outputs.into_iter().next().unwrap_or_default());
        drop(sender.send(one));
    });
    let (device, step) = (gpu.device.clone(), step.clone());
    let inputs = [value].into_iter().collect();
    let position = LoopPosition::default();
    start(AsyncContext { node: Arc::new(node), device, step, position, inputs, done });
    Ok(receiver)
}

/// Opens `count` GPUs. The first has the streams 0 to 4, the second 5 to 9, and so on.
fn opened(count: usize) -> Fallible<Vec<Gpu>> {
    let gpus = Gpu::group(1 << 20, &vec![true; count - 1])?;
    for gpu in &gpus {
        drop(gpu.upload(Tensor::try_from([0i64])?)?);
    }
    gpus[0].driver.log();
    Ok(gpus)
}

fn check_clean(gpus: &[Gpu]) {
    for gpu in gpus {
        assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    }
}

#[test]
fn all_reduce_gives_each_gpu_the_sum() -> Fallible {
    let gpus = opened(2)?;
    let first = gpus[0].upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let second = gpus[1].upload(Tensor::try_from([10.0f32, 20.0])?)?;
    gpus[0].driver.log();
    let step = step();
    // The second GPU joins before the first.
    let waits = join(&gpus[1], &step, 2, second)?;
    assert!(waits.try_recv().is_err());
    assert_eq!(gpus[0].driver.log(), Vec::<String>::new());
    let came = join(&gpus[0], &step, 2, first)?;
    assert_eq!(
        gpus[0].driver.log(),
        [
            "allocate 8 on 4",
            "wait 4",
            "allocate 8 on 9",
            "wait 9",
            "Sum of 2 float on GPUs [0, 1]",
            "mark 4",
            "mark 9",
            // No other tensor uses the memory of the inputs, so it is freed after the collective that reads it.
            "wait 4",
            "free 8 on 4",
            "wait 9",
            "free 8 on 9"
        ]
    );
    for (gpu, receiver) in gpus.iter().zip([came, waits]) {
        let total = receiver.recv_timeout(DEADLINE)??;
        assert_eq!(gpu.download(total)?, Tensor::try_from([11.0f32, 22.0])?);
    }
    check_clean(&gpus);
    Ok(())
}

#[test]
fn kernels_wait_for_the_all_reduce_before_using_results_or_changing_inputs() -> Fallible {
    let gpus = opened(2)?;
    let shares = [gpus[0].upload(Tensor::try_from([1.0f32])?)?, gpus[1].upload(Tensor::try_from([2.0f32])?)?];
    let step = step();
    let first = join(&gpus[0], &step, 2, shares[0].clone())?;
    let second = join(&gpus[1], &step, 2, shares[1].clone())?;
    let exp = super::streams::node("Exp", DType::Float)?;
    for (gpu, (receiver, share)) in gpus.iter().zip([first, second].into_iter().zip(shares)) {
        let total = receiver.recv_timeout(DEADLINE)??;
        drop(run_node_on(&gpu.device, &exp, vec![total])?);
        // `share` is the only holder of its memory, so the memory is reused for the result.
        drop(run_node_on(&gpu.device, &exp, vec![share])?);
    }
    check_clean(&gpus);
    Ok(())
}

#[test]
fn cancelled_step_fails_waiting_and_later_participants() -> Fallible {
    let gpus = opened(3)?;
    let step = step();
    let share = |gpu: &Gpu| gpu.upload(Tensor::try_from([1.0f32])?);
    let waiting = [join(&gpus[0], &step, 3, share(&gpus[0])?)?, join(&gpus[2], &step, 3, share(&gpus[2])?)?];
    step.cancellation.cancel(Error::new(Code::Cancelled, "enough"));
    let late = join(&gpus[1], &step, 3, share(&gpus[1])?)?;
    for receiver in waiting.into_iter().chain([late]) {
        let error = receiver.recv_timeout(DEADLINE)?.err().ok_or("it came to an end")?;
        assert_eq!(
            (error.code(), error.is_derived(), &*error.to_string()),
            (Code::Cancelled, true, "enough")
        );
    }
    // A new step has a barrier of its own, which has not failed.
    let step = self::step();
    let waits = join(&gpus[0], &step, 3, share(&gpus[0])?)?;
    assert!(waits.try_recv().is_err());
    drop(step);
    drop(waits);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn mismatched_collectives_fail_on_all_gpus() -> Fallible {
    let gpus = opened(2)?;
    let step = step();
    let first = join(&gpus[0], &step, 2, gpus[0].upload(Tensor::try_from([1.0f32])?)?)?;
    let second = join(&gpus[1], &step, 2, gpus[1].upload(Tensor::try_from([1.0f32, 2.0])?)?)?;
    for receiver in [first, second] {
        let error = receiver.recv_timeout(DEADLINE)?.err().ok_or("they agree")?;
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(
            error.to_string().contains("Sum of float[2] on 2 devices against Sum of float[1]"),
            "{error}"
        );
    }
    check_clean(&gpus);
    Ok(())
}

#[test]
fn nccl_failure_or_missing_memory_fails_all_participants_without_leaks() -> Fallible {
    let gpus = opened(2)?;
    gpus[0].driver.fail_collectives(Error::new(Code::Unavailable, "no libnccl.so"));
    let large = |gpu: &Gpu| gpu.upload(Tensor::zeros(DType::Float, Shape::new(&[100_000])?)?);
    let attempt = |code: Code| -> Fallible {
        let step = step();
        let shares = [large(&gpus[0])?, large(&gpus[1])?];
        let [one, other] = shares;
        let first = join(&gpus[0], &step, 2, one)?;
        let second = join(&gpus[1], &step, 2, other)?;
        for receiver in [first, second] {
            let error = receiver.recv_timeout(DEADLINE)?.err().ok_or("it came to an end")?;
            assert_eq!(error.code(), code, "{error}");
        }
        Ok(())
    };
    attempt(Code::Unavailable)?;
    let held = gpus[1].upload(Tensor::zeros(DType::Float, Shape::new(&[100_000])?)?)?;
    attempt(Code::ResourceExhausted)?;
    drop(held);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn single_gpu_or_empty_tensor_needs_no_nccl() -> Fallible {
    let gpus = opened(2)?;
    gpus[0].driver.fail_collectives(Error::internal("it was called"));
    let alone = Tensor::try_from([3.0f32])?;
    let came = join(&gpus[0], &step(), 1, gpus[0].upload(alone.clone())?)?;
    assert_eq!(gpus[0].download(came.recv_timeout(DEADLINE)??)?, alone);
    let empty = Tensor::zeros(DType::Float, Shape::new(&[0])?)?;
    let step = step();
    let parts = [
        join(&gpus[0], &step, 2, gpus[0].upload(empty.clone())?)?,
        join(&gpus[1], &step, 2, gpus[1].upload(empty.clone())?)?,
    ];
    for (gpu, came) in gpus.iter().zip(parts) {
        assert_eq!(gpu.download(came.recv_timeout(DEADLINE)??)?, empty);
    }
    check_clean(&gpus);
    Ok(())
}

#[test]
fn repeated_collectives_between_partitions_have_no_races() -> Fallible {
    let gpus = opened(2)?;
    let pool = Pool::new(2)?;
    let mut executors = Vec::new();
    for (id, gpu) in gpus.iter().enumerate() {
        let scope = Scope::new().device(&format!("/job:localhost/replica:0/task:0/device:GPU:{id}"));
        let count = scope.constant_vector(&[4i32]);
        let x = scope.op("Fill").input(count).input(scope.constant(0.5f32)).output();
        let total = scope.nccl_all_sum(scope.op("Exp").input(x).output(), 2, "all");
        scope.op("Square").input(total).node();
        let graph = scope.finish()?;
        executors.push(Arc::new(Executor::new(
            &graph,
            gpu.device.clone(),
            pool.clone(),
            &KernelCache::new(),
        )?));
    }
    for _ in 0..20 {
        let (step, (sender, receiver)) = (step(), channel());
        for executor in &executors {
            let sender = sender.clone();
            executor.run(step.clone(), false, Box::new(move |result| drop(sender.send(result))));
        }
        for _ in &executors {
            receiver.recv_timeout(DEADLINE)??;
        }
    }
    let log = gpus[0].driver.log();
    assert_eq!(log.iter().filter(|line| *line == "Sum of 4 float on GPUs [0, 1]").count(), 20, "{log:#?}");
    drop(executors);
    // The thread that ended the last step may still hold a partition, and thus memory.
    let deadline = Instant::now() + DEADLINE;
    while gpus.iter().any(|gpu| gpu.driver.used() > 0) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    check_clean(&gpus);
    Ok(())
}

#[test]
fn waiting_partition_ends_with_its_step() -> Fallible {
    let gpus = opened(2)?;
    let scope = Scope::new().device("/job:localhost/replica:0/task:0/device:GPU:0");
    let count = scope.constant_vector(&[4i32]);
    let x = scope.op("Fill").input(count).input(scope.constant(0.5f32)).output();
    scope.nccl_all_sum(x, 2, "all");
    let graph = scope.finish()?;
    let pool = Pool::new(2)?;
    let executor = Arc::new(Executor::new(&graph, gpus[0].device.clone(), pool, &KernelCache::new())?);
    let (step, (sender, receiver)) = (step(), channel());
    executor.run(step.clone(), false, Box::new(move |result| drop(sender.send(result))));
    assert!(receiver.try_recv().is_err());
    step.cancellation.cancel(Error::new(Code::Aborted, "the other GPU's part failed"));
    let error = receiver.recv_timeout(DEADLINE)?.err().ok_or("the step came to an end")?;
    assert_eq!(error.code(), Code::Aborted);
    Ok(())
}
