//! Whole programs on a GPU that executes kernels in software: training gives the same results as on the CPU.

#![cfg(feature = "cuda")]
#![allow(unreachable_pub)]

#[path = "gpu/checkpoints.rs"]
mod checkpoints;
#[path = "gpu/elements.rs"]
mod elements;
#[path = "../examples/models/mod.rs"]
mod models;
#[allow(dead_code)]
#[path = "../cuda/tests/recorded/software/mod.rs"]
mod software;
mod support;

use client::{Server, ServerConfig, Session, SessionOptions};
use cuda::engine::device_with_driver;
use device::Device;
use device::gpu_options::GpuOptions;
use graph::{DType, DeviceName, Graph, Output, PartialShape, Scope, Tensor};
use models::{Batch, Layers, Model, ResNet, lstm, mlp, small_cnn};
use software::recording::RecordingDriver;
use std::sync::Arc;
use support::folder::Folder;
use support::{Fallible, environment, folder, op_nodes};
use train::{Averaging, Master, Optimizer, Strategy, Variables};

/// A server in this process, with or without simulated GPUs.
struct Machine {
    pub(crate) master: Master,
    /// The drivers of the simulated GPUs, which share a log.
    gpus: Vec<Arc<RecordingDriver>>,
}

impl Machine {
    fn without_gpu() -> Fallible<Machine> {
        Machine::of(Vec::new(), false)
    }

    /// Returns a server with one GPU, with or without CUDA graphs.
    pub(crate) fn with_gpu(graphs: bool) -> Fallible<Machine> {
        Machine::of(vec![Arc::new(gpu())], graphs)
    }

    /// Returns a server with two GPUs that have peer access.
    fn with_two_gpus() -> Fallible<Machine> {
        let first = gpu();
        let second = first.another_gpu(true);
        Machine::of(vec![Arc::new(first), Arc::new(second)], true)
    }

    fn of(gpus: Vec<Arc<RecordingDriver>>, graphs: bool) -> Fallible<Machine> {
        let config = ServerConfig { threads: 2, ..ServerConfig::default() };
        let name = |kind: &str, id: u32| DeviceName::new(&config.task, kind, id);
        let mut devices: Vec<Arc<Device>> = vec![Arc::new(kernels::device(name("CPU", 0), 1, 1 << 30))];
        let options = GpuOptions { graphs, ..GpuOptions::default() };
        for (id, gpu) in (0..).zip(&gpus) {
            devices.push(Arc::new(device_with_driver(gpu.clone(), name("GPU", id), &options)?));
        }
        Ok(Machine { master: Master::InProcess(Arc::new(Server::with_devices(config, devices)?)), gpus })
    }

    /// Opens a session on a graph.
    fn session(&self, graph: Graph) -> Fallible<Session> {
        let Master::InProcess(server) = &self.master else { return Err("another process's".into()) };
        Ok(Session::on_server(server, graph, SessionOptions::default())?)
    }

    /// Returns the log of the GPUs, and checks that the drivers found no race.
    fn log(&self) -> Vec<String> {
        let Some(gpu) = self.gpus.first() else { return Vec::new() };
        assert_eq!(gpu.races(), Vec::<String>::new());
        gpu.log()
    }
}

/// Returns the driver of a simulated GPU, which executes kernels in software.
fn gpu() -> RecordingDriver {
    RecordingDriver::new(1 << 26).executing_ptx().with_one_block()
}

/// Returns whether the log line is a graph launch.
fn is_graph(line: &str) -> bool {
    line.starts_with("graph of")
}

#[test]
fn program_trains_on_a_gpu_as_on_the_cpu() -> Fallible {
    let (with, without, steps) = (Machine::with_gpu(true)?, Machine::without_gpu()?, 12);
    let (on_gpu, on_cpu) = (Folder::new("gpu")?, Folder::new("cpu")?);
    let ours = checkpoints::train(&with.master, "/device:GPU:0", on_gpu.path(), steps)?;
    let theirs = checkpoints::train(&without.master, "/device:CPU:0", on_cpu.path(), steps)?;
    assert_close(&ours, &theirs, "weights")?;
    assert!(with.log().iter().any(|line| is_graph(line)), "nothing was repeated");
    Ok(())
}

/// Trains a model for some steps; returns the names and values of its variables.
fn trained(model: &Model, machine: &Machine, steps: i64) -> Fallible<Vec<(String, Tensor)>> {
    let session = machine.session(model.graph.clone())?;
    session.run(&[], &[], &[model.training.initialize])?;
    for step in 1..=steps {
        assert_eq!(session.run(&[], &[model.done], &[])?.remove(0).item::<i64>()?, step);
    }
    let variables = model.training.variables.all();
    let values: Vec<Output> = variables.iter().map(|variable| variable.value).collect();
    let names = variables.into_iter().map(|variable| variable.name);
    Ok(names.zip(session.run(&[], &values, &[])?).collect())
}

