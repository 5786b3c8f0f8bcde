//! Times of steps on a GPU: a product, models in training, copies. `benches/peer/gpu/compare.py` runs this and PyTorch in
//! turn; `cargo bench --bench gpu -- mlp` runs one workload, `--no-cuda-graphs` launches each kernel by itself, `--cpu` runs
//! all of them in small sizes on a CPU, to see that they run. Without a GPU it says so.
#![allow(clippy::print_stdout)]

#[path = "../examples/models/mod.rs"]
mod models;

use client::{Callable, ServerConfig, Session, SessionOptions};
use executor::gpus::{self, GpuOptions, Visible};
use graph::{DType, Graph, NodeId, Output, PartialShape, Scope, Shape, Tensor};
use models::{Batch, Layers, Model, ResNet, lstm, mlp, small_cnn};
use proto::pb;
use std::error::Error;
use std::time::{Duration, Instant};
use train::{Initializer, Optimizer, Variables};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Fallible<T = ()> = Result<T, Box<dyn Error>>;

/// What a workload is called, and what measures it.
type Workload = (&'static str, fn(Place) -> Fallible<Figure>);

/// What is run, by name, and what is measured of it.
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

/// Bytes that are copied.
const COPIED: usize = 256 << 20;

/// Steps before any is timed: kernels are compiled, plans are made, memory is kept.
const WARM_UP: usize = 10;

/// How often so long is timed.
const WINDOWS: usize = 15;
const WINDOW: Duration = Duration::from_millis(200);

fn main() -> Fallible {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = arguments.iter().map(String::as_str).filter(|a| !a.starts_with('-')).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if let Some(unknown) = names.iter().find(|name| WORKLOADS.iter().all(|(known, _)| known != *name)) {
        return Err(format!("there is no workload {unknown}").into());
    }
    let place = match gpus::found(&Visible::All) {
        _ if has("--cpu") => Place::SmallOnCpu,
        // `cargo test` starts benches too, and measures nothing.
        Ok(_) if names.is_empty() && !has("--bench") => {
            println!("nothing is measured: --bench, or names of workloads, are not given");
            return Ok(());
        }
        Ok(_) => Place::Gpu { graphs: !has("--no-cuda-graphs") },
        // The suite is for machines that have one.
        Err(error) if std::env::var_os("ANABRANCH_GPU_SUITE").is_some() => return Err(error.into()),
        Err(error) => {
            println!("nothing is measured, for there is no GPU: {error}");
            return Ok(());
        }
    };
    for (name, measure) in WORKLOADS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let Figure { what, value } = measure(place).map_err(|error| format!("{name}: {error}"))?;
        println!("RESULT {}", serde_json::json!({ "workload": name, what: value }));
    }
    Ok(())
}

/// Where workloads run.
#[derive(Clone, Copy, Debug)]
enum Place {
    Gpu { graphs: bool },
    SmallOnCpu,
}

