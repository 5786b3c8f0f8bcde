//! Times of a training step of one worker alone and of workers that combine their gradients:
//! `cargo bench --bench data_parallel -- --model mlp --workers 2`. The models are those of PyTorch's figures in
//! docs/performance/collectives.md: `mlp` has 8.9 M parameters, `cnn` 0.62 M; a batch has 64 examples a worker. Each
//! worker is a process with one compute thread, which holds a server and its client. The first worker prints a line of
//! JSON for each way: `alone`, while the others are idle; `side_by_side`, where all train at the same time, each for
//! itself; and `all_reduce`. `--steps` sets the number of steps, `--threads` that of compute threads, `--transport` one
//! of auto, shm, tcp.
#![allow(clippy::print_stdout)]

use anabranch::client::{Server, ServerConfig};
use anabranch::graph::{DType, Output, Scope, Shape, TaskName, Tensor};
use anabranch::proto::Cluster;
use anabranch::train::{
    Average, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Role, Strategy, Tables,
    Uneven, Variables, Wire,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const BATCH: usize = 64;
const CLASSES: usize = 10;
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

/// A worker's process, and the pipes by which it takes and answers commands.
struct WorkerProcess {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Starts the workers, and lets them train in each way.
fn lead() -> Fallible {
    let count = number("--workers", 2)?;
    let ports = (0..count).map(|_| Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string()));
    let ports = ports.collect::<Fallible<Vec<String>>>()?.join(",");
    let mut workers = (0..count).map(|worker| start(worker, &ports)).collect::<Fallible<Vec<_>>>()?;
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

fn start(worker: usize, ports: &str) -> Fallible<WorkerProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args().skip(1)).args(["--worker", &worker.to_string(), "--ports", ports]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (commands, answers) = (child.stdin.take(), child.stdout.take());
    let (commands, answers) = commands.zip(answers).ok_or("a worker without pipes")?;
    Ok(WorkerProcess { child, commands, answers: BufReader::new(answers) })
}

/// Serves one task, and trains as the commands say.
fn work(worker: u32) -> Fallible {
    let mut cluster = Cluster::new();
    let ports = option("--ports").ok_or("no ports")?;
    for (task, port) in (0..).zip(ports.split(',')) {
        cluster.insert("worker", task, &format!("127.0.0.1:{port}"))?;
    }
    let workers = ports.split(',').count() as u32;
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
        let strategy = match way.as_str() {
            "all_reduce" => all_reduce(worker, workers),
            _ => Strategy::Local,
        };
        let is_chief = way != "all_reduce" || worker == 0;
        let mut times = train(&strategy, Master::Remote(format!("grpc://{address}")), is_chief)?;
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

/// Trains, and returns the times of the steps.
fn train(strategy: &Strategy, master: Master, is_chief: bool) -> Fallible<Vec<Duration>> {
    let is_cnn = model_name() == "cnn";
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let shape: &[usize] = if is_cnn { &[BATCH, 32, 32, 3] } else { &[BATCH, 784] };
    let labels: Vec<i32> = (0..BATCH).map(|i| (i % CLASSES) as i32).collect();
    let batch = [scope.constant(examples(shape)?), scope.constant(Tensor::vector(&labels)?)];
    let loss = |scope: &Scope, variables: &Variables, batch: &[Output]| {
        let layers = Layers { scope, variables };
        let logits = if is_cnn { layers.cnn(batch[0]) } else { layers.mlp(batch[0]) };
        scope.mean(scope.sparse_softmax_cross_entropy(logits, batch[1]), &[0], false)
    };
    let training = strategy.minimize(&scope, &variables, &Optimizer::gradient_descent(0.01), &batch, loss)?;
    let step = training.train;
    let config = MonitoredConfig { role: Role::fixed(is_chief), ..MonitoredConfig::default() };
    let mut session = MonitoredSession::new(master, root.finish()?, training, None, Vec::new(), config)?;
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

/// The layers of the models.
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

    fn cnn(&self, images: Output) -> Output {
        let Layers { scope, .. } = self;
        let x = self.conv("conv_0", images, 3, 32);
        let x = self.conv("conv_1", scope.max_pool(x, [2, 2], [2, 2], "VALID"), 32, 64);
        let x = self.conv("conv_2", scope.max_pool(x, [2, 2], [2, 2], "VALID"), 64, 128);
        let flat = scope.reshape(scope.avg_pool(x, [2, 2], [2, 2], "VALID"), &[BATCH as i64, 2048]);
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