/// Checks that tensors are equal up to rounding errors, which depend on the order of summation.
fn assert_close(ours: &Tensor, theirs: &Tensor, name: &str) -> Fallible {
    if ours.dtype() != DType::Float {
        assert_eq!(ours, theirs, "{name}");
        return Ok(());
    }
    let (ours, theirs) = (ours.values::<f32>()?, theirs.values::<f32>()?);
    let scale = theirs.iter().fold(1e-2f32, |most, value| most.max(value.abs()));
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= 2e-3 * scale, "{name}: element {i} is {a} on the GPU, {b} on the CPU");
    }
    Ok(())
}

fn models(device: &str) -> Fallible<Vec<Model>> {
    // A small learning rate keeps differences in the last bit from growing.
    let momentum = Optimizer::momentum(1e-3, 0.9);
    let build = |shape: &[usize], examples: usize, scores: &dyn Fn(&Layers<'_>, Output) -> Output| {
        Model::build(device, Batch { shape, examples, classes: 3 }, &momentum, scores)
    };
    Ok(vec![
        build(&[5, 12], 5, &|layers, x| mlp(layers, x, 8, 3))?,
        build(&[2, 8, 8, 1], 2, &|layers, x| small_cnn(layers, x, 4, 3))?,
        build(&[4, 3, 6], 3, &|layers, x| {
            let (last, _) = lstm(layers, "lstm", x, 8);
            layers.dense("scores", last, 3)
        })?,
        build(&[6, 32, 32, 3], 6, &|layers, x| {
            ResNet { blocks: [1, 1, 2, 1], width: 4, classes: 3 }.scores(layers, x)
        })?,
    ])
}

/// Number of steps after which results on the GPU are compared with results on the CPU. It is small, because rounding
/// differences grow in each step in which an activation is near 0.
const COMPARED: i64 = 2;

/// Number of steps that suffices for the capture and the replay of a CUDA graph.
const REPEATED: i64 = 4;

#[test]
fn models_train_equally_on_cpu_and_gpu_and_with_graphs() -> Fallible {
    let on_cpu = models("/device:CPU:0")?;
    for (on_gpu, on_cpu) in models("/device:GPU:0")?.iter().zip(&on_cpu) {
        let [graphs, launches] = [true, false].map(Machine::with_gpu);
        let (graphs, launches) = (graphs?, launches?);
        let ours = trained(on_gpu, &launches, COMPARED)?;
        for ((name, ours), (_, theirs)) in
            ours.iter().zip(trained(on_cpu, &Machine::without_gpu()?, COMPARED)?)
        {
            assert_close(ours, &theirs, name)?;
        }
        assert!(trained(on_gpu, &graphs, REPEATED)? == trained(on_gpu, &launches, REPEATED)?);
        assert!(
            graphs.log().iter().any(|line| is_graph(line))
                && !launches.log().iter().any(|line| is_graph(line))
        );
    }
    Ok(())
}

