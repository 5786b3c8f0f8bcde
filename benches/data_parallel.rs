//! Times of a training step of one worker alone and of workers that combine their gradients: `cargo bench --bench
//! data_parallel -- --model mlp --workers 2`. The models are those of PyTorch's figures in
//! docs/performance/collectives.md: `mlp` has 8.9 M parameters, `cnn` 0.62 M; a batch has 64 examples a worker
//! (`--batch`). `deep` has 24 layers of 1 MiB, for measurements over a network. Each worker is a process with one
//! compute thread, which runs a server and its client. The first worker prints a line of JSON for each way of training:
//! `alone`, while the other workers are idle; `side_by_side`, in which all workers train at the same time without
//! combining gradients; and `all_reduce`. `--steps` sets the number of steps, `--threads` that of compute threads,
//! `--transport` one of auto, shm, tcp; `--trace FOLDER` writes every twentieth step as an event file of TensorBoard.
//!
//! `benches/peer/overlap.py` runs each worker on a separate host, also in the ways `exchange_alone` and `exchange`:
//! gradients of the same sizes that take no time to compute are applied without and with the combination.
#![allow(clippy::print_stdout)]

use anabranch::client::{Server, ServerConfig};
use anabranch::graph::{DType, Output, Scope, Shape, TaskName, Tensor};
use anabranch::proto::Cluster;
use anabranch::train::{
    Average, Events, Hook, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Period, Role,
    Strategy, Tables, Uneven, Variables, Wire, hooks,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const CLASSES: usize = 10;
/// Number of units of a layer of the model `deep`.
const DEEP_UNITS: usize = 512;
/// Number of steps before those that are timed.
const WARM_UP: usize = 5;

fn main() -> Fallible {
    match option("--worker") {
        Some(worker) => work(worker.parse()?),
        None => lead(),
    }
}

/// Returns the value of an option of the command line.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn number(name: &str, default: usize) -> Fallible<usize> {
    Ok(option(name).map_or(Ok(default), |value| value.parse())?)
}

/// A worker's process, and the pipes over which it receives commands and sends results.
struct WorkerProcess {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Starts the workers, and makes them train in each of the ways.
fn lead() -> Fallible {
    let count = number("--workers", 2)?;
    let addresses = (0..count).map(|_| Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string()));
    let addresses = addresses.collect::<Fallible<Vec<String>>>()?.join(",");
    let mut workers = (0..count).map(|worker| start(worker, &addresses)).collect::<Fallible<Vec<_>>>()?;
    for (way, involved) in [("alone", 1), ("side_by_side", count), ("all_reduce", count)] {
        for worker in &mut workers[..involved] {
            writeln!(worker.commands, "{way}")?;
        }
        for (index, worker) in workers[..involved].iter_mut().enumerate() {
            let mut answer = String::new();
            worker.answers.read_line(&mut answer)?;
            if answer.is_empty() {
                return Err(format!("worker {index} has failed").into());
            }
            if index == 0 {
                print!("{answer}");
            }
        }
    }
    for mut worker in workers {
        drop(worker.commands);
        worker.child.wait()?;
    }
    Ok(())
}

fn start(worker: usize, addresses: &str) -> Fallible<WorkerProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args().skip(1)).args(["--worker", &worker.to_string(), "--addresses", addresses]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (commands, answers) = (child.stdin.take(), child.stdout.take());
    let (commands, answers) = commands.zip(answers).ok_or("a worker without pipes")?;
    Ok(WorkerProcess { child, commands, answers: BufReader::new(answers) })
}

/// Serves one task, and trains as the commands from standard input request.
fn work(worker: u32) -> Fallible {
    let mut cluster = Cluster::new();
    let addresses = option("--addresses").ok_or("no addresses")?;
    for (task, address) in (0..).zip(addresses.split(',')) {
        cluster.insert("worker", task, address)?;
    }
    let workers = addresses.split(',').count() as u32;
    let task = TaskName::new("worker", worker);
    let address = cluster.address(&task).ok_or("no address")?.to_owned();
    let runtime = Runtime::new()?;
    let config = ServerConfig {
        task,
        cluster,
        threads: number("--threads", 1)?,
        transport: option("--transport").unwrap_or("auto".into()).parse()?,
        ..ServerConfig::default()
    };
    let listening = address.clone();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::bind(&listening).await?;
        let server = Server::in_runtime(config)?;
        server.serve(listener, std::future::pending(), Duration::ZERO).await;
        Fallible::Ok(())
    });
    for command in std::io::stdin().lines() {
        let way = command?;
        let is_combined = matches!(way.as_str(), "all_reduce" | "exchange");
        let strategy = if is_combined { all_reduce(worker, workers) } else { Strategy::Local };
        let master = Master::Remote(format!("grpc://{address}"));
        let mut times = train(&way, &strategy, master, !is_combined || worker == 0)?;
        times.sort_unstable();
        let millis = |time: Duration| (time.as_secs_f64() * 1e5).round() / 100.0;
        let line = serde_json::json!({
            "peer": "anabranch", "model": model_name(), "workers": workers, "how": way,
            "ms": millis(times[times.len() / 2]), "min": millis(times[0]),
        });
        println!("{line}");
    }
    Ok(())
}

fn all_reduce(worker: u32, workers: u32) -> Strategy {
    Strategy::AllReduce {
        worker,
        workers,
        least: workers,
        average: Average::Mean,
        wire: Wire::F32,
        uneven: Uneven::Fail,
        tables: Tables::Replicated,
    }
}

