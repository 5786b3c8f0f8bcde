//! Whole partitions on the recording driver: training steps with uploads and downloads have no races and free
//! all memory.

use super::Fallible;
use super::software::gpu::{DEADLINE, Gpu};
use device::cancel::Cancellation;
use device::kernel::Step;
use device::{LocalRendezvous, Pool};
use executor::{Executor, KernelCache};
use graph::{DType, Graph, PartialShape, Scope};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// The device name of the GPU.
const GPU: &str = "/job:localhost/replica:0/task:0/device:GPU:0";

/// Runs a graph on the GPU for `steps` steps.
pub(crate) fn run(gpu: &Gpu, graph: &Graph, steps: i64) -> Fallible {
    let pool = Pool::new(2)?;
    let executor = Arc::new(Executor::new(graph, gpu.device.clone(), pool, &KernelCache::new())?);
    for id in 0..steps {
        let step = Step::new(id, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new()));
        let (sender, receiver) = channel();
        executor.run(Arc::new(step), false, Box::new(move |result| drop(sender.send(result))));
        receiver.recv_timeout(DEADLINE)??;
    }
    Ok(())
}

/// Returns a graph that trains one layer, with reference variables if `is_ref`, else resource variables.
fn layer(is_ref: bool) -> Fallible<Graph> {
    let scope = Scope::new().device(GPU);
    let (variable, assign, apply) = if is_ref {
        ("VariableV2", "Assign", "ApplyGradientDescent")
    } else {
        ("VarHandleOp", "AssignVariableOp", "ResourceApplyGradientDescent")
    };
    let of = |name: &str, dims: &[usize]| {
        scope
            .op(variable)
            .name(name)
            .attr("dtype", DType::Float)
            .attr("shape", PartialShape::of_dims(dims.iter().map(|&size| Some(size))))
            .attr("shared_name", name)
            .output()
    };
    let (w, b) = (of("w", &[4, 3]), of("b", &[3]));
    let zeros = |dims: &[i32]| {
        scope.op("Fill").input(scope.constant_vector(dims)).input(scope.constant(0.5f32)).output()
    };
    let assigned = |to, value| {
        let op = scope.op(assign).input(to).input(value);
        if is_ref { op.node() } else { op.attr("dtype", DType::Float).node() }
    };
    let first = [assigned(w, zeros(&[4, 3])), assigned(b, zeros(&[3]))];
    let read = |from| {
        let op = if is_ref {
            scope.op("Identity").input(from)
        } else {
            scope.op("ReadVariableOp").input(from).attr("dtype", DType::Float)
        };
        first.iter().fold(op, |op, &node| op.after(node)).output()
    };
    let x = zeros(&[2, 4]);
    let product = scope.op("MatMul").input(x).input(read(w)).output();
    let logits = scope.op("BiasAdd").input(product).input(read(b)).output();
    let labels = scope
        .op("OneHot")
        .input(scope.constant_vector(&[0i64, 2]))
        .input(scope.constant(3i32))
        .input(scope.constant(1.0f32))
        .input(scope.constant(0.0f32))
        .output();
    let entropy = scope.op("SoftmaxCrossEntropyWithLogits").input(logits).input(labels).node();
    let slope = graph::Output { node: entropy, index: 1 };
    let dw = scope.op("MatMul").input(x).input(slope).attr("transpose_a", true).output();
    let db = scope.op("BiasAddGrad").input(slope).output();
    for (to, by) in [(w, dw), (b, db)] {
        scope.op(apply).input(to).input(scope.constant(0.1f32)).input(by).node();
    }
    Ok(scope.finish()?)
}

#[test]
fn layer_trains_without_races_or_leaks() -> Fallible {
    for is_ref in [true, false] {
        let gpu = Gpu::new(1 << 20)?;
        run(&gpu, &layer(is_ref)?, 3)?;
        let log = gpu.driver.log();
        let products = log.iter().filter(|line| line.starts_with("product")).count();
        assert_eq!(products, 6, "{log:#?}");
        let steps = log.iter().filter(|line| line.starts_with("step<GradientDescent, float>")).count();
        assert_eq!(steps, 6, "{log:#?}");
        assert_eq!(gpu.driver.races(), Vec::<String>::new(), "{log:#?}");
        // At the end only the variables are in use; `variables` is their size in bytes.
        let variables = (4 * 3 + 3) * 4;
        // The thread that ended the last step may still hold the partition, and thus memory.
        let deadline = Instant::now() + DEADLINE;
        while gpu.driver.used() != variables && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(gpu.driver.used(), variables, "{log:#?}");
        let driver = gpu.driver.clone();
        drop(gpu);
        assert_eq!((driver.used(), driver.races()), (0, vec![]));
    }
    Ok(())
}

/// Returns a graph that updates rows of a table with an optimizer, and then single slices of the table.
fn table(is_ref: bool) -> Fallible<Graph> {
    let scope = Scope::new().device(GPU);
    let (variable, assign, prefix) =
        if is_ref { ("VariableV2", "Assign", "") } else { ("VarHandleOp", "AssignVariableOp", "Resource") };
    let of = |name: &str| {
        scope
            .op(variable)
            .name(name)
            .attr("dtype", DType::Float)
            .attr("shape", PartialShape::of_dims([Some(5), Some(2)]))
            .attr("shared_name", name)
            .output()
    };
    let (w, slot) = (of("w"), of("slot"));
    let filled = |dims: &[i32]| {
        scope.op("Fill").input(scope.constant_vector(dims)).input(scope.constant(0.5f32)).output()
    };
    let assigned = |to| {
        let op = scope.op(assign).input(to).input(filled(&[5, 2]));
        if is_ref { op.node() } else { op.attr("dtype", DType::Float).node() }
    };
    let first = [assigned(w), assigned(slot)];
    let [step, scatter] = ["SparseApplyAdagrad", "ScatterNdUpdate"].map(|op| format!("{prefix}{op}"));
    let stepped = scope
        .op(&step)
        .input(w)
        .input(slot)
        .input(scope.constant(0.1f32))
        .input(filled(&[3, 2]))
        .input(scope.constant_vector(&[4i64, 0, 4]));
    let stepped = first.iter().fold(stepped, |op, &node| op.after(node)).node();
    let index =
        scope.op("Reshape").input(scope.constant_vector(&[1i64])).input(scope.constant_vector(&[1, 1]));
    scope.op(&scatter).input(w).input(index.output()).input(filled(&[1, 2])).after(stepped).node();
    Ok(scope.finish()?)
}

#[test]
fn sparse_updates_use_row_locks_without_races() -> Fallible {
    for is_ref in [true, false] {
        let gpu = Gpu::new(1 << 20)?;
        run(&gpu, &table(is_ref)?, 2)?;
        let log = gpu.driver.log();
        for kernel in ["sparse_step<Adagrad, float, i64>", "scatter_nd<Update, u32, u32, i64>"] {
            let found = log.iter().filter(|line| line.starts_with(kernel)).count();
            assert_eq!(found, 2, "{kernel}: {log:#?}");
        }
        // The row locks are cleared before the optimizer's kernel runs.
        let at = log.iter().position(|line| line.starts_with("sparse_step")).unwrap_or(0);
        let is_opened = log[..at].iter().any(|line| line.starts_with("fill 16384"));
        assert!(is_opened, "{log:#?}");
        assert_eq!(gpu.driver.races(), Vec::<String>::new(), "{log:#?}");
    }
    Ok(())
}