/// Feeds 32-bit integers, which stay in host memory. They are the indices of a gather on the GPU and of a scatter
/// update.
#[test]
fn fed_indices_are_usable_on_gpu_and_host() -> Fallible {
    let scope = Scope::new().device("/device:GPU:0");
    let ids = scope.placeholder("ids", DType::Int32, PartialShape::from([Some(2), None]));
    let handle = scope.var_handle("table", DType::Float, [4usize, 3]);
    let assign =
        scope.assign_variable(handle, scope.constant(Tensor::zeros(DType::Float, [4, 3].try_into()?)?));
    let rows = scope.reshape(scope.resource_gather(handle, ids, DType::Float), &[-1, 3]);
    let same = scope.constant(Tensor::try_from([[1f32, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])?);
    // The products make the step long enough to be captured into a CUDA graph.
    let rows = (0..4).fold(rows, |rows, _| scope.matmul(rows, same));
    let more = scope.add(rows, scope.constant(1f32));
    let flat = scope.reshape(ids, &[-1]);
    let table = scope.read_variable(handle, DType::Float);
    let update = scope.op("ResourceScatterAdd").input(handle).input(flat).input(more).node();
    let graph = scope.finish()?;
    for graphs in [false, true] {
        let machine = Machine::with_gpu(graphs)?;
        let session = machine.session(graph.clone())?;
        session.run(&[], &[], &[assign])?;
        let mut expected = 0.0;
        for _ in 0..6 {
            session.run(&[(ids, Tensor::try_from([[3i32, 2], [1, 0]])?)], &[], &[update])?;
            expected = 2.0 * expected + 1.0;
        }
        let table = session.run(&[], &[table], &[])?.remove(0);
        assert_eq!(table.values::<f32>()?, [expected; 12]);
    }
    Ok(())
}

/// Returns a graph of ops on 32-bit integers that are all placed on a device, and its outputs.
fn integers(device: &str) -> Fallible<(Graph, Vec<Output>)> {
    let scope = Scope::new().device(device);
    let int = |value: i32| scope.constant(value);
    let row = |values: [i32; 3]| Ok::<_, graph::Error>(scope.constant(Tensor::try_from(values)?));
    let scores = scope.constant(Tensor::try_from([[0.1f32, 0.2, 0.7], [0.5, 0.4, 0.1]])?);
    let (ids, places) = (row([2, 0, 1])?, scope.constant(Tensor::try_from([[2i32], [0], [1]])?));
    let drawn = scope.random_uniform_int(row([2, 2, 2])?, int(0), int(100), 7);
    let chosen = scope.op("Multinomial").input(scores).input(int(4)).attr("output_dtype", DType::Int32);
    let outputs = vec![
        drawn,
        chosen.attr("seed", 3i64).attr("seed2", 5i64).output(),
        scope.one_hot(ids, 3, int(1), int(0), -1),
        scope.top_k(ids, 2)[0],
        scope.gather_nd(ids, places),
        scope.scatter_nd(places, ids, scope.constant(Tensor::try_from([3i32])?)),
        scope.tensor_scatter_add(ids, places, ids),
        scope.unsorted_segment_sum(ids, row([0, 0, 1])?, int(2)),
        scope.dynamic_stitch(&[ids], &[ids]),
        scope.op("SquaredDifference").input(ids).input(int(2)).output(),
        scope.bitcast(scores, DType::Int32),
        scope.bitcast(ids, DType::Float),
    ];
    Ok((scope.finish()?, outputs))
}

/// The ops are placed explicitly, without soft placement, so no op may move to another device.
#[test]
fn int32_ops_run_where_a_gpu_is_requested() -> Fallible {
    let run = |machine: &Machine, device: &str| -> Fallible<Vec<Tensor>> {
        let (graph, outputs) = integers(device)?;
        Ok(machine.session(graph)?.run(&[], &outputs, &[])?)
    };
    let ours = run(&Machine::with_gpu(true)?, "/device:GPU:0")?;
    assert_eq!(ours, run(&Machine::without_gpu()?, "/device:CPU:0")?);
    Ok(())
}

/// Trains a layer with towers on halves of a batch; returns the weights after some steps.
fn towers(machine: &Machine, devices: [&str; 2], variables: &str, averaging: Averaging) -> Fallible<Tensor> {
    let devices = devices.map(str::to_owned).to_vec();
    let strategy = Strategy::Towers { devices, variables: variables.to_owned(), averaging };
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let of_variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(3)]));
    let training =
        strategy.minimize(&scope, &of_variables, &Optimizer::adam(0.1), &[x], checkpoints::loss)?;
    let weights = of_variables.find("w").ok_or("no weights")?.value;
    let session = machine.session(root.finish()?)?;
    session.run(&[], &[], &[training.initialize])?;
    let batch = checkpoints::rows(8)?;
    for _ in 0..6 {
        session.run(&[(x, batch.clone())], &[training.loss], &[training.train])?;
    }
    Ok(session.run(&[], &[weights], &[])?.remove(0))
}

#[test]
fn towers_on_two_gpus_train_as_on_the_cpu() -> Fallible {
    let besides = Averaging::OnVariableDevice;
    let expected = towers(&Machine::without_gpu()?, ["/device:CPU:0"; 2], "/device:CPU:0", besides)?;
    for averaging in [besides, Averaging::Nccl] {
        for variables in ["/device:CPU:0", "/device:GPU:1"] {
            let machine = Machine::with_two_gpus()?;
            let ours = towers(&machine, ["/device:GPU:0", "/device:GPU:1"], variables, averaging)?;
            assert_close(&ours, &expected, &format!("{averaging:?} on {variables}"))?;
            let is_collective = |line: &String| line.starts_with("Sum of");
            assert_eq!(machine.log().iter().any(is_collective), averaging == Averaging::Nccl);
        }
    }
    Ok(())
}

#[test]
fn dataset_elements_are_copied_to_a_gpu_once() -> Fallible {
    let machine = Machine::with_gpu(true)?;
    elements::copied(&machine.master, "/device:GPU:0", "/device:GPU:0")?;
    let log = machine.log();
    assert_eq!(log.iter().filter(|line| *line == "copy in 12 on 1").count(), 5, "{log:#?}");
    Ok(())
}

#[test]
fn dataset_elements_are_distributed_to_two_gpus() -> Fallible {
    let machine = Machine::with_two_gpus()?;
    elements::dealt(&machine.master, ["/device:GPU:0", "/device:GPU:1"])?;
    machine.log();
    Ok(())
}

#[test]
fn gpu_elements_reach_iterators_of_other_gpus_but_not_of_the_cpu() -> Fallible {
    let machine = Machine::with_two_gpus()?;
    elements::copied(&machine.master, "/device:GPU:1", "/device:GPU:0")?;
    machine.log();
    let refused = elements::copied(&machine.master, "/device:GPU:1", "/device:CPU:0");
    let error = refused.err().ok_or("the CPU reads a GPU's memory")?.to_string();
    assert!(error.contains("run the node on that device"), "{error}");
    Ok(())
}

/// Returns the master and device on which the tests of the modules `checkpoints` and `elements` run in this program.
fn machine() -> Fallible<(Master, &'static str)> {
    Ok((Machine::with_gpu(true)?.master, "/device:GPU:0"))
}
