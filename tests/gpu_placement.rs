//! Placement of training programs on tasks that only claim to have GPUs, with the kernel tables of this build.
#![cfg(feature = "cuda")]

use graph::{DType, DeviceName, Graph, Output, PartialShape, Scope, TaskName, Tensor};
use placer::{DeviceSet, PlaceRequest, place};
use std::error::Error;
use train::{
    Averaging, Clip, Dataset, Initializer, LearningRate, MovingAverage, Optimizer, PartitionStrategy,
    Partitioner, Retention, Saver, Strategy, SyncMode, UpdateOptions, VariablePlacement, Variables,
};
use worker::KernelTables;

type Fallible<T = ()> = Result<T, Box<dyn Error>>;

const COLUMNS: usize = 4;

/// Builds the loss of one layer.
fn loss(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let w = variables.get("w", DType::Float, &[COLUMNS, 3], &Initializer::Constant(0.5));
    let b = variables.get("b", DType::Float, &[3], &Initializer::Zeros);
    let logits = scope.bias_add(scope.matmul(batch[0], w.value), b.value);
    scope.mean(scope.square(scope.sub(scope.relu(logits), batch[1])), &[0, 1], false)
}

/// Returns a task with a CPU and `gpus` GPUs.
fn task(gpus: u32) -> DeviceSet {
    let task = TaskName::new("localhost", 0);
    let gpus = (0..gpus).map(|id| DeviceName::new(&task, "GPU", id));
    let devices = [DeviceName::new(&task, "CPU", 0)].into_iter().chain(gpus);
    DeviceSet::new(devices.zip(1..)).with_local(task)
}

/// The graph of a training program with towers.
struct Towers {
    graph: Graph,
    /// The handles of the variables.
    handles: Vec<Output>,
}

/// Builds a training program with two towers on GPUs.
fn towers(variables: &str, optimizer: &Optimizer, averaging: Averaging) -> Fallible<Towers> {
    let devices = (0..2).map(|i| format!("/device:GPU:{i}")).collect();
    let strategy = Strategy::Towers { devices, variables: variables.to_owned(), averaging };
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(3)]));
    strategy.minimize(&scope, &variables, optimizer, &[x, y], loss)?;
    let handles = variables.all().iter().map(|variable| variable.handle).collect();
    Ok(Towers { graph: root.finish()?, handles })
}

/// Returns the graph placed on a task with a CPU and `gpus` GPUs, with each node's device set.
fn placed(graph: &Graph, gpus: u32, allow_soft_placement: bool) -> Fallible<Graph> {
    placed_on(&task(gpus), graph, allow_soft_placement)
}

/// Returns the graph placed on `devices`, with each node's device set.
fn placed_on(devices: &DeviceSet, graph: &Graph, allow_soft_placement: bool) -> Fallible<Graph> {
    let request = PlaceRequest { devices, kernels: &KernelTables, allow_soft_placement, assigned: &[] };
    let placement = place(graph, &request)?;
    let mut placed = graph.clone();
    placement.apply(&mut placed);
    Ok(placed)
}

/// Returns the full name of a device of the local task, given by type and index.
fn full(device: &str) -> String {
    format!("/job:localhost/replica:0/task:0{device}")
}