fn model_name() -> String {
    option("--model").unwrap_or("mlp".into())
}

/// Trains in the way `way`, and returns the times of the steps. In the ways `exchange` and `exchange_alone` the loss is
/// the sum of the model's weights, whose gradients take no time to compute.
fn train(way: &str, strategy: &Strategy, master: Master, is_chief: bool) -> Fallible<Vec<Duration>> {
    let is_computed = !way.starts_with("exchange");
    let (model, count) = (model_name(), number("--batch", 64)?);
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let shape: &[usize] = match model.as_str() {
        "cnn" => &[count, 32, 32, 3],
        "deep" => &[count, DEEP_UNITS],
        _ => &[count, 784],
    };
    let labels: Vec<i32> = (0..count).map(|i| (i % CLASSES) as i32).collect();
    let batch = [scope.constant(examples(shape)?), scope.constant(Tensor::vector(&labels)?)];
    let loss = |scope: &Scope, variables: &Variables, batch: &[Output]| {
        let layers = Layers { scope, variables };
        let logits = match model.as_str() {
            "cnn" => layers.cnn(batch[0], count),
            "deep" => layers.deep(batch[0]),
            _ => layers.mlp(batch[0]),
        };
        if !is_computed {
            let weights = variables.trainable().into_iter().map(|v| scope.reshape(v.value, &[-1]));
            let sums: Vec<Output> = weights.map(|weights| scope.sum(weights, &[0], false)).collect();
            return scope.add_n(&sums);
        }
        scope.mean(scope.sparse_softmax_cross_entropy(logits, batch[1]), &[0], false)
    };
    let training = strategy.minimize(&scope, &variables, &Optimizer::gradient_descent(0.01), &batch, loss)?;
    let step = training.train;
    let config = MonitoredConfig { role: Role::fixed(is_chief), ..MonitoredConfig::default() };
    let hooks: Vec<Box<dyn Hook>> = match option("--trace") {
        Some(folder) => {
            let folder = format!("{folder}/{way}-{}", std::process::id());
            vec![Box::new(hooks::Profiler::new(Period::Steps(20), Events::create(folder)?))]
        }
        None => Vec::new(),
    };
    let mut session = MonitoredSession::new(master, root.finish()?, training, None, hooks, config)?;
    let mut times = Vec::new();
    for number in 0..WARM_UP + number("--steps", 60)? {
        let start = Instant::now();
        session.run(&[], &[], &[step])?.ok_or("the session has ended")?;
        if number >= WARM_UP {
            times.push(start.elapsed());
        }
    }
    session.finish()?;
    Ok(times)
}

/// Returns examples of pseudo-random elements between -1 and 1.
fn examples(shape: &[usize]) -> Fallible<Tensor> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let elements: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Ok(Tensor::vector(&elements)?.reshaped(Shape::new(shape)?)?)
}

/// A builder of the layers of the models.
struct Layers<'a> {
    scope: &'a Scope,
    variables: &'a Variables,
}

impl Layers<'_> {
    fn mlp(&self, images: Output) -> Output {
        let sizes = [(784, 2048), (2048, 2048), (2048, 1500)];
        let hidden = (0..).zip(sizes).fold(images, |x, (i, (inputs, units))| {
            self.scope.relu(self.dense(&format!("hidden_{i}"), x, inputs, units))
        });
        self.dense("logits", hidden, 1500, CLASSES)
    }

    /// Adds the model `deep`: 24 layers of 512 x 512 weights, 1 MiB each, and the last layer. Returns the scores.
    fn deep(&self, images: Output) -> Output {
        let hidden = (0..24).fold(images, |x, i| {
            self.scope.relu(self.dense(&format!("hidden_{i}"), x, DEEP_UNITS, DEEP_UNITS))
        });
        self.dense("logits", hidden, DEEP_UNITS, CLASSES)
    }

    fn cnn(&self, images: Output, count: usize) -> Output {
        let Layers { scope, .. } = self;
        let x = self.conv("conv_0", images, 3, 32);
        let x = self.conv("conv_1", scope.max_pool(x, [2, 2], [2, 2], "VALID"), 32, 64);
        let x = self.conv("conv_2", scope.max_pool(x, [2, 2], [2, 2], "VALID"), 64, 128);
        let flat = scope.reshape(scope.avg_pool(x, [2, 2], [2, 2], "VALID"), &[count as i64, 2048]);
        let hidden = scope.relu(self.dense("hidden", flat, 2048, 256));
        self.dense("logits", hidden, 256, CLASSES)
    }

    fn dense(&self, name: &str, x: Output, inputs: usize, units: usize) -> Output {
        let weights = self.weights(&format!("{name}/weights"), &[inputs, units]);
        self.scope.bias_add(self.scope.matmul(x, weights), self.bias(name, units))
    }

    fn conv(&self, name: &str, images: Output, inputs: usize, channels: usize) -> Output {
        let filter = self.weights(&format!("{name}/filter"), &[3, 3, inputs, channels]);
        let convolved = self.scope.conv2d(images, filter, [1, 1], "SAME");
        self.scope.relu(self.scope.bias_add(convolved, self.bias(name, channels)))
    }

    fn weights(&self, name: &str, shape: &[usize]) -> Output {
        let initializer = Initializer::GlorotUniform { seed: 1 };
        self.variables.get(name, DType::Float, shape, &initializer).value
    }

    fn bias(&self, name: &str, units: usize) -> Output {
        self.variables.get(&format!("{name}/bias"), DType::Float, &[units], &Initializer::Zeros).value
    }
}
