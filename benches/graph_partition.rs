//! Benchmarks of placing and partitioning graphs of 10^4 to 10^6 nodes over 2, 16 and 256 devices.
//!
//! With `ANABRANCH_LARGE=all` it prints the wall time and peak memory of the largest graphs once, instead of sampling;
//! with `chain`, `layered`, `towers` or `scattered` in place of `all`, it measures only the graph of this name.
#![allow(clippy::print_stdout)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use graph::{
    AttrValue, Attrs, DType, DeviceName, Edge, Graph, Node, NodeId, Op, Shape, TaskName, Tensor, ops,
};
use placer::{
    DeviceSet, Kernels, Names, Partition, PartitionOptions, PlaceRequest, Placement, Split, partition, place,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// mimalloc, which is also the allocator of the server programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A kernel registry that has a kernel for every op on every device.
struct AllKernels;

impl Kernels for AllKernels {
    fn priority(&self, _: &str, _: &Node) -> Option<i32> {
        Some(0)
    }

    fn registered(&self, _: &str) -> String {
        String::new()
    }
}

fn devices(count: u32) -> DeviceSet {
    let all = (0..count).map(|i| (DeviceName::new(&TaskName::new("worker", i), "CPU", 0), u64::from(i) + 1));
    DeviceSet::new(all).with_local(TaskName::new("worker", 0))
}

struct GraphBuilder {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    texts: Vec<Arc<str>>,
    nowhere: Arc<str>,
    typed: Attrs,
    constant: Attrs,
    handle: Attrs,
    read: Attrs,
}

impl GraphBuilder {
    fn new(devices: usize, size: usize) -> Result<GraphBuilder> {
        let attrs = |list: &[(&str, AttrValue)]| -> Attrs {
            list.iter().map(|(name, value)| ((*name).into(), value.clone())).collect()
        };
        let float = AttrValue::Type(DType::Float);
        let value = AttrValue::Tensor(Tensor::zeros(DType::Float, Shape::scalar())?);
        Ok(GraphBuilder {
            nodes: Vec::with_capacity(size),
            edges: Vec::with_capacity(2 * size),
            texts: (0..devices).map(|i| format!("/job:worker/task:{i}").into()).collect(),
            nowhere: "".into(),
            typed: attrs(&[("T", float.clone())]),
            constant: attrs(&[("dtype", float.clone()), ("value", value)]),
            handle: attrs(&[("dtype", float.clone()), ("shape", graph::PartialShape::scalar().into())]),
            read: attrs(&[("dtype", float)]),
        })
    }

    fn add(&mut self, op: &'static Op, device: Option<usize>, attrs: &Attrs, inputs: &[NodeId]) -> NodeId {
        let id = NodeId::new(self.nodes.len());
        let device = device.map_or(&self.nowhere, |d| &self.texts[d]).clone();
        let name = format!("tower/block/{}", id.index()).into();
        self.nodes.push(Node { name, op, device, attrs: attrs.clone(), opaque: None });
        for (slot, from) in inputs.iter().enumerate() {
            self.edges.push(Edge::data((*from).into(), id, slot as u32));
        }
        id
    }

    fn finish(self) -> Result<Graph> {
        Ok(Graph::assemble(self.nodes, self.edges.into_iter())?)
    }
}

fn op(name: &str) -> Result<&'static Op> {
    ops::lookup(name).ok_or_else(|| format!("no op {name}").into())
}

/// Returns a chain of `size` nodes. The device changes after every 1000 nodes, and the devices are used in rotation.
fn chain(size: usize, devices: usize) -> Result<Graph> {
    let mut builder = GraphBuilder::new(devices, size)?;
    let (constant, identity) = (op("Const")?, op("Identity")?);
    let (typed, first) = (builder.typed.clone(), builder.constant.clone());
    let mut last = builder.add(constant, Some(0), &first, &[]);
    for i in 1..size {
        last = builder.add(identity, Some(i / 1000 % devices), &typed, &[last]);
    }
    builder.finish()
}

/// Returns a graph of layers of 1000 nodes each. The nodes of a layer are divided into one block of columns for each
/// device. On average, one in `far` inputs comes from a random node of the previous layer, and every other input from
/// the node in the same column.
fn layers(size: usize, devices: usize, far: usize) -> Result<Graph> {
    const WIDTH: usize = 1000;
    let mut builder = GraphBuilder::new(devices, size)?;
    let (constant, add) = (op("Const")?, op("AddV2")?);
    let (typed, first) = (builder.typed.clone(), builder.constant.clone());
    let mut random = 1u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % n
    };
    for i in 0..size {
        let (layer, column) = (i / WIDTH, i % WIDTH);
        let device = Some(column * devices / WIDTH);
        if layer == 0 {
            builder.add(constant, device, &first, &[]);
            continue;
        }
        let before = (layer - 1) * WIDTH;
        let mut input = || NodeId::new(before + if below(far) == 0 { below(WIDTH) } else { column });
        let inputs = [input(), input()];
        builder.add(add, device, &typed, &inputs);
    }
    builder.finish()
}