#[test]
fn towers_and_variables_are_placed_as_requested() -> Fallible {
    for variables in ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"] {
        for averaging in [Averaging::OnVariableDevice, Averaging::Nccl] {
            for optimizer in [Optimizer::gradient_descent(0.1), Optimizer::adam(0.1)] {
                let Towers { graph, handles } = towers(variables, &optimizer, averaging)?;
                // Without soft placement, each node is on the device that it names.
                let graph = placed(&graph, 2, false)?;
                for handle in &handles {
                    assert_eq!(&*graph.node(handle.node).device, full(variables));
                }
                let (mut products, mut updates, mut sums) = (0, 0, 0);
                for (_, node) in graph.nodes() {
                    for tower in 0..2 {
                        if node.name.starts_with(&format!("tower_{tower}/")) && node.op.name() == "MatMul" {
                            assert_eq!(&*node.device, full(&format!("/device:GPU:{tower}")), "{}", node.name);
                            products += 1;
                        }
                    }
                    if node.op.name().starts_with("ResourceApply") {
                        assert_eq!(&*node.device, full(variables), "{}", node.name);
                        updates += 1;
                    }
                    if node.op.name() == "NcclAllReduce" {
                        assert!(node.device.contains("GPU"), "{} is on {}", node.name, node.device);
                        sums += 1;
                    }
                }
                let expected = if averaging == Averaging::Nccl { 4 } else { 0 };
                assert!(products >= 4, "{products}");
                assert_eq!((updates, sums), (2, expected));
            }
        }
    }
    Ok(())
}

#[test]
fn nccl_gradients_leave_their_gpu_once() -> Fallible {
    // `crossing` is the number of gradients sent to the variables' device: the gradients of `w` and `b` from both
    // towers, or only the sums of the gradients of `w` and of `b`.
    for (averaging, crossing) in [(Averaging::OnVariableDevice, 4), (Averaging::Nccl, 2)] {
        let Towers { graph, .. } = towers("/device:CPU:0", &Optimizer::gradient_descent(0.1), averaging)?;
        let graph = placed(&graph, 2, false)?;
        let is_gradient = |output: Output| {
            let node = graph.node(output.node);
            let summed = node.op.name() == "NcclAllReduce";
            node.device.contains("GPU") && (summed || averaging == Averaging::OnVariableDevice)
        };
        let mut crossed = 0;
        for (id, node) in graph.nodes() {
            if ["AddN", "Identity"].contains(&node.op.name()) && node.device.contains("CPU") {
                crossed += graph.inputs(id).into_iter().filter(|input| is_gradient(*input)).count();
            }
        }
        assert_eq!(crossed, crossing);
    }
    Ok(())
}

#[test]
fn tower_on_a_missing_gpu_is_an_error_with_its_name() -> Fallible {
    let Towers { graph, .. } = towers("/device:CPU:0", &Optimizer::gradient_descent(0.1), Averaging::Nccl)?;
    let error = placed(&graph, 1, false).err().ok_or("it was placed")?.to_string();
    assert!(error.contains("/device:GPU:1"), "{error}");
    // Soft placement moves an op to the CPU only if the CPU has a kernel for it; the CPU has no kernel for
    // `NcclAllReduce`.
    let error = placed(&graph, 0, true).err().ok_or("it was placed")?.to_string();
    assert!(error.contains("No OpKernel was registered to support Op 'NcclAllReduce'"), "{error}");
    Ok(())
}

/// Builds the loss of a layer after an embedding table in two shards.
fn embedded_loss(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let cut = Partitioner::fixed_size(2);
    let table = variables.get_partitioned("table", DType::Float, &[10, COLUMNS], &Initializer::Zeros, cut);
    let rows = variables.embedding_lookup(scope, &table.parts, batch[2], PartitionStrategy::Mod);
    loss(scope, variables, &[scope.add(rows, batch[0]), batch[1]])
}

/// Builds the graph of a whole program, which trains a model and saves checkpoints.
fn program(
    strategy: &Strategy,
    optimizer: &Optimizer,
    options: UpdateOptions,
    device: &str,
) -> Fallible<Graph> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let scope = if device.is_empty() { scope } else { scope.device(device) };
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(3)]));
    let ids = scope.placeholder("ids", DType::Int64, PartialShape::from([None]));
    strategy.minimize_with(&scope, &variables, optimizer, options, &[x, y, ids], embedded_loss)?;
    Saver::new(&root, &variables.all(), Retention::default());
    Ok(graph::passes::lower(&root.finish()?)?)
}

