//! Benchmarks of steps on a GPU: a matrix product, training steps of models, and copies of tensors.
//! `benches/peer/gpu/compare.py` runs these benchmarks and the same workloads in PyTorch. `cargo bench --bench gpu --
//! mlp` runs one workload, `--no-cuda-graphs` launches each kernel separately, and `--cpu` runs all workloads in
//! small sizes on a CPU as a functional check. Without a GPU the program prints that nothing is measured.
#![allow(clippy::print_stdout)]

#[path = "../examples/models/mod.rs"]
mod models;

use client::{Callable, ServerConfig, Session, SessionOptions};
use device::gpu_options::{GpuOptions, GpuSelection};
use graph::{DType, Graph, NodeId, Output, PartialShape, Scope, Shape, Tensor};
use models::{Batch, Layers, Model, ResNet, lstm, mlp, small_cnn};
use proto::pb;
use std::error::Error;
use std::time::{Duration, Instant};
use train::{Initializer, Optimizer, Variables};
use worker::gpus;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Fallible<T = ()> = Result<T, Box<dyn Error>>;

/// The name of a workload and the function that measures it.
type Workload = (&'static str, fn(DeviceMode) -> Fallible<Figure>);

/// All workloads by name.
const WORKLOADS: &[Workload] = &[
    ("product", product),
    ("mlp", perceptron),
    ("cnn", convolutional),
    ("resnet50", residual),
    ("lstm", recurrent),
    ("copy_on_device", copy_on_device),
    ("copy_to_device", copy_to_device),
    ("copy_pageable_to_device", copy_pageable_to_device),
    ("copy_from_device", copy_from_device),
];

/// Number of bytes that a step of a copy workload copies.
const COPY_BYTES: usize = 256 << 20;

/// Number of steps before the measurement, in which kernels are compiled, plans are made and memory is allocated.
const WARM_UP: usize = 10;

/// Number of timed windows, each of duration `WINDOW`.
const WINDOWS: usize = 15;
const WINDOW: Duration = Duration::from_millis(200);

fn main() -> Fallible {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = arguments.iter().map(String::as_str).filter(|a| !a.starts_with('-')).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if let Some(unknown) = names.iter().find(|name| WORKLOADS.iter().all(|(known, _)| known != *name)) {
        return Err(format!("there is no workload {unknown}").into());
    }
    let mode = match gpus::find_gpus(&GpuSelection::All) {
        _ if has("--cpu") => DeviceMode::SmallOnCpu,
        // `cargo test` also runs this program, but without `--bench`, and the program must then measure nothing.
        Ok(_) if names.is_empty() && !has("--bench") => {
            println!("nothing is measured: --bench, or names of workloads, are not given");
            return Ok(());
        }
        Ok(_) => DeviceMode::Gpu { graphs: !has("--no-cuda-graphs") },
        // `scripts/gpu-suite` runs this program on machines that have a GPU, so a missing GPU is an error.
        Err(error) if std::env::var_os("ANABRANCH_GPU_SUITE").is_some() => return Err(error.into()),
        Err(error) => {
            println!("nothing is measured, for there is no GPU: {error}");
            return Ok(());
        }
    };
    for (name, measure) in WORKLOADS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let Figure { unit, value } = measure(mode).map_err(|error| format!("{name}: {error}"))?;
        println!("RESULT {}", serde_json::json!({ "workload": name, unit: value }));
    }
    Ok(())
}

/// The device on which workloads run: a GPU at full size, or the CPU at small sizes.
#[derive(Clone, Copy, Debug)]
enum DeviceMode {
    Gpu { graphs: bool },
    SmallOnCpu,
}