impl Place {
    fn device(self) -> &'static str {
        match self {
            Place::Gpu { .. } => "/device:GPU:0",
            Place::SmallOnCpu => "/device:CPU:0",
        }
    }

    fn size(self, full: usize, small: usize) -> usize {
        match self {
            Place::Gpu { .. } => full,
            Place::SmallOnCpu => small,
        }
    }

    fn windows(self) -> (usize, Duration) {
        match self {
            Place::Gpu { .. } => (WINDOWS, WINDOW),
            Place::SmallOnCpu => (1, Duration::ZERO),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Figure {
    /// `step_us`, or `MBps`.
    what: &'static str,
    value: f64,
}

impl Figure {
    fn step(seconds: f64) -> Figure {
        Figure { what: "step_us", value: 1e6 * seconds }
    }

    fn rate(bytes: usize, seconds: f64) -> Figure {
        Figure { what: "MBps", value: bytes as f64 / 1e6 / seconds }
    }
}

/// A session in this process. What has no kernel on the device runs on the CPU.
fn session(place: Place, graph: Graph) -> Fallible<Session> {
    let graphs = matches!(place, Place::Gpu { graphs: true });
    let server =
        ServerConfig { gpus: GpuOptions { graphs, ..GpuOptions::default() }, ..ServerConfig::default() };
    let config = pb::ConfigProto { allow_soft_placement: true, ..Default::default() };
    let options = SessionOptions { config, ..SessionOptions::default() };
    Ok(Session::local_with(graph, server, options)?)
}

/// The median time of a step, seconds. Steps are run one after the other, and only the last of a window is waited for: it
/// ends when the device has done all of them.
fn step_time(place: Place, step: &Callable<'_>, last: &Callable<'_>, values: &[Tensor]) -> Fallible<f64> {
    let run = |steps: usize| -> Fallible<f64> {
        let started = Instant::now();
        for _ in 1..steps {
            step.call(&[])?;
        }
        last.call(values)?;
        Ok(started.elapsed().as_secs_f64() / steps as f64)
    };
    run(WARM_UP)?;
    let (windows, window) = place.windows();
    let steps = (window.as_secs_f64() / run(WARM_UP)?).clamp(1.0, 10_000.0) as usize;
    let mut times = (0..windows).map(|_| run(steps)).collect::<Fallible<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Times a step after `first` has run; who fetches `end` runs a step and waits for it.
fn time(place: Place, graph: Graph, first: NodeId, step: NodeId, end: Output) -> Fallible<f64> {
    let session = session(place, graph)?;
    session.run(&[], &[], &[first])?;
    let (step, last) = (session.callable(&[], &[], &[step])?, session.callable(&[], &[end], &[])?);
    step_time(place, &step, &last, &[])
}

/// The median time of calls that are waited for one by one, seconds.
fn call_time(place: Place, call: &Callable<'_>, values: &[Tensor]) -> Fallible<f64> {
    let one = || -> Fallible<f64> {
        let started = Instant::now();
        call.call(values)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (windows, _) = place.windows();
    for _ in 0..windows.min(WARM_UP) {
        one()?;
    }
    let mut times = (0..windows).map(|_| one()).collect::<Fallible<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// A square matrix times another, in bfloat16.
fn product(place: Place) -> Fallible<Figure> {
    let size = place.size(8192, 64);
    let scope = Scope::new().device(place.device());
    let variables = Variables::new(&scope);
    let factor = |name: &str, seed| {
        let first = Initializer::TruncatedNormal { stddev: 1.0, seed };
        variables.get_untrained(name, DType::BFloat16, &[size, size], &first).value
    };
    let product = scope.matmul(factor("a", 1), factor("b", 2));
    let corner = scope.slice(product, &[0, 0], &[1, 1]);
    let first = variables.initializer();
    Ok(Figure::step(time(place, scope.finish()?, first, product.node, corner)?))
}

/// A model's training step.
fn training(
    place: Place,
    batch: Batch<'_>,
    optimizer: &Optimizer,
    scores: impl Fn(&Layers<'_>, Output) -> Output,
) -> Fallible<Figure> {
    let Model { graph, training, step, done, .. } = Model::build(place.device(), batch, optimizer, scores)?;
    Ok(Figure::step(time(place, graph, training.initialize, step, done)?))
}

fn perceptron(place: Place) -> Fallible<Figure> {
    let (examples, hidden) = (place.size(128, 8), place.size(4096, 16));
    let batch = Batch { shape: &[examples, 784], examples, classes: 10 };
    training(place, batch, &Optimizer::gradient_descent(0.01), |layers, x| mlp(layers, x, hidden, 10))
}

fn convolutional(place: Place) -> Fallible<Figure> {
    let (examples, filters) = (place.size(64, 4), place.size(32, 2));
    let batch = Batch { shape: &[examples, 28, 28, 1], examples, classes: 10 };
    training(place, batch, &Optimizer::adam(0.001), |layers, x| small_cnn(layers, x, filters, 10))
}

fn residual(place: Place) -> Fallible<Figure> {
    let (examples, side) = (place.size(64, 2), place.size(224, 32));
    let small = ResNet { blocks: [1; 4], width: 4, classes: 10 };
    let model = if matches!(place, Place::Gpu { .. }) { ResNet::FIFTY } else { small };
    let batch = Batch { shape: &[examples, side, side, 3], examples, classes: model.classes };
    training(place, batch, &Optimizer::momentum(0.1, 0.9), |layers, x| model.scores(layers, x))
}

fn recurrent(place: Place) -> Fallible<Figure> {
    let (turns, examples, units) = (place.size(32, 3), place.size(64, 4), place.size(512, 8));
    let batch = Batch { shape: &[turns, examples, units], examples, classes: 10 };
    training(place, batch, &Optimizer::gradient_descent(0.1), |layers, x| {
        let (last, _) = lstm(layers, "lstm", x, units);
        layers.dense("scores", last, 10)
    })
}

/// Float32 elements that are copied, and the shape of so many.
fn copied(place: Place) -> Fallible<Shape> {
    Ok(Shape::new(&[place.size(COPIED, 4096) / size_of::<f32>()])?)
}

/// Two tensors joined.
fn copy_on_device(place: Place) -> Fallible<Figure> {
    let count = copied(place)?.num_elements();
    let scope = Scope::new().device(place.device());
    let variables = Variables::new(&scope);
    let half = |name: &str, value| {
        let first = Initializer::Constant(value);
        variables.get_untrained(name, DType::Float, &[count / 2], &first).value
    };
    let joined = scope.concat(&[half("a", 1.0), half("b", 2.0)], 0);
    let corner = scope.slice(joined, &[0], &[1]);
    let first = variables.initializer();
    let seconds = time(place, scope.finish()?, first, joined.node, corner)?;
    Ok(Figure::rate(count * size_of::<f32>(), seconds))
}

/// A tensor that lies in pinned memory, as one does that came from the device, is fed, and a number of it comes back.
fn copy_to_device(place: Place) -> Fallible<Figure> {
    feed(place, |session, held| Ok(session.run(&[], &[held], &[])?.remove(0)))
}

/// The same of a tensor that lies anywhere.
fn copy_pageable_to_device(place: Place) -> Fallible<Figure> {
    let shape = copied(place)?;
    feed(place, |_, _| Ok(Tensor::full(1.0f32, shape)?))
}

/// Times feeds of a tensor that is made of a session and of a variable of as many elements.
fn feed(place: Place, make: impl FnOnce(&Session, Output) -> Fallible<Tensor>) -> Fallible<Figure> {
    let shape = copied(place)?;
    let scope = Scope::new().device(place.device());
    let variables = Variables::new(&scope);
    let held = variables.get_untrained("held", DType::Float, shape.dims(), &Initializer::Constant(1.0));
    let fed = scope.placeholder("fed", DType::Float, PartialShape::from(&shape));
    let corner = scope.slice(fed, &[0], &[1]);
    let first = variables.initializer();
    let session = session(place, scope.finish()?)?;
    session.run(&[], &[], &[first])?;
    let value = make(&session, held.value)?;
    let seconds = call_time(place, &session.callable(&[fed], &[corner], &[])?, &[value])?;
    Ok(Figure::rate(shape.num_elements() * size_of::<f32>(), seconds))
}

/// A variable that is fetched.
fn copy_from_device(place: Place) -> Fallible<Figure> {
    let shape = copied(place)?;
    let scope = Scope::new().device(place.device());
    let variables = Variables::new(&scope);
    let first = Initializer::Constant(1.0);
    let held = variables.get_untrained("held", DType::Float, shape.dims(), &first);
    let first = variables.initializer();
    let session = session(place, scope.finish()?)?;
    session.run(&[], &[], &[first])?;
    let seconds = call_time(place, &session.callable(&[], &[held.value], &[])?, &[])?;
    Ok(Figure::rate(shape.num_elements() * size_of::<f32>(), seconds))
}