fn optimizers() -> [Optimizer; 6] {
    let rate =
        LearningRate::ExponentialDecay { initial: 0.1, decay_steps: 100, decay_rate: 0.9, staircase: true };
    [
        Optimizer::gradient_descent(rate),
        Optimizer::momentum(0.1, 0.9),
        Optimizer::adam(0.1),
        Optimizer::adagrad(0.1),
        Optimizer::rms_prop(0.1),
        Optimizer::ftrl(0.1),
    ]
}

fn options() -> [UpdateOptions; 2] {
    let average = MovingAverage { decay: 0.99, warms_up: true };
    let all = UpdateOptions { clip: Some(Clip::GlobalNorm(1.0)), moving_average: Some(average) };
    [UpdateOptions::default(), all]
}

#[test]
fn training_ops_are_on_the_gpu_and_only_file_ops_on_the_host() -> Fallible {
    let on_one = Strategy::Towers {
        devices: vec!["/device:GPU:0".to_owned()],
        variables: "/device:GPU:0".to_owned(),
        averaging: Averaging::default(),
    };
    for strategy in [Strategy::Local, on_one] {
        for optimizer in optimizers() {
            for options in options() {
                let graph = placed(&program(&strategy, &optimizer, options, "")?, 1, false)?;
                for (_, node) in graph.nodes().filter(|(_, node)| !node.name.starts_with("save/")) {
                    assert_eq!(&*node.device, full("/device:GPU:0"), "{} ({})", node.name, node.op.name());
                }
                for (_, node) in graph.nodes().filter(|(_, node)| node.op.name() == "SetAsideVariable") {
                    assert_eq!(&*node.device, full("/device:GPU:0"), "{}", node.name);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn parameter_server_variables_are_on_the_host_even_with_gpus() -> Fallible {
    let tasks = ["ps", "worker"].map(|job| TaskName::new(job, 0));
    let devices = tasks.iter().flat_map(|task| ["CPU", "GPU"].map(|kind| DeviceName::new(task, kind, 0)));
    let devices = DeviceSet::new(devices.zip(1..)).with_local(tasks[1].clone());
    let (placement, sync) = (VariablePlacement::default(), SyncMode::default());
    let strategy = Strategy::ParameterServer { ps_tasks: 1, worker: 0, placement, sync };
    for optimizer in optimizers() {
        for options in options() {
            let graph = placed_on(&devices, &program(&strategy, &optimizer, options, "")?, false)?;
            let mut variables = 0;
            for (_, node) in graph.nodes() {
                if node.op.name() == "VarHandleOp" || node.op.name().starts_with("Resource") {
                    assert_eq!(&*node.device, "/job:ps/replica:0/task:0/device:CPU:0", "{}", node.name);
                    variables += 1;
                }
                if node.op.name() == "MatMul" {
                    assert_eq!(&*node.device, "/job:worker/replica:0/task:0/device:GPU:0", "{}", node.name);
                }
            }
            assert!(variables > 5, "{variables}");
        }
    }
    Ok(())
}

#[test]
fn prefetched_input_waits_on_its_gpu() -> Fallible {
    let root = Scope::new();
    let rows = Tensor::zeros(DType::Float, [8usize, COLUMNS].try_into()?)?;
    let dataset = Dataset::from_tensors(&root.device("/device:CPU:0"), &[rows]).batch(2, true).input("rows");
    let input = dataset.prefetch_to_device(&root.device("/device:GPU:1"), 2);
    root.square(input.next[0]);
    assert_eq!(root.shape(input.next[0]), PartialShape::from([2usize, COLUMNS]));
    let graph = placed(&root.finish()?, 2, false)?;
    let mut there = 0;
    for (_, node) in graph.nodes() {
        if node.op.name().contains("Queue") || node.op.name() == "EnsureShape" {
            assert_eq!(&*node.device, full("/device:GPU:1"), "{}", node.name);
            there += 1;
        }
    }
    assert_eq!(there, 6);
    Ok(())
}