impl DeviceMode {
    fn device(self) -> &'static str {
        match self {
            DeviceMode::Gpu { .. } => "/device:GPU:0",
            DeviceMode::SmallOnCpu => "/device:CPU:0",
        }
    }

    fn size(self, full: usize, small: usize) -> usize {
        match self {
            DeviceMode::Gpu { .. } => full,
            DeviceMode::SmallOnCpu => small,
        }
    }

    fn windows(self) -> (usize, Duration) {
        match self {
            DeviceMode::Gpu { .. } => (WINDOWS, WINDOW),
            DeviceMode::SmallOnCpu => (1, Duration::ZERO),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Figure {
    /// The unit of `value`: `step_us`, microseconds per step, or `MBps`, 10^6 bytes per second.
    unit: &'static str,
    value: f64,
}

impl Figure {
    fn step(seconds: f64) -> Figure {
        Figure { unit: "step_us", value: 1e6 * seconds }
    }

    fn rate(bytes: usize, seconds: f64) -> Figure {
        Figure { unit: "MBps", value: bytes as f64 / 1e6 / seconds }
    }
}

/// Opens a session in this process. Nodes without a GPU kernel run on the CPU.
fn session(mode: DeviceMode, graph: Graph) -> Fallible<Session> {
    let graphs = matches!(mode, DeviceMode::Gpu { graphs: true });
    let server =
        ServerConfig { gpus: GpuOptions { graphs, ..GpuOptions::default() }, ..ServerConfig::default() };
    let config = pb::ConfigProto { allow_soft_placement: true, ..Default::default() };
    let options = SessionOptions { config, ..SessionOptions::default() };
    Ok(Session::local_with(graph, server, options)?)
}

/// Returns the median time of a step in seconds, over windows of several steps. A window enqueues its steps one after
/// the other and waits only for the last one, by a fetch that ends when the device has finished all steps of the
/// window.
fn step_time(mode: DeviceMode, step: &Callable<'_>, last: &Callable<'_>, values: &[Tensor]) -> Fallible<f64> {
    let run = |steps: usize| -> Fallible<f64> {
        let started = Instant::now();
        for _ in 1..steps {
            step.call(&[])?;
        }
        last.call(values)?;
        Ok(started.elapsed().as_secs_f64() / steps as f64)
    };
    run(WARM_UP)?;
    let (windows, window) = mode.windows();
    let steps = (window.as_secs_f64() / run(WARM_UP)?).clamp(1.0, 10_000.0) as usize;
    let mut times = (0..windows).map(|_| run(steps)).collect::<Fallible<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Runs the node `first` once, and returns the median time in seconds of a step that runs the node `step`. A fetch of
/// `end` runs such a step and waits for its end.
fn time(mode: DeviceMode, graph: Graph, first: NodeId, step: NodeId, end: Output) -> Fallible<f64> {
    let session = session(mode, graph)?;
    session.run(&[], &[], &[first])?;
    let (step, last) = (session.callable(&[], &[], &[step])?, session.callable(&[], &[end], &[])?);
    step_time(mode, &step, &last, &[])
}

/// Returns the median time in seconds of a call, where each call ends before the next one starts.
fn call_time(mode: DeviceMode, call: &Callable<'_>, values: &[Tensor]) -> Fallible<f64> {
    let one = || -> Fallible<f64> {
        let started = Instant::now();
        call.call(values)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (windows, _) = mode.windows();
    for _ in 0..windows.min(WARM_UP) {
        one()?;
    }
    let mut times = (0..windows).map(|_| one()).collect::<Fallible<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Measures the product of two square matrices in bfloat16.
fn product(mode: DeviceMode) -> Fallible<Figure> {
    let size = mode.size(8192, 64);
    let scope = Scope::new().device(mode.device());
    let variables = Variables::new(&scope);
    let factor = |name: &str, seed| {
        let first = Initializer::TruncatedNormal { stddev: 1.0, seed };
        variables.get_untrained(name, DType::BFloat16, &[size, size], &first).value
    };
    let product = scope.matmul(factor("a", 1), factor("b", 2));
    let corner = scope.slice(product, &[0, 0], &[1, 1]);
    let first = variables.initializer();
    Ok(Figure::step(time(mode, scope.finish()?, first, product.node, corner)?))
}

/// Measures training steps of the model whose scores `scores` returns.
fn training(
    mode: DeviceMode,
    batch: Batch<'_>,
    optimizer: &Optimizer,
    scores: impl Fn(&Layers<'_>, Output) -> Output,
) -> Fallible<Figure> {
    let Model { graph, training, step, done, .. } = Model::build(mode.device(), batch, optimizer, scores)?;
    Ok(Figure::step(time(mode, graph, training.initialize, step, done)?))
}

fn perceptron(mode: DeviceMode) -> Fallible<Figure> {
    let (examples, hidden) = (mode.size(128, 8), mode.size(4096, 16));
    let batch = Batch { shape: &[examples, 784], examples, classes: 10 };
    training(mode, batch, &Optimizer::gradient_descent(0.01), |layers, x| mlp(layers, x, hidden, 10))
}

fn convolutional(mode: DeviceMode) -> Fallible<Figure> {
    let (examples, filters) = (mode.size(64, 4), mode.size(32, 2));
    let batch = Batch { shape: &[examples, 28, 28, 1], examples, classes: 10 };
    training(mode, batch, &Optimizer::adam(0.001), |layers, x| small_cnn(layers, x, filters, 10))
}

fn residual(mode: DeviceMode) -> Fallible<Figure> {
    let (examples, side) = (mode.size(64, 2), mode.size(224, 32));
    let small = ResNet { blocks: [1; 4], width: 4, classes: 10 };
    let model = if matches!(mode, DeviceMode::Gpu { .. }) { ResNet::FIFTY } else { small };
    let batch = Batch { shape: &[examples, side, side, 3], examples, classes: model.classes };
    training(mode, batch, &Optimizer::momentum(0.1, 0.9), |layers, x| model.scores(layers, x))
}

fn recurrent(mode: DeviceMode) -> Fallible<Figure> {
    let (turns, examples, units) = (mode.size(32, 3), mode.size(64, 4), mode.size(512, 8));
    let batch = Batch { shape: &[turns, examples, units], examples, classes: 10 };
    training(mode, batch, &Optimizer::gradient_descent(0.1), |layers, x| {
        let (last, _) = lstm(layers, "lstm", x, units);
        layers.dense("scores", last, 10)
    })
}

/// Returns the shape of the float32 tensor that each copy workload copies.
fn copied_shape(mode: DeviceMode) -> Fallible<Shape> {
    Ok(Shape::new(&[mode.size(COPY_BYTES, 4096) / size_of::<f32>()])?)
}

/// Measures copies within the device, by the concatenation of two tensors.
fn copy_on_device(mode: DeviceMode) -> Fallible<Figure> {
    let count = copied_shape(mode)?.num_elements();
    let scope = Scope::new().device(mode.device());
    let variables = Variables::new(&scope);
    let half = |name: &str, value| {
        let first = Initializer::Constant(value);
        variables.get_untrained(name, DType::Float, &[count / 2], &first).value
    };
    let joined = scope.concat(&[half("a", 1.0), half("b", 2.0)], 0);
    let corner = scope.slice(joined, &[0], &[1]);
    let first = variables.initializer();
    let seconds = time(mode, scope.finish()?, first, joined.node, corner)?;
    Ok(Figure::rate(count * size_of::<f32>(), seconds))
}

/// Measures copies to the device from pinned memory: feeds a tensor that was fetched from the device.
fn copy_to_device(mode: DeviceMode) -> Fallible<Figure> {
    feed(mode, |session, variable| Ok(session.run(&[], &[variable], &[])?.remove(0)))
}

/// Measures copies to the device from pageable memory: feeds a tensor that was allocated by the client.
fn copy_pageable_to_device(mode: DeviceMode) -> Fallible<Figure> {
    let shape = copied_shape(mode)?;
    feed(mode, |_, _| Ok(Tensor::full(1.0f32, shape)?))
}

/// Measures steps that are fed the tensor that `make` returns for a session and a variable of the same shape; each
/// step fetches one element.
fn feed(mode: DeviceMode, make: impl FnOnce(&Session, Output) -> Fallible<Tensor>) -> Fallible<Figure> {
    let shape = copied_shape(mode)?;
    let scope = Scope::new().device(mode.device());
    let variables = Variables::new(&scope);
    let variable = variables.get_untrained("held", DType::Float, shape.dims(), &Initializer::Constant(1.0));
    let fed = scope.placeholder("fed", DType::Float, PartialShape::from(&shape));
    let corner = scope.slice(fed, &[0], &[1]);
    let first = variables.initializer();
    let session = session(mode, scope.finish()?)?;
    session.run(&[], &[], &[first])?;
    let value = make(&session, variable.value)?;
    let seconds = call_time(mode, &session.callable(&[fed], &[corner], &[])?, &[value])?;
    Ok(Figure::rate(shape.num_elements() * size_of::<f32>(), seconds))
}

/// Measures copies from the device: fetches a variable.
fn copy_from_device(mode: DeviceMode) -> Fallible<Figure> {
    let shape = copied_shape(mode)?;
    let scope = Scope::new().device(mode.device());
    let variables = Variables::new(&scope);
    let first = Initializer::Constant(1.0);
    let variable = variables.get_untrained("held", DType::Float, shape.dims(), &first);
    let first = variables.initializer();
    let session = session(mode, scope.finish()?)?;
    session.run(&[], &[], &[first])?;
    let seconds = call_time(mode, &session.callable(&[], &[variable.value], &[])?, &[])?;
    Ok(Figure::rate(shape.num_elements() * size_of::<f32>(), seconds))
}
