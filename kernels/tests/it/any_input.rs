//! Fuzz test of every op that has a CPU kernel: inputs have the right dtypes but otherwise random ranks, sizes and
//! values, including values that are out of range. Each kernel must return outputs or an error, must not panic, and
//! must not allocate memory out of proportion to its inputs.

use anabranch_kernels::testing::{lone_device, make_kernel, run_node_on};
use device::Device;
use device::kernel::Kernel;
use device::variable::Variable;
use device::{Error, Result, Value};
use graph::ops::spec::{AttrKind, AttrSpec};
use graph::{AttrList, AttrValue, DType, Node, PartialShape, PortType, Role, Shape, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of random nodes per op.
const ROUNDS: u64 = 1500;

/// Limit in bytes on the total memory of large tensors, and on each single allocation.
const MEMORY: usize = 64 << 20;

/// The system's allocator, which records the size of the largest request.
struct RecordingAllocator;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each request is passed unchanged to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `alloc`, which is also the contract of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `alloc_zeroed`, which is also the contract of
        // `System.alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the contract of `dealloc`, and all memory comes from `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `realloc`, and all memory comes from `System`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// The random number generator SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(Cell<u64>);

impl Random {
    fn bits(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let z = self.0.get();
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }

    fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a small number that could be an axis, a size or an index; in one of 12 cases, returns an extreme number
    /// instead.
    fn integer(&self) -> i64 {
        const EXTREMES: [i64; 12] = [
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i32::MIN as i64,
            i32::MAX as i64,
            u32::MAX as i64,
            1 << 40,
            1 << 62,
            -(1 << 40),
            127,
            1000,
            100_000,
        ];
        if self.one_in(12) { EXTREMES[self.below(EXTREMES.len())] } else { self.below(8) as i64 - 2 }
    }

    fn float(&self) -> f64 {
        const EXTREMES: [f64; 6] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -0.0, 1e-310];
        if self.one_in(8) { EXTREMES[self.below(EXTREMES.len())] } else { self.integer() as f64 * 0.5 }
    }

    fn shape(&self) -> Result<Shape> {
        self.shape_of_rank([0, 1, 1, 1, 2, 2, 3, 4, 4, 5][self.below(10)])
    }

    fn shape_of_rank(&self, rank: usize) -> Result<Shape> {
        let dims: Vec<usize> = (0..rank).map(|_| [0, 1, 2, 2, 2, 3, 4, 6][self.below(8)]).collect();
        Ok(Shape::new(&dims)?)
    }

    /// Returns the usual shape of the argument `name` if the other arguments have the shape `common`. If several shapes
    /// are usual for the name, one is chosen at random.
    fn usual_shape(&self, name: &str, common: &Shape) -> Result<Shape> {
        let rank = common.rank();
        let first = common.first().copied().unwrap_or(1);
        let dims: &[usize] = match name {
            "lr" | "alpha" | "beta" | "beta1" | "beta2" | "beta1_power" | "beta2_power" | "epsilon"
            | "rho" | "momentum" | "l1" | "l2" | "lr_power" | "l2_shrinkage" | "global_step" | "logbase"
            | "sign_decay" | "decay" | "axis" | "concat_dim" | "split_dim" | "dim" | "dimension"
            | "depth" | "on_value" | "off_value" | "minval" | "maxval" | "num_samples" | "k"
            | "num_lower" | "num_upper" | "constant_values" | "num_segments" | "start" | "stop" | "limit"
            | "delta" | "num" | "num_rows" | "num_cols" | "padding_value" | "default_value" => &[],
            "shape" | "size" | "begin" | "end" | "strides" | "perm" | "multiples" | "dims"
            | "reduction_indices" | "axes" => &[rank],
            "paddings" => &[rank, 2],
            "input_sizes" | "filter_sizes" | "orig_input_shape" => &[4],
            "bias" | "biases" => return Ok(Shape::new(&common[rank.saturating_sub(1)..])?),
            "segment_ids" | "labels" | "targets" | "size_splits" => &[first],
            "indices" if self.one_in(2) => &[first],
            "indices" => &[first, 1],
            "filter" if self.one_in(2) => return self.shape_of_rank(4),
            "filter" => {
                let channels = common.last().copied().unwrap_or(1);
                &[1, 1, channels, channels]
            }
            name if name.starts_with("min_") || name.starts_with("max_") => &[],
            name if ["_min", "_max", "scales", "zero_points"].iter().any(|end| name.ends_with(end)) => &[],
            _ => return Ok(common.clone()),
        };
        Ok(Shape::new(dims)?)
    }

    fn partial_shape(&self) -> PartialShape {
        if self.one_in(4) {
            return PartialShape::unknown();
        }
        let dims = (0..self.below(4)).map(|_| if self.one_in(3) { None } else { Some(self.below(5)) });
        PartialShape::of_dims(dims.collect::<Vec<_>>())
    }

    fn tensor(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        let n = shape.num_elements();
        // Small values more often fit the values of other inputs, so that more inputs pass the checks of a kernel.
        let small = !self.one_in(3);
        let integer = || if small { self.below(3) as i64 } else { self.integer() };
        macro_rules! of {
            ($t:ty, $value:expr) => {{
                let values: Vec<$t> = (0..n).map(|_| $value).collect();
                Tensor::from_slice(&values, shape)?
            }};
        }
        Ok(match dtype {
            DType::Float => of!(f32, self.float() as f32),
            DType::Double => of!(f64, self.float()),
            DType::Half => of!(half::f16, half::f16::from_f64(self.float())),
            DType::BFloat16 => of!(half::bf16, half::bf16::from_f64(self.float())),
            DType::Int8 => of!(i8, integer() as i8),
            DType::Int16 => of!(i16, integer() as i16),
            DType::Int32 => of!(i32, integer() as i32),
            DType::Int64 => of!(i64, integer()),
            DType::UInt8 => of!(u8, integer() as u8),
            DType::UInt16 => of!(u16, integer() as u16),
            DType::UInt32 => of!(u32, integer() as u32),
            DType::UInt64 => of!(u64, integer() as u64),
            DType::Bool => of!(graph::Bool8, self.one_in(2).into()),
            DType::String => {
                let texts: [&[u8]; 7] = [b"", b"a", b"%d {} %s %", b"\xff\xfe", b"1e9999", b"-12", b"a,b;c"];
                let values = (0..n).map(|_| bytes::Bytes::from_static(texts[self.below(texts.len())]));
                Tensor::strings(values.collect(), shape)?
            }
            other if QUANTIZED.contains(&other) => {
                let bytes: Vec<u8> = (0..n * other.size().unwrap_or(1)).map(|_| self.bits() as u8).collect();
                Tensor::from_bytes(other, shape, &bytes)?
            }
            other => return Err(Error::unimplemented(format!("no values of type {other}"))),
        })
    }

    fn attr(&self, spec: &AttrSpec, types: &[DType]) -> Option<AttrValue> {
        let one = || self.attr_element(spec, types);
        if !spec.is_list {
            return one();
        }
        if spec.kind == AttrKind::Int && self.one_in(2) {
            // The sizes and strides of a window are 1 along the batch and channel axes.
            let [rows, columns] = [0; 2].map(|_| if self.one_in(2) { 1 } else { self.below(3) as i64 + 1 });
            return Some(vec![1, rows, columns, 1].into());
        }
        let count = self.below(5);
        macro_rules! list {
            ($variant:ident) => {
                AttrList::$variant(
                    (0..count)
                        .map(|_| match one() {
                            Some(AttrValue::$variant(v)) => Some(v),
                            _ => None,
                        })
                        .collect::<Option<Vec<_>>>()?,
                )
            };
        }
        Some(AttrValue::List(match spec.kind {
            AttrKind::Str => list!(Str),
            AttrKind::Int => list!(Int),
            AttrKind::Float => list!(Float),
            AttrKind::Bool => list!(Bool),
            AttrKind::Type => list!(Type),
            AttrKind::Shape => list!(Shape),
            AttrKind::Tensor | AttrKind::Func => return None,
        }))
    }

    fn attr_element(&self, spec: &AttrSpec, types: &[DType]) -> Option<AttrValue> {
        if spec.kind == AttrKind::Type {
            return self.pick(types).map(|&t| t.into());
        }
        if !spec.allowed.is_empty() {
            return self.pick(&spec.allowed).cloned();
        }
        Some(match spec.kind {
            AttrKind::Str => (*self.pick(&["", "a", "x,y"])?).into(),
            AttrKind::Int => AttrValue::Int(self.integer()),
            AttrKind::Float => AttrValue::Float(self.float() as f32),
            AttrKind::Bool => AttrValue::Bool(self.one_in(2)),
            AttrKind::Shape => AttrValue::Shape(self.partial_shape()),
            AttrKind::Tensor => {
                let dtype = *self.pick(PLAIN)?;
                AttrValue::Tensor(self.tensor(dtype, self.shape().ok()?).ok()?)
            }
            AttrKind::Type | AttrKind::Func => return None,
        })
    }
}

