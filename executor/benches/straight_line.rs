//! The overhead of the executor: nanoseconds per node, for ten thousand scalar nodes.

use anabranch_executor::{Executor, KernelCache};
use device::KernelTable;
use device::cancel::Cancellation;
use device::kernel::{Kernel, KernelDef, Step};
use device::{Device, HostProcessor};
use device::{Error, LocalRendezvous, Pool, Result};
use graph::ops::spec::{Arg, ArgType};
use graph::ops::{OpDef, Traits};
use graph::{DType, Graph, Node, NodeId, Op, Output, Tensor};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// The allocator of the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: usize = 10_000;
const STEPS: usize = 300;

fn op(name: &'static str, inputs: usize, outputs: usize, traits: Traits) -> &'static Op {
    let port = || Arg { name: "x", ty: ArgType::Fixed(DType::Float), number_attr: None, is_ref: false };
    let def = Box::leak(Box::new(OpDef { name, traits, ..OpDef::NEW }));
    let (inputs, outputs) = ((0..inputs).map(|_| port()).collect(), (0..outputs).map(|_| port()).collect());
    Box::leak(Box::new(Op { def, inputs, outputs, attrs: Vec::new(), index: 0, may_wait: false }))
}

const KERNELS: &[KernelDef] = &[
    KernelDef::of("One", &[], |_| {
        let one = Tensor::scalar(1.0f32);
        Kernel::sync(move |ctx| {
            ctx.set_output(0, one.clone());
            Ok(())
        })
    }),
    KernelDef::of("NoOp", &[], |_| Kernel::sync(|_| Ok(()))).brief(),
];

fn table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    let add = || kernels::table().of_op("AddV2").iter().map(|&&def| def);
    TABLE.get_or_init(|| {
        let rows: Vec<KernelDef> = KERNELS.iter().copied().chain(add()).collect();
        KernelTable::new("CPU", &[&*rows.leak()], |_| false)
    })
}

/// Returns the nanoseconds per node of the median step and of the fastest.
fn measure(graph: &Graph, threads: usize) -> Result<(f64, f64)> {
    let pool = Pool::new(threads)?;
    let attributes = kernels::lone_device().attributes().clone();
    let device = Arc::new(Device::new(attributes, Arc::new(HostProcessor), table()));
    let executor = Arc::new(Executor::new(graph, device, pool, &KernelCache::new())?);
    let mut times = Vec::new();
    for id in 0..STEPS as i64 {
        let step = Arc::new(Step::new(id, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())));
        let (sender, receiver) = mpsc::channel();
        let started = Instant::now();
        executor.run(step, false, Box::new(move |result| drop(sender.send(result))));
        let result = receiver.recv_timeout(Duration::from_secs(60));
        times.push(started.elapsed().as_nanos() as f64 / graph.len() as f64);
        result.map_err(|e| Error::internal(e.to_string()))??;
    }
    times.sort_by(f64::total_cmp);
    Ok((times[STEPS / 2], times[0]))
}

fn main() -> Result<()> {
    let stateful = |name, inputs, outputs| op(name, inputs, outputs, Traits::STATEFUL);
    let no_op = op("NoOp", 0, 0, Traits::STATEFUL);
    let op_add = graph::ops::lookup("AddV2").ok_or_else(|| Error::internal("no AddV2"))?;
    let add = |i: usize| Node::new(format!("n{i}"), op_add).with_attr("T", DType::Float);
    let with_source = |source: &'static Op| -> Result<(Graph, NodeId)> {
        let mut graph = Graph::new();
        let source = graph.add(Node::new("source", source), &[], &[])?;
        Ok((graph, source))
    };
    let chain = |constant: &'static Op, same: bool| -> Result<Graph> {
        let (mut graph, mut x) = with_source(stateful("One", 0, 1))?;
        let one = graph.add(Node::new("one", constant), &[], &[])?;
        for i in 0..NODES {
            let other: Output = if same { x.into() } else { one.into() };
            x = graph.add(add(i), &[x.into(), other], &[])?;
        }
        Ok(graph)
    };
    let wide = |constant: &'static Op| -> Result<Graph> {
        let (mut graph, x) = with_source(stateful("One", 0, 1))?;
        let one = graph.add(Node::new("one", constant), &[], &[])?;
        let mut leaves = Vec::new();
        for i in 0..NODES {
            leaves.push(graph.add(add(i), &[x.into(), one.into()], &[])?);
        }
        graph.add(Node::new("sink", no_op), &[], &leaves)?;
        Ok(graph)
    };
    let (mut empty, mut last) = with_source(no_op)?;
    let brief = empty.clone();
    for i in 0..NODES {
        last = empty.add(Node::new(format!("n{i}"), no_op), &[], &[last])?;
    }
    let constant = op("One", 0, 1, Traits::NONE);
    let cases = [
        ("chain, x + constant", chain(constant, false)?),
        ("chain, x + variable", chain(stateful("One", 0, 1), false)?),
        ("chain, x + x", chain(constant, true)?),
        ("wide, x + constant", wide(constant)?),
        ("wide, x + variable", wide(stateful("One", 0, 1))?),
        ("chain, NoOp", empty),
        ("one NoOp", brief),
    ];
    use std::io::Write;
    let mut out = std::io::stdout();
    for threads in [1, 2] {
        for (name, graph) in &cases {
            let (median, best) = measure(graph, threads)?;
            let _ = writeln!(out, "{name:<22} {threads} threads: {median:6.1} ns/node, at best {best:6.1}");
        }
    }
    Ok(())
}
