//! Random graphs before and after simplification: alive outputs have the same bits, the same outputs are dead, and each
//! node waits for the same placeholders.

use device::{Error, Result, Value};
use graph::passes::{SimplifyOptions, merge, prune, remove_redundant_control_edges, simplify};
use graph::{AttrValue, DType, Graph, Node, NodeId, Output, Role, Shape, Tensor, Topology};
use kernels::testing::run_node;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// A random graph under construction, with the values of its placeholders and the sizes of its tensors.
struct Draw {
    rng: StdRng,
    graph: Graph,
    /// The values fed to placeholders.
    fed: BTreeMap<String, Tensor>,
    /// Float outputs with their sizes, from which further nodes are built.
    floats: Vec<(Output, Vec<usize>)>,
}

type Attrs<'a> = &'a [(&'a str, AttrValue)];

impl Draw {
    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.rng.random_range(0..choices.len())].clone()
    }

    fn node(&mut self, op: &str, attrs: Attrs<'_>, inputs: &[Output]) -> Result<Output> {
        let def = graph::ops::lookup(op).ok_or_else(|| Error::internal(format!("no op {op}")))?;
        let mut node = Node::new(format!("{}_{op}", self.graph.len()), def);
        for (name, value) in attrs {
            node.attrs.set(name, value.clone());
        }
        let mut control = Vec::new();
        while self.rng.random_range(0..8) == 0 && !self.graph.is_empty() {
            control.push(NodeId::new(self.rng.random_range(0..self.graph.len())));
        }
        Ok(self.graph.add(node, inputs, &control)?.into())
    }

    fn constant(&mut self, value: Tensor) -> Result<Output> {
        self.node("Const", &[("dtype", value.dtype().into()), ("value", value.into())], &[])
    }

    fn integers(&mut self, values: &[i32]) -> Result<Output> {
        self.constant(Tensor::vector(values)?)
    }

    fn placeholder(&mut self, value: Tensor) -> Result<Output> {
        let output = self.node("Placeholder", &[("dtype", value.dtype().into())], &[])?;
        self.fed.insert(self.graph.node(output.node).name.to_string(), value);
        Ok(output)
    }

    fn values(&mut self, dims: &[usize]) -> Result<Tensor> {
        let shape = Shape::new(dims)?;
        let mut next = || match self.rng.random_range(0..12) {
            0 => f32::NAN,
            1 => 0.0,
            2 => -0.0,
            3 => f32::INFINITY,
            _ => self.rng.random_range(-4.0..4.0),
        };
        Ok(Tensor::from_slice(&(0..shape.num_elements()).map(|_| next()).collect::<Vec<f32>>(), shape)?)
    }

    fn source(&mut self) -> Result<()> {
        let rank = self.rng.random_range(0..4);
        let dims: Vec<usize> = (0..rank).map(|_| self.one_of(&[1, 1, 2, 3])).collect();
        let value = self.values(&dims)?;
        let mut output = self.placeholder(value)?;
        // Half of the sources get a shape that is known statically.
        if self.rng.random() {
            let sizes = self.integers(&dims.iter().map(|d| *d as i32).collect::<Vec<_>>())?;
            output = self.float("Reshape", &[], &[output, sizes])?;
        }
        self.floats.push((output, dims));
        Ok(())
    }

    fn float(&mut self, op: &str, attrs: Attrs<'_>, inputs: &[Output]) -> Result<Output> {
        let mut all = vec![("T", DType::Float.into())];
        all.extend(attrs.iter().cloned());
        self.node(op, &all, inputs)
    }

    /// Adds a random node, or a few nodes that belong together, with an existing output as input.
    fn grow(&mut self) -> Result<()> {
        let (x, dims) =
            self.floats.choose(&mut self.rng).cloned().ok_or_else(|| Error::internal("no source"))?;
        let rank = dims.len();
        let axis = if rank > 0 { self.rng.random_range(0..rank) } else { 0 };
        let (output, dims) = match self.rng.random_range(0..23) {
            0 => {
                let op = self.one_of(&["Neg", "Identity", "StopGradient", "Relu", "Tanh", "Snapshot"]);
                let once = self.float(op, &[], &[x])?;
                (if self.rng.random() { self.float(op, &[], &[once])? } else { once }, dims)
            }
            1 => {
                let value = self.one_of(&[1.0f32, 0.0, -0.0, 2.0]);
                let of: &[usize] = if self.rng.random() { &dims } else { &[] };
                let constant = self.constant(Tensor::full(value, Shape::new(of)?)?)?;
                let op = self.one_of(&["Mul", "AddV2", "Sub", "RealDiv", "Pow"]);
                let operands = if self.rng.random() { [x, constant] } else { [constant, x] };
                (self.float(op, &[], &operands)?, dims)
            }
            2 => {
                let same: Vec<Output> = self.floats.iter().filter(|f| f.1 == dims).map(|f| f.0).collect();
                let y = self.one_of(&same);
                let op = self.one_of(&["Mul", "AddV2", "Maximum", "ReluGrad", "TanhGrad"]);
                (self.float(op, &[], &[x, y])?, dims)
            }
            3 => {
                let like = self.one_of(&self.floats.clone());
                let shape = self.float("Shape", &[], &[like.0])?;
                let same = like.1.iter().product::<usize>() == dims.iter().product::<usize>();
                if same { (self.float("Reshape", &[], &[x, shape])?, like.1) } else { (x, dims) }
            }
            4 => {
                let flat = self.integers(&[-1])?;
                let flat = self.float("Reshape", &[], &[x, flat])?;
                let mut to: Vec<i32> = dims.iter().map(|d| *d as i32).collect();
                if rank > 0 {
                    to[axis] = -1;
                }
                let to = self.integers(&to)?;
                (self.float("Reshape", &[], &[flat, to])?, dims)
            }
            5 => {
                let at = self.constant(Tensor::scalar(axis as i32))?;
                let expanded = self.float("ExpandDims", &[], &[x, at])?;
                let mut wider = dims.clone();
                wider.insert(axis, 1);
                match self.rng.random() {
                    true => (
                        self.float("Squeeze", &[("squeeze_dims", vec![axis as i64].into())], &[expanded])?,
                        dims,
                    ),
                    false => (expanded, wider),
                }
            }
            6 => {
                let mut perm: Vec<i32> = (0..rank as i32).collect();
                if rank > 0 {
                    perm.swap(axis, self.rng.random_range(0..rank));
                }
                let moved: Vec<usize> = perm.iter().map(|p| dims[*p as usize]).collect();
                let perm = self.integers(&perm)?;
                (self.float("Transpose", &[], &[x, perm])?, moved)
            }
            7 if rank == 2 => {
                let swap = self.integers(&[1, 0])?;
                let turned = self.float("Transpose", &[], &[x, swap])?;
                let flags =
                    [("transpose_a", false.into()), ("transpose_b", self.rng.random::<bool>().into())];
                let is_square = flags[1].1 == AttrValue::Bool(true);
                match is_square {
                    true => (self.float("MatMul", &flags, &[turned, turned])?, vec![dims[1], dims[1]]),
                    false => (self.float("MatMul", &flags, &[turned, x])?, vec![dims[1], dims[1]]),
                }
            }
            8 if rank > 0 => {
                let single: Vec<usize> = (0..rank).filter(|at| dims[*at] == 1 || *at == axis).collect();
                let axes = self.integers(&single.iter().map(|at| *at as i32).collect::<Vec<_>>())?;
                let keeps = self.rng.random::<bool>();
                let op = self.one_of(&["Sum", "Mean", "Max", "Prod"]);
                let left =
                    |at: &usize| if single.contains(at) { keeps.then_some(1) } else { Some(dims[*at]) };
                let left = (0..rank).filter_map(|at| left(&at)).collect();
                (self.float(op, &[("keep_dims", keeps.into())], &[x, axes])?, left)
            }
            9 => {
                let ones = self.integers(&vec![1; rank])?;
                (self.float("Tile", &[], &[x, ones])?, dims)
            }
            10 => {
                let zeros = Tensor::zeros(DType::Int32, Shape::new(&[rank, 2])?)?;
                let zeros = self.constant(zeros)?;
                (self.float("Pad", &[], &[x, zeros])?, dims)
            }
            11 => {
                let (from, all) = (self.integers(&vec![0; rank])?, self.integers(&vec![-1; rank])?);
                (self.float("Slice", &[("Index", DType::Int32.into())], &[x, from, all])?, dims)
            }
            12 if rank > 0 => {
                let axes = self.integers(&[axis as i32])?;
                (self.float("ReverseV2", &[], &[x, axes])?, dims)
            }
            13 => {
                let double = self.node(
                    "Cast",
                    &[("SrcT", DType::Float.into()), ("DstT", DType::Double.into())],
                    &[x],
                )?;
                (
                    self.node(
                        "Cast",
                        &[("SrcT", DType::Double.into()), ("DstT", DType::Float.into())],
                        &[double],
                    )?,
                    dims,
                )
            }
            14 => {
                let condition = Tensor::from(self.rng.random::<bool>());
                let condition = self.constant(condition)?;
                let other = self.values(&dims)?;
                let other = self.constant(other)?;
                (self.float("SelectV2", &[], &[condition, x, other])?, dims)
            }
            15 => {
                let is_true = self.rng.random::<bool>();
                let predicate = self.placeholder(Tensor::from(is_true))?;
                let switch = self.float("Switch", &[], &[x, predicate])?;
                let [no, yes] = [Output::new(switch.node, 0), Output::new(switch.node, 1)];
                let shape = self.float("Shape", &[], &[yes])?;
                let no = self.float("Identity", &[], &[no])?;
                let yes = self.float("Reshape", &[], &[yes, shape])?;
                match self.rng.random_range(0..4) {
                    0 => (if self.rng.random() { no } else { yes }, dims),
                    _ => (self.float("Merge", &[("N", 2i64.into())], &[no, yes])?, dims),
                }
            }
            16 => {
                let summand = self.summand(&dims)?;
                return self.gradient(x, &dims, summand);
            }
            17 => {
                let shape = self.float("Shape", &[], &[x])?;
                let axes = self.integers(&[0])?;
                let count = self.node("Prod", &[("T", DType::Int32.into())], &[shape, axes])?;
                let row = self.node("Pack", &[("T", DType::Int32.into()), ("N", 1i64.into())], &[count])?;
                (self.float("Reshape", &[], &[x, row])?, vec![dims.iter().product()])
            }
            18.. => {
                let (other, sizes) = self.resized(x, &dims)?;
                // The gradients of a sum require that one of the two tensors can be broadcast to the other.
                if self.rng.random() && is_smaller(&sizes, &dims) {
                    self.gradient(x, &dims, (other, sizes.clone()))?;
                } else if self.rng.random() && is_smaller(&dims, &sizes) {
                    self.gradient(other, &sizes, (x, dims))?;
                }
                (other, sizes)
            }
            _ => (x, dims),
        };
        self.floats.push((output, dims));
        Ok(())
    }

    /// Returns a tensor that is computed from `x`, whose sizes are `dims`, and the sizes of the returned tensor, which
    /// usually differ.
    fn resized(&mut self, x: Output, dims: &[usize]) -> Result<(Output, Vec<usize>)> {
        let rank = dims.len();
        if rank == 0 {
            return Ok((x, Vec::new()));
        }
        let axis = self.rng.random_range(0..rank);
        let at = self.constant(Tensor::scalar(axis as i32))?;
        let mut sizes = dims.to_vec();
        Ok(match self.rng.random_range(0..6) {
            0 => {
                let pads: Vec<i32> = (0..2 * rank).map(|_| self.one_of(&[0, 0, 1])).collect();
                sizes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, size)| *size += (pads[2 * i] + pads[2 * i + 1]) as usize);
                let pads = self.constant(Tensor::from_slice(&pads, Shape::new(&[rank, 2])?)?)?;
                (self.float("Pad", &[], &[x, pads])?, sizes)
            }
            1 => {
                let same: Vec<Output> = self.floats.iter().filter(|f| f.1 == dims).map(|f| f.0).collect();
                let y = self.one_of(&same);
                sizes[axis] *= 2;
                (self.float("ConcatV2", &[("N", 2i64.into())], &[x, y, at])?, sizes)
            }
            2 => {
                let parts = self.float("Split", &[("num_split", (dims[axis] as i64).into())], &[at, x])?;
                sizes[axis] = 1;
                (Output::new(parts.node, self.rng.random_range(0..dims[axis])), sizes)
            }
            3 => {
                let count = ("num", (dims[axis] as i64).into());
                let parts = self.float("Unpack", &[count, ("axis", (axis as i64).into())], &[x])?;
                sizes.remove(axis);
                (Output::new(parts.node, self.rng.random_range(0..dims[axis])), sizes)
            }
            4 => {
                sizes[0] = self.rng.random_range(1..4);
                let rows = self.placeholder(Tensor::vector(&vec![0i32; sizes[0]])?)?;
                let first = self.constant(Tensor::scalar(0i32))?;
                let index = DType::Int32;
                let types =
                    [("Tparams", DType::Float.into()), ("Tindices", index.into()), ("Taxis", index.into())];
                (self.node("GatherV2", &types, &[x, rows, first])?, sizes)
            }
            _ => {
                let (rows, columns) = (dims[0], dims[1..].iter().product::<usize>());
                let images = self.integers(&[rows as i32, -1, 1, 1])?;
                let images = self.float("Reshape", &[], &[x, images])?;
                self.floats.push((images, vec![rows, columns, 1, 1]));
                let (size, stride) = (self.one_of(&[1, 2]).min(columns), self.one_of(&[1, 2]));
                let padding = self.one_of(&["SAME", "VALID"]);
                let attrs = [
                    ("ksize", vec![1, size as i64, 1, 1].into()),
                    ("strides", vec![1, stride as i64, 1, 1].into()),
                    ("padding", padding.into()),
                ];
                let over = if padding == "SAME" { 1 } else { size };
                let pooled = self.float("MaxPool", &attrs, &[images])?;
                let (dims, sizes) = ([rows, columns, 1, 1], vec![rows, (columns - over) / stride + 1, 1, 1]);
                if is_smaller(&sizes, &dims) {
                    self.gradient(images, &dims, (pooled, sizes.clone()))?;
                }
                (pooled, sizes)
            }
        })
    }

    /// Returns a tensor that can be broadcast to the sizes `dims`, and its sizes.
    fn summand(&mut self, dims: &[usize]) -> Result<(Output, Vec<usize>)> {
        let smaller: Vec<_> = self.floats.iter().filter(|f| is_smaller(&f.1, dims)).cloned().collect();
        Ok(match self.rng.random_range(0..4) {
            0 | 1 => self.one_of(&smaller),
            kind => {
                let row: Vec<usize> = dims.iter().skip(dims.len() / 2).copied().collect();
                let value = self.values(&row)?;
                (if kind == 2 { self.constant(value)? } else { self.placeholder(value)? }, row)
            }
        })
    }

    /// Adds the sum of `x` and a tensor `y` that can be broadcast to the sizes of `x`, and the gradients of both
    /// operands.
    fn gradient(&mut self, x: Output, dims: &[usize], (y, row): (Output, Vec<usize>)) -> Result<()> {
        let operands = if self.rng.random() { [x, y] } else { [y, x] };
        let z = self.float("AddV2", &[], &operands)?;
        if self.rng.random_range(0..4) == 0 {
            self.gradient(z, dims, (y, row.clone()))?;
        }
        let dz = self.float("TanhGrad", &[], &[z, z])?;
        let (of_x, of_y) = (self.float("Shape", &[], &[x])?, self.float("Shape", &[], &[y])?);
        let args = self.node("BroadcastGradientArgs", &[], &[of_x, of_y])?;
        for (index, (shape, dims)) in [(of_x, dims.to_vec()), (of_y, row)].into_iter().enumerate() {
            let sum = self.float("Sum", &[], &[dz, Output::new(args.node, index)])?;
            let back = self.float("Reshape", &[], &[sum, shape])?;
            self.floats.push((back, dims));
        }
        Ok(())
    }
}

