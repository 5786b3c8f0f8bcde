//! Benchmark of fused chains of element-wise ops, against the same ops run separately, and against the speed of
//! memory: a loop that reads as many large tensors and writes one, on as many threads.

use anabranch_kernels::testing::{lone_device, make_kernel, run_kernel};
use device::Device;
use device::kernel::Kernel;
use device::{Error, Result, Value};
use graph::{AttrList, AttrValue, DType, Node, Shape, Tensor};
use rayon::prelude::*;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// The allocator that the server programs use.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS: usize = 16 << 10;
const COLUMNS: usize = 1 << 10;
const ROUNDS: usize = 15;

/// A chain: its inputs, its ops, and their operands in the numbering of `_FusedElementwise`.
struct Case {
    name: &'static str,
    inputs: &'static [Input],
    ops: &'static [&'static str],
    operands: &'static [i64],
}

#[derive(Clone, Copy, PartialEq)]
enum Input {
    Matrix,
    Row,
    Scalar,
}

use Input::{Matrix, Row, Scalar};

const CASES: &[Case] = &[
    Case {
        name: "x * a + b",
        inputs: &[Matrix, Scalar, Scalar],
        ops: &["Mul", "AddV2"],
        operands: &[0, 1, 3, 2],
    },
    Case { name: "relu(x + row)", inputs: &[Matrix, Row], ops: &["BiasAdd", "Relu"], operands: &[0, 1, 2] },
    Case {
        name: "relu(x * y + row) * a",
        inputs: &[Matrix, Matrix, Row, Scalar],
        ops: &["Mul", "AddV2", "Relu", "Mul"],
        operands: &[0, 1, 4, 2, 5, 6, 3],
    },
    Case {
        name: "max(|x - y| * a + b, x)",
        inputs: &[Matrix, Matrix, Scalar, Scalar],
        ops: &["Sub", "Abs", "Mul", "AddV2", "Maximum"],
        operands: &[0, 1, 4, 5, 2, 6, 3, 7, 0],
    },
    Case {
        name: "sigmoid(x) * tanh(y)",
        inputs: &[Matrix, Matrix],
        ops: &["Sigmoid", "Tanh", "Mul"],
        operands: &[0, 1, 2, 3],
    },
];

impl Case {
    fn inputs(&self) -> Result<Vec<Tensor>> {
        let of = |input: &Input| {
            Ok(match input {
                Matrix => Tensor::full(0.5f32, Shape::new(&[ROWS, COLUMNS])?)?,
                Row => Tensor::full(0.25f32, Shape::new(&[COLUMNS])?)?,
                Scalar => Tensor::scalar(1.5f32),
            })
        };
        self.inputs.iter().map(of).collect()
    }

    fn fused(&self) -> Result<Node> {
        let texts = |texts: &[&'static str]| {
            AttrValue::List(AttrList::Str(texts.iter().map(|t| t.as_bytes().into()).collect()))
        };
        Ok(node("_FusedElementwise")?
            .with_attr("N", self.inputs.len() as i64)
            .with_attr("ops", texts(self.ops))
            .with_attr("operands", self.operands.to_vec())
            .with_attr("names", texts(self.ops)))
    }
}

fn node(op: &str) -> Result<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    Ok(Node::new("case", op).with_attr("T", DType::Float))
}

struct PreparedKernel {
    device: Arc<Device>,
    node: Node,
    kernel: Kernel,
}

impl PreparedKernel {
    fn new(node: Node) -> Result<PreparedKernel> {
        let device: Arc<Device> = Arc::new(lone_device());
        Ok(PreparedKernel { kernel: make_kernel(&device, &node)?, device, node })
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<Tensor> {
        let inputs = inputs.into_iter().map(Value::Host).collect();
        match run_kernel(&self.kernel, &self.device, &self.node, inputs)?.pop() {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(Error::internal(format!("the output is {other:?}"))),
        }
    }
}

/// Runs each op with its own kernel. An intermediate value is moved to its last reader, which may reuse its memory.
fn one_by_one(case: &Case, kernels: &[PreparedKernel], inputs: &[Tensor]) -> Result<()> {
    let mut values: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    let mut at = 0;
    for kernel in kernels {
        let count = kernel.node.op.inputs.len();
        let mut taken = Vec::new();
        for operand in &case.operands[at..at + count] {
            let operand = *operand as usize;
            let again = operand < inputs.len() || case.operands[at + count..].contains(&(operand as i64));
            let value = if again { values[operand].clone() } else { values[operand].take() };
            taken.extend(value);
        }
        at += count;
        values.push(Some(kernel.run(taken)?));
    }
    Ok(())
}

/// Writes the sum of two matrices, or a multiple of one, into memory that has been written before.
fn memory(matrices: &[&[f32]], out: &mut [f32]) {
    let size = out.len().div_ceil(2 * rayon::current_num_threads());
    out.par_chunks_mut(size).enumerate().for_each(|(i, out)| {
        let from = i * size;
        match matrices {
            [x, y] => out.iter_mut().zip(&x[from..]).zip(&y[from..]).for_each(|((o, x), y)| *o = x + y),
            [x, ..] => out.iter_mut().zip(&x[from..]).for_each(|(o, x)| *o = x * 1.5),
            [] => {}
        }
    });
}

fn seconds(work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn measure(case: &Case) -> Result<[f64; 3]> {
    let inputs = case.inputs()?;
    let fused = PreparedKernel::new(case.fused()?)?;
    let apart = case.ops.iter().map(|op| PreparedKernel::new(node(op)?)).collect::<Result<Vec<_>>>()?;
    let matrices = case.inputs.iter().zip(&inputs).filter(|(input, _)| **input == Matrix);
    let matrices = matrices.map(|(_, tensor)| tensor.values::<f32>()).collect::<graph::Result<Vec<_>>>()?;
    let mut out = vec![1f32; ROWS * COLUMNS];
    let mut times = [(); 3].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        times[0].push(seconds(&mut || {
            memory(std::hint::black_box(&matrices), std::hint::black_box(&mut out));
            Ok(())
        })?);
        times[1].push(seconds(&mut || fused.run(inputs.clone()).map(drop))?);
        times[2].push(seconds(&mut || one_by_one(case, &apart, &inputs))?);
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }))
}

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| Error::internal(e.to_string()))?;
        for case in CASES {
            let [memory, fused, apart] = pool.install(|| measure(case))?;
            let _ = writeln!(
                out,
                "{:<24} {threads} threads: {:6.1} ms, one by one {:6.1} ms ({:.2}), memory {:6.1} ms \
                 ({:.2})",
                case.name,
                1e3 * fused,
                1e3 * apart,
                apart / fused,
                1e3 * memory,
                memory / fused,
            );
        }
    }
    Ok(())
}
