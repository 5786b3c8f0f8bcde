//! Benchmark of single kernels on one and two threads. The cases are in `benches/peer/kernels/cases.txt`;
//! `benches/peer/kernels/kernels.py` runs the same cases in TensorFlow, and starts this program with `--answer
//! THREADS`.

use anabranch_kernels::testing::{lone_device, make_kernel, run_kernel};
use criterion::Criterion;
use device::Device;
use device::kernel::Kernel;
use device::{Error, Result, Value};
use graph::{AttrValue, DType, Node, Shape, Tensor};
use rayon::ThreadPool;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The allocator that the server programs use.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CASES: &str = include_str!("../../benches/peer/kernels/cases.txt");

/// A node and its inputs.
struct Case {
    node: Node,
    inputs: Vec<Tensor>,
}

type Attrs = Vec<(&'static str, AttrValue)>;

fn case(op: &str, n: &[usize]) -> Result<Case> {
    let (inputs, mut attrs): (Vec<Tensor>, Attrs) = match (op, n) {
        ("MatMul", &[m, k, n, flip_a, flip_b]) => {
            let dims = |rows, columns, flip| if flip == 1 { [columns, rows] } else { [rows, columns] };
            let attrs = vec![("transpose_a", (flip_a == 1).into()), ("transpose_b", (flip_b == 1).into())];
            (vec![noise(&dims(m, k, flip_a))?, noise(&dims(k, n, flip_b))?], attrs)
        }
        (_, &[batch, h, w, c, kh, kw, stride, outputs]) => {
            let (x, filter) = ([batch, h, w, c], [kh, kw, c, outputs]);
            let y = [batch, h.div_ceil(stride), w.div_ceil(stride), outputs];
            let inputs = match op {
                "Conv2D" => vec![noise(&x)?, noise(&filter)?],
                "Conv2DBackpropInput" => vec![sizes(&x)?, noise(&filter)?, noise(&y)?],
                _ => vec![noise(&x)?, sizes(&filter)?, noise(&y)?],
            };
            (inputs, window(None, stride))
        }
        (_, &[batch, h, w, c, size, stride]) => {
            let x = noise(&[batch, h, w, c])?;
            let attrs = window(Some(size), stride);
            let mut inputs = vec![x];
            if op.ends_with("Grad") {
                let mut pool = typed(op.trim_end_matches("Grad"), attrs.clone())?;
                pool.attrs.set("T", DType::Float);
                let device: Arc<Device> = Arc::new(lone_device());
                let kernel = make_kernel(&device, &pool)?;
                let out = run_kernel(&kernel, &device, &pool, vec![Value::Host(inputs[0].clone())])?;
                let y = out.into_iter().next();
                let Some(Value::Host(y)) = y else { return Err(Error::internal("no pooled image")) };
                let dy = noise(y.shape().dims())?;
                inputs.extend([y, dy]);
            }
            (inputs, attrs)
        }
        ("FusedBatchNormV3", &[batch, h, w, c]) => {
            let channel = || noise(&[c]);
            (vec![noise(&[batch, h, w, c])?, channel()?, channel()?, empty()?, empty()?], Vec::new())
        }
        ("FusedBatchNormGradV3", &[batch, h, w, c]) => {
            let (x, channel) = (|| noise(&[batch, h, w, c]), || noise(&[c]));
            (vec![x()?, x()?, channel()?, channel()?, channel()?, channel()?], Vec::new())
        }
        ("BiasAdd", &[rows, columns]) => (vec![noise(&[rows, columns])?, noise(&[columns])?], Vec::new()),
        ("SparseSoftmaxCrossEntropyWithLogits", &[rows, columns]) => {
            let labels: Vec<i32> = (0..rows).map(|i| (i * 7 % columns) as i32).collect();
            (vec![noise(&[rows, columns])?, Tensor::vector(&labels)?], vec![("Tlabels", DType::Int32.into())])
        }
        (_, &[rows, columns]) => (vec![noise(&[rows, columns])?], Vec::new()),
        (_, &[rows, columns, axis]) => {
            let attrs = vec![("keep_dims", false.into()), ("Tidx", DType::Int32.into())];
            (vec![noise(&[rows, columns])?, Tensor::vector(&[axis as i32])?], attrs)
        }
        ("AddV2" | "Mul" | "ReluGrad", &[n]) => (vec![noise(&[n])?, noise(&[n])?], Vec::new()),
        (_, &[n]) => (vec![noise(&[n])?], Vec::new()),
        _ => return Err(Error::invalid(format!("no case of {op} has {} sizes", n.len()))),
    };
    if op.starts_with("FusedBatchNorm") {
        attrs.push(("U", DType::Float.into()));
    }
    Ok(Case { node: typed(op, attrs)?, inputs })
}

fn typed(op: &str, attrs: Attrs) -> Result<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("case", op).with_attr("T", DType::Float);
    attrs.into_iter().for_each(|(name, value)| node.attrs.set(name, value));
    Ok(node)
}