/// Returns whether a tensor of sizes `sizes` can be broadcast to the sizes `dims`.
fn is_smaller(sizes: &[usize], dims: &[usize]) -> bool {
    let facing = dims.iter().rev().zip(sizes.iter().rev());
    sizes.len() <= dims.len() && { facing }.all(|(own, other)| own == other || *other == 1)
}

fn draw(seed: u64) -> Result<(Graph, BTreeMap<String, Tensor>)> {
    let (rng, graph) = (StdRng::seed_from_u64(seed), Graph::new());
    let mut draw = Draw { rng, graph, fed: BTreeMap::new(), floats: Vec::new() };
    for _ in 0..3 {
        draw.source()?;
    }
    while draw.graph.len() < 60 {
        draw.grow()?;
    }
    for i in 0..4 {
        let (x, _) = draw.floats[draw.floats.len() - 1 - i * 3].clone();
        let op = graph::ops::lookup("Neg").ok_or_else(|| Error::internal("no Neg"))?;
        draw.graph.add(Node::new(format!("out{i}"), op).with_attr("T", DType::Float), &[x], &[])?;
    }
    Ok((draw.graph, draw.fed))
}

fn outs(graph: &Graph) -> Vec<NodeId> {
    (0..4).filter_map(|i| graph.find(&format!("out{i}"))).collect()
}