const PLAIN: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
    DType::String,
];

/// The types of the values of ops that allow no other types.
const QUANTIZED: &[DType] = &[DType::QInt8, DType::QUInt8, DType::QInt16, DType::QUInt16, DType::QInt32];

/// Returns an attribute that is never valid if it is random: the type and the fields of a message.
fn given(op: &graph::Op, attribute: &str) -> Option<AttrValue> {
    if !["DecodeProtoV2", "EncodeProto"].contains(&op.name()) {
        return None;
    }
    match attribute {
        "message_type" => Some("tensorflow.TensorShapeProto.Dim".into()),
        "field_names" => Some(AttrList::Str(vec!["size".into(), "name".into()]).into()),
        "output_types" | "Tinput_types" => Some(vec![DType::Int64, DType::String].into()),
        "descriptor_source" => Some("local://".into()),
        _ => None,
    }
}

/// Returns a node with random attributes that its op allows; about a third of the attributes that have a default are
/// left at the default.
fn node(random: &Random, op: &'static graph::Op) -> Option<Node> {
    let mut node = Node::new("test", op);
    for spec in &op.attrs {
        let keeps_default = spec.default.is_some() && spec.kind != AttrKind::Type && random.one_in(3);
        if keeps_default {
            continue;
        }
        let is_allowed = |t: &DType| spec.allowed.is_empty() || spec.allowed.contains(&AttrValue::Type(*t));
        let mut types: Vec<DType> = PLAIN.iter().copied().filter(is_allowed).collect();
        if types.is_empty() {
            types = QUANTIZED.iter().copied().filter(is_allowed).collect();
        }
        if let Some(value) = given(op, spec.name) {
            node.attrs.set(spec.name, value);
            continue;
        }
        let drawn = (0..20).find_map(|_| random.attr(spec, &types).filter(|v| spec.check(v).is_ok()));
        let is_count = op.inputs.iter().chain(&op.outputs).any(|arg| arg.number_attr == Some(spec.name));
        let value = match drawn {
            // The value is a number of inputs, for which this test allocates tensors, so the value is limited.
            Some(AttrValue::Int(n)) if is_count => AttrValue::Int(n.clamp(spec.minimum.unwrap_or(0), 4)),
            Some(value) => value,
            None if spec.default.is_some() => continue,
            None => return None,
        };
        node.attrs.set(spec.name, value);
    }
    Some(node)
}