/// Returns a graph with a tower of blocks on each device. Each block reads a variable that is usually on another
/// device, connected by a resource edge.
fn towers(size: usize, devices: usize) -> Result<Graph> {
    let mut builder = GraphBuilder::new(devices, size)?;
    let (constant, add, identity) = (op("Const")?, op("AddV2")?, op("Identity")?);
    let (handle, read) = (op("VarHandleOp")?, op("ReadVariableOp")?);
    let attrs =
        (builder.typed.clone(), builder.constant.clone(), builder.handle.clone(), builder.read.clone());
    let mut tops = Vec::with_capacity(devices);
    for tower in 0..devices {
        tops.push(builder.add(constant, Some(tower), &attrs.1, &[]));
    }
    let mut block = 0;
    while builder.nodes.len() + 12 <= size {
        let tower = block % devices;
        let home = (block * 7 + 1) % devices;
        let variable = builder.add(handle, Some(home), &attrs.2, &[]);
        let value = builder.add(read, None, &attrs.3, &[variable]);
        let bias = builder.add(constant, None, &attrs.1, &[]);
        let mut x = tops[tower];
        for i in 0..8 {
            let inputs = [x, if i % 4 == 0 { value } else { bias }];
            x = builder.add(add, Some(tower), &attrs.0, &inputs);
        }
        tops[tower] = builder.add(identity, Some(tower), &attrs.0, &[x]);
        block += 1;
    }
    builder.finish()
}

/// Returns a graph like that of [`layered`], but with every input from a random node of the previous layer, so that
/// most edges cross devices.
fn scattered(size: usize, devices: usize) -> Result<Graph> {
    layers(size, devices, 1)
}

fn layered(size: usize, devices: usize) -> Result<Graph> {
    layers(size, devices, 10)
}

type Make = fn(usize, usize) -> Result<Graph>;

const GRAPHS: &[(&str, Make)] = &[("chain", chain), ("layered", layered), ("towers", towers)];

/// The graph with the most edges between devices, measured once at the largest size; users do not place graphs in such
/// a random way.
const WORST_CASE: (&str, Make) = ("scattered", scattered);

fn placed(graph: &Graph, set: &DeviceSet) -> Result<Placement> {
    let request =
        PlaceRequest { devices: set, kernels: &AllKernels, allow_soft_placement: false, assigned: &[] };
    Ok(place(graph, &request)?)
}

fn parts(graph: &Graph, placement: &Placement, set: &DeviceSet) -> Result<Vec<Partition>> {
    let names = Names::master();
    let options = PartitionOptions { devices: set, split: Split::Task, names: &names };
    Ok(partition(graph, placement.indices(), &options)?)
}

fn bench(c: &mut Criterion) {
    if let Ok(kind) = std::env::var("ANABRANCH_LARGE") {
        if let Err(error) = print_large(&kind) {
            println!("{error}");
        }
        return;
    }
    for (name, make) in GRAPHS {
        let mut group = c.benchmark_group(format!("place_and_partition/{name}"));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(2));
        for size in [10_000, 100_000, 1_000_000] {
            for count in [2u32, 16, 256] {
                let set = devices(count);
                let Ok(graph) = make(size, count as usize) else { continue };
                group.throughput(Throughput::Elements(size as u64));
                group.bench_function(BenchmarkId::new(format!("{count} devices"), size), |b| {
                    b.iter(|| {
                        let placement = placed(&graph, &set)?;
                        parts(&graph, &placement, &set).map(|parts| black_box(parts.len()))
                    });
                });
            }
        }
        group.finish();
    }
}

fn print_large(kind: &str) -> Result<()> {
    let size = 1_000_000;
    for (name, make) in GRAPHS.iter().chain([&WORST_CASE]).filter(|g| kind == "all" || kind == g.0) {
        for count in [2u32, 16, 256] {
            let set = devices(count);
            let graph = make(size, count as usize)?;
            let start = Instant::now();
            let placement = placed(&graph, &set)?;
            let place_time = start.elapsed();
            let start = Instant::now();
            let parts = parts(&graph, &placement, &set)?;
            let partition_time = start.elapsed();
            let total: usize = parts.iter().map(|p| p.graph.len()).sum();
            println!(
                "{name:9} {count:3} devices: place {place_time:?}, partition {partition_time:?}, {} nodes, {} new, peak {} MiB",
                graph.len(),
                total - graph.len(),
                peak_memory_mib()
            );
        }
    }
    Ok(())
}

/// Returns the process's peak resident memory in MiB, or 0 if the system does not report it.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) / 1024
}

criterion_group!(benches, bench);
criterion_main!(benches);