/// Computes all outputs of a graph without loops; dead outputs are missing.
fn run(graph: &Graph, fed: &BTreeMap<String, Tensor>) -> Result<BTreeMap<Output, Tensor>> {
    let topology = Topology::new(graph);
    let mut values: BTreeMap<Output, Tensor> = BTreeMap::new();
    let mut alive = BTreeSet::new();
    for id in topology.order(graph)? {
        let node = graph.node(id);
        let lives = |p: &graph::Producer| {
            alive.contains(&p.node) && (p.is_control() || values.contains_key(&p.source()))
        };
        let (data, control): (Vec<_>, Vec<_>) = topology.producers(id).iter().partition(|p| !p.is_control());
        let chosen = data.iter().position(&lives);
        let is_merge = node.op.role() == Role::Merge;
        let has_inputs = if is_merge { chosen.is_some() } else { data.iter().all(&lives) };
        if !has_inputs || !control.iter().all(lives) {
            continue;
        }
        let inputs: Vec<Tensor> = data.iter().filter_map(|p| values.get(&p.source()).cloned()).collect();
        let outputs: Vec<(usize, Tensor)> = match (node.op.role(), node.op.name()) {
            (_, "Placeholder") => fed.get(&*node.name).cloned().map(|value| (0, value)).into_iter().collect(),
            (Role::Switch, _) => vec![(inputs[1].item::<graph::Bool8>()?.get() as usize, inputs[0].clone())],
            (Role::Merge, _) => vec![(0, inputs[0].clone())],
            _ => {
                let outputs = run_node(node, inputs.into_iter().map(Value::Host).collect())?;
                let host =
                    outputs.into_iter().filter_map(|o| if let Value::Host(t) = o { Some(t) } else { None });
                host.enumerate().collect()
            }
        };
        alive.insert(id);
        values.extend(outputs.into_iter().map(|(index, value)| (Output::new(id, index), value)));
    }
    Ok(values)
}