/// Returns random inputs for a node.
fn inputs(random: &Random, device: &Arc<Device>, node: &Node, types: &[PortType]) -> Result<Vec<Value>> {
    // Most inputs are valid in all or nearly all arguments, so that kernels detect errors late.
    let has_windows = node.op.attrs.iter().any(|a| a.name == "strides" || a.name == "block_size");
    let common = if has_windows { random.shape_of_rank(4)? } else { random.shape()? };
    let is_usual = !random.one_in(4);
    let is_perfect = is_usual && random.one_in(2);
    let names: Vec<&str> = node.op.inputs.iter().map(|a| a.name).collect();
    let mut values = Vec::new();
    for (i, port) in types.iter().enumerate() {
        // A list of inputs is either the first or the last argument, and its elements share the argument's name.
        let name = match () {
            _ if names.len() == types.len() => names[i],
            _ if node.op.inputs[0].number_attr.is_some() => {
                names[(names.len() + i).saturating_sub(types.len())]
            }
            _ => names[i.min(names.len() - 1)],
        };
        let shape = if is_perfect || (is_usual && !random.one_in(5)) {
            random.usual_shape(name, &common)?
        } else {
            random.shape()?
        };
        let dtype = if port.dtype == DType::Resource {
            let own = node.attr::<DType>("T").or_else(|_| node.attr::<DType>("dtype"));
            own.ok().filter(|_| !random.one_in(8)).unwrap_or(DType::Float)
        } else {
            port.dtype
        };
        let is_size = ["input_sizes", "filter_sizes", "orig_input_shape"].contains(&name);
        let tensor = if is_usual && is_size && dtype == DType::Int32 {
            // The sizes of a 1x1 filter, with which the input and the output have the shape `common`.
            let channels = common.last().copied().unwrap_or(1);
            let dims = if name == "filter_sizes" { vec![1, 1, channels, channels] } else { common.to_vec() };
            Tensor::vector(&dims.iter().map(|&d| d as i32).collect::<Vec<_>>())?
        } else {
            random.tensor(dtype, shape)?
        };
        values.push(if port.is_ref {
            let variable = Variable::new(format!("v{i}"), tensor.dtype(), PartialShape::unknown());
            *variable.lock() = (!random.one_in(10)).then_some(tensor);
            Value::Ref(Arc::new(variable))
        } else if port.dtype == DType::Resource {
            handle(device, i, tensor)?
        } else {
            Value::Host(tensor)
        });
    }
    Ok(values)
}