fn window(size: Option<usize>, stride: usize) -> Attrs {
    let list = |n: usize| -> AttrValue { vec![1, n as i64, n as i64, 1].into() };
    let mut attrs = vec![("strides", list(stride)), ("padding", "SAME".into())];
    attrs.extend(size.map(|size| ("ksize", list(size))));
    attrs
}

/// Returns pseudo-random numbers from 0.5 to 1.5.
fn noise(dims: &[usize]) -> Result<Tensor> {
    let shape = Shape::new(dims)?;
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 + 0.5
    };
    let values: Vec<f32> = (0..shape.num_elements()).map(next).collect();
    Ok(Tensor::from_slice(&values, shape)?)
}

fn sizes(dims: &[usize]) -> Result<Tensor> {
    Ok(Tensor::vector(&dims.iter().map(|&d| d as i32).collect::<Vec<_>>())?)
}

fn empty() -> Result<Tensor> {
    noise(&[0])
}

/// A case with its kernel.
struct PreparedCase {
    case: Case,
    kernel: Kernel,
    device: Arc<Device>,
}

impl PreparedCase {
    fn new(line: &str) -> Result<PreparedCase> {
        let (op, numbers) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Vec<usize> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
        let device: Arc<Device> = Arc::new(lone_device());
        let case = case(op, &numbers)?;
        let kernel = make_kernel(&device, &case.node)?;
        Ok(PreparedCase { case, kernel, device })
    }

    /// Returns the average seconds per run over `runs` runs.
    fn seconds(&self, runs: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..runs {
            self.run()?;
        }
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }

    fn run(&self) -> Result<Vec<Value>> {
        let inputs = self.case.inputs.iter().cloned().map(Value::Host).collect();
        run_kernel(&self.kernel, &self.device, &self.case.node, inputs)
    }
}

fn pool(threads: usize) -> Result<ThreadPool> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|e| Error::internal(e.to_string()))
}

fn measure(criterion: &mut Criterion, line: &str, threads: usize) -> Result<()> {
    let pool = pool(threads)?;
    let mut made: Option<Result<PreparedCase>> = None;
    criterion.bench_function(&format!("{line} @{threads}"), |bencher| {
        // The benchmark calls this closure only for selected cases, so only they allocate their inputs.
        let Ok(ready) = made.get_or_insert_with(|| PreparedCase::new(line)) else { return };
        assert!(ready.run().is_ok(), "{line} fails");
        pool.install(|| bencher.iter(|| ready.run()));
    });
    made.map_or(Ok(()), |made| made.map(drop))
}

/// Duration of the measurements for one answer, and of each measurement, in seconds; the answer is their median. The
/// values are those of `kernels.py`.
const ANSWER_TIME: Duration = Duration::from_millis(100);
const MEASUREMENT: f64 = 0.02;
const MAX_RUNS: f64 = 50.0;

/// Reads lines from the standard input and answers each with the median seconds per run. A line that is not empty
/// names a new case; an empty line measures the last case again.
fn answer(threads: usize) -> Result<()> {
    let (pool, mut ready) = (pool(threads)?, None);
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::internal(e.to_string()))?;
        if !line.is_empty() {
            ready = Some(PreparedCase::new(&line)?);
        }
        let ready = ready.as_ref().ok_or_else(|| Error::invalid("no case was named"))?;
        let seconds = pool.install(|| median_seconds(ready))?;
        writeln!(std::io::stdout(), "RESULT {seconds}").map_err(|e| Error::internal(e.to_string()))?;
    }
    Ok(())
}

fn median_seconds(ready: &PreparedCase) -> Result<f64> {
    let runs = (MEASUREMENT / ready.seconds(1)?).clamp(1.0, MAX_RUNS) as usize;
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < ANSWER_TIME || times.len() < 3 {
        times.push(ready.seconds(runs)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--answer") {
        let threads = arguments.get(at + 1).and_then(|threads| threads.parse().ok());
        return answer(threads.ok_or_else(|| Error::invalid("--answer needs a number of threads"))?);
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for line in CASES.lines().filter(|line| !line.starts_with('#')) {
        for threads in [1, 2] {
            measure(&mut criterion, line, threads)?;
        }
    }
    criterion.final_summary();
    Ok(())
}