/// Returns the placeholders that each node waits for, directly or indirectly.
fn awaited(graph: &Graph) -> Result<Vec<BTreeSet<String>>> {
    let topology = Topology::new(graph);
    let mut awaited = vec![BTreeSet::new(); graph.len()];
    for id in topology.order(graph)? {
        let mut all: BTreeSet<String> = BTreeSet::new();
        for producer in topology.producers(id) {
            all.extend(awaited[producer.node.index()].iter().cloned());
        }
        if graph.node(id).op.name() == "Placeholder" {
            all.insert(graph.node(id).name.to_string());
        }
        awaited[id.index()] = all;
    }
    Ok(awaited)
}

#[test]
fn simplified_random_graphs_compute_the_same_bits() -> Result<()> {
    let (mut before, mut after) = (0, 0);
    for seed in 0..1500 {
        let (graph, fed) = draw(seed)?;
        let pruned = prune(&graph, &outs(&graph))?;
        let all = SimplifyOptions { keep: &outs(&pruned), ..SimplifyOptions::DEFAULT };
        let simple = simplify(&pruned, &all)?;
        let merged = merge(&simple, &outs(&simple))?;
        let untied = remove_redundant_control_edges(&merged, &outs(&merged))?;
        let last = prune(&untied, &outs(&untied))?;
        (before, after) = (before + pruned.len(), after + last.len());
        let expected = run(&pruned, &fed)?;
        let waited_for = awaited(&pruned)?;
        for step in [&simple, &untied, &last] {
            let (found, waits_for) = (run(step, &fed)?, awaited(step)?);
            for (id, node) in step.nodes() {
                let Some(old) = pruned.find(&node.name) else { continue };
                assert_eq!(waits_for[id.index()], waited_for[old.index()], "seed {seed}, {}", node.name);
                let bits = |value: Option<&Tensor>| {
                    value.map(|v| (v.shape().clone(), v.bytes().map(<[u8]>::to_vec)))
                };
                let (now, then) = (bits(found.get(&id.into())), bits(expected.get(&old.into())));
                assert_eq!(now, then, "seed {seed}, {}\n{}\n{}", node.name, pruned.to_text(), step.to_text());
            }
        }
    }
    assert!(after * 4 < before * 3, "{before} nodes became {after}");
    Ok(())
}