/// Returns a handle of a new variable with the value `value`.
fn handle(device: &Arc<Device>, i: usize, value: Tensor) -> Result<Value> {
    let op = |name| graph::ops::lookup(name).ok_or_else(|| Error::invalid(format!("no op {name}")));
    let make = Node::new("handle", op("VarHandleOp")?)
        .with_attr("dtype", value.dtype())
        .with_attr("shape", PartialShape::unknown())
        .with_attr("shared_name", format!("v{i}-{}", value.dtype()).as_str());
    let handle = run_node_on(device, &make, Vec::new())?.swap_remove(0);
    let assign = Node::new("assign", op("AssignVariableOp")?).with_attr("dtype", value.dtype());
    run_node_on(device, &assign, vec![handle.clone(), Value::Host(value)])?;
    Ok(handle)
}

/// Ops that write their inputs to the standard error stream.
const PRINTING_OPS: [&str; 2] = ["Print", "PrintV2"];

/// Suffix of the names of ops that sample until they have enough different values, which may take any time; only
/// cancelling the step stops them.
const SAMPLER_SUFFIX: &str = "CandidateSampler";

/// Message and location of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn describe(node: &Node, inputs: &[Value]) -> String {
    let attrs: Vec<String> = node.attrs.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("{} {attrs:?} of {inputs:?}", node.op.name())
}

#[test]
fn no_input_makes_a_kernel_panic() -> Result<()> {
    graph::tensor::set_memory_limit(MEMORY as u64);
    std::panic::set_hook(Box::new(|info| {
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string();
    }));
    let mut wrong: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut never_right = BTreeSet::new();
    let quiet = graph::ops::all()
        .iter()
        .filter(|op| !PRINTING_OPS.contains(&op.name()) && !op.name().ends_with(SAMPLER_SUFFIX));
    for op in quiet {
        let mut right = 0usize;
        let mut tried = 0usize;
        // The seed depends only on the op's name, so that adding an op does not change the inputs of the other ops.
        let seed: u64 =
            op.name().bytes().fold(7u64, |seed, byte| ((seed * 31) ^ u64::from(byte)) & 0xffff_ffff);
        for round in 0..ROUNDS {
            let random = Random(Cell::new(round << 32 | seed));
            let Some(node) = node(&random, op) else { continue };
            let device: Arc<Device> = Arc::new(lone_device());
            if op.role() != Role::Compute || device.find_kernel(&node).is_none() {
                continue;
            }
            let Ok(types) = node.input_types() else { continue };
            let Ok(inputs) = inputs(&random, &device, &node, &types) else { continue };
            // Asynchronous kernels are left out: they wait for other kernels or for files, and have their own tests.
            if matches!(make_kernel(&device, &node), Ok(Kernel::Async(_))) {
                continue;
            }
            tried += 1;
            LARGEST.store(0, Ordering::Relaxed);
            let outcome = catch_unwind(AssertUnwindSafe(|| run_node_on(&device, &node, inputs.clone())));
            let largest = LARGEST.load(Ordering::Relaxed);
            let mut report = |what: String| {
                let text = describe(&node, &inputs);
                wrong.entry(format!("{}: {what}", op.name())).or_insert((0, text)).0 += 1;
            };
            match outcome {
                Err(_) => report(PANIC.lock().unwrap_or_else(PoisonError::into_inner).replace('\n', " ")),
                Ok(_) if largest > MEMORY => report("takes more memory than the limit".to_owned()),
                Ok(Ok(_)) => right += 1,
                Ok(Err(_)) => {}
            }
        }
        if tried > 0 && right == 0 {
            never_right.insert(op.name());
        }
    }
    let _ = std::panic::take_hook();
    let wrong: Vec<String> =
        wrong.iter().map(|(what, (n, how))| format!("{what} ({n} times)\n    {how}")).collect();
    assert!(wrong.is_empty(), "{}\n{} kinds", wrong.join("\n"), wrong.len());
    // Each op outside this list must succeed at least once; otherwise the random inputs are too often invalid to test
    // the op. The comparison with TensorFlow tests that the listed ops work.
    let never_right: String = never_right.iter().map(|name| format!("{name}\n")).collect();
    expect_test::expect_file!["never_right.txt"].assert_eq(&never_right);
    Ok(())
}
