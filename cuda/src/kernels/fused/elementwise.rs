//! A chain of element-wise ops as one kernel, whose text is made of the ops' functions: operands and the result cross
//! memory once. Each op rounds to the elements' type as it does by itself: the bits are the same.
//!
//! Operands are whole, single or spread, as on the CPU; a value between ops that repeats is computed for each element
//! anew. Where shapes fit in no such way the ops run one by one, each as its own kernel: so do those whose shapes do not
//! fit at all, and the error is that of the op.

use super::functions::{Function, function};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Program, Source, engine_of};
use crate::kernels::support::{Axes, allocate, is_unique, launch, read, repeated, type_name, write};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Shape;
use kernels::fused::chain;
use kernels::fused::chain::Chain;
use kernels::numeric::broadcast::Plan;
use smallvec::SmallVec;
use std::fmt::Write;

static KERNEL: Source = Source { file: "fused.cu", text: include_str!("../fused.cu") };

/// How many ways to repeat operands of one chain may have.
const PATTERNS: usize = 4;

/// A thread keeps more than one element of each operand in registers for chains of so many ops and operands at most.
const SHORT: usize = 16;

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let chain = Chain::new(init, function)?;
    let (text, element) = (text(&chain)?, type_name(dtype)?);
    let load = |has_patterns: bool| {
        let function = format!("chain<Chain, {element}, {has_patterns}>");
        let program = Program { file: KERNEL.file, text: text.clone().into(), function };
        engine_of(&**init.device)?.function(program)
    };
    let (flat, spread) = (load(false)?, load(true)?);
    let lanes = if is_short(&chain) { 16 / dtype.size().unwrap_or(16) } else { 1 };
    Kernel::sync(move |ctx| {
        let Some(fit) = Fit::of(&chain, ctx) else { return chain.one_by_one(ctx) };
        let mut inputs: SmallVec<[DeviceTensor; 8]> = SmallVec::new();
        for i in 0..chain.inputs {
            inputs.push(ctx.take_device_input(i)?);
        }
        // The result may take the place of an operand: each element of that is read before it is written.
        let is_free = |i: &usize| fit.places[*i] == Place::Whole && is_unique(&mut inputs[*i]);
        let in_place = (0..chain.inputs).find(is_free);
        let out = match in_place.map(|i| inputs[i].memory.clone()) {
            Some(memory) => DeviceTensor { dtype, shape: fit.shape.clone(), memory },
            None => allocate(ctx, dtype, fit.shape.clone())?,
        };
        let addresses = inputs.iter().map(read).collect::<Result<SmallVec<[Address; 8]>>>()?;
        let n = out.shape.num_elements();
        let operands =
            addresses.iter().map(|at| at.0 as i64).chain(fit.places.iter().map(|place| place.code()));
        // Elements that a thread computes together are of one row, where rows matter.
        let are_in_rows = !fit.has_patterns || fit.axes.innermost() % lanes == 0;
        let width = if are_in_rows { lanes } else { 1 };
        let arguments = Arguments::new()
            .structure(operands)
            .address(write(&out)?)
            .count(n)
            .count(width)
            .structure(fit.axes.words());
        let kernel = if fit.has_patterns { &spread } else { &flat };
        launch(ctx, kernel, n.div_ceil(width), arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn is_short(chain: &Chain<Function>) -> bool {
    chain.ops.len() + chain.inputs <= SHORT
}

/// The files that the chain's functions are in, each once, the chain, and the kernel.
fn text(chain: &Chain<Function>) -> Result<String> {
    let mut sources: SmallVec<[&Source; 4]> = SmallVec::new();
    for op in &chain.ops {
        if !sources.iter().any(|source| source.file == op.function.source.file) {
            sources.push(op.function.source);
        }
    }
    sources.sort_by_key(|source| source.file);
    let mut text = String::new();
    for source in sources {
        // Each file has macros of its own under these names.
        text += source.text;
        text += "#undef MAP\n#undef ZIP\n";
    }
    write_chain(chain, &mut text).map_err(|_| device::Error::internal("a chain has no text"))?;
    text += KERNEL.text;
    Ok(text)
}

/// The structure that the kernel takes: a line an op. All but the last round to the elements' type.
fn write_chain(chain: &Chain<Function>, to: &mut String) -> std::fmt::Result {
    writeln!(to, "struct Chain {{")?;
    writeln!(to, "    static const int operands = {};", chain.inputs)?;
    writeln!(to, "    static const bool is_short = {};", is_short(chain))?;
    writeln!(
        to,
        "    template <class T> static __device__ inline Wide<T> apply(const Wide<T> (&x)[operands]) {{"
    )?;
    let last = chain.ops.len().saturating_sub(1);
    for (at, op) in chain.ops.iter().enumerate() {
        let operands = op.operands.iter().map(|operand| match operand {
            chain::Source::Input(i) => format!("x[{i}]"),
            chain::Source::Value(before) => format!("v{before}"),
        });
        let operands = operands.collect::<SmallVec<[String; 2]>>().join(", ");
        let value = format!("{}::apply<T>({operands}, 0.0)", op.function.name);
        match at == last {
            false => writeln!(to, "        const Wide<T> v{at} = wide(narrow<T>({value}));")?,
            true => writeln!(to, "        return {value};")?,
        }
    }
    writeln!(to, "    }}\n}};\n")
}

/// How an operand lies along the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Whole,
    Single,
    /// By the pattern of this number.
    Spread(usize),
}

impl Place {
    /// The kernel's number for it.
    fn code(self) -> i64 {
        match self {
            Place::Whole => 0,
            Place::Single => 1,
            Place::Spread(pattern) => 2 + pattern as i64,
        }
    }
}

/// How the shapes of a chain's operands fit the result's.
struct Fit {
    shape: Shape,
    places: SmallVec<[Place; 8]>,
    has_patterns: bool,
    /// Where the elements of each pattern are.
    axes: Axes<PATTERNS>,
}

impl Fit {
    /// `None` where shapes do not fit, or repeat in more ways than kernels walk.
    fn of(chain: &Chain<Function>, ctx: &KernelContext<'_>) -> Option<Fit> {
        let given = chain.given(ctx)?;
        if chain.takes_as_one_shape(&given) {
            let (shape, places) = (given[0].clone(), given.iter().map(|_| Place::Whole).collect());
            return Some(Fit { shape, places, has_patterns: false, axes: Axes::new([]).ok()? });
        }
        let shapes = chain.shapes(&given)?;
        let whole = shapes.last()?;
        let fits = |shape: &Shape| shape == whole || spreads(shape, whole);
        if !shapes.iter().all(fits) || !given.iter().all(|shape| fits(shape)) {
            return None;
        }
        let mut patterns: SmallVec<[SmallVec<[isize; 6]>; PATTERNS]> = SmallVec::new();
        let mut place = |shape: &Shape| {
            if shape.num_elements() == whole.num_elements() {
                return Place::Whole;
            }
            if shape.num_elements() == 1 {
                return Place::Single;
            }
            let pattern = repeated(shape, whole);
            let known = patterns.iter().position(|known| *known == pattern);
            Place::Spread(known.unwrap_or_else(|| {
                patterns.push(pattern);
                patterns.len() - 1
            }))
        };
        let places = given.iter().map(|shape| place(shape)).collect();
        if patterns.len() > PATTERNS {
            return None;
        }
        let step = |pattern: usize, axis: usize| patterns.get(pattern).map_or(0, |steps| steps[axis]);
        let axes = (0..whole.rank()).map(|axis| (whole[axis], std::array::from_fn(|p| step(p, axis))));
        let axes = Axes::new(axes).ok()?;
        Some(Fit { shape: whole.clone(), places, has_patterns: !patterns.is_empty(), axes })
    }
}

/// Whether a tensor of one shape, repeated, is one of the other.
fn spreads(shape: &Shape, whole: &Shape) -> bool {
    matches!(Plan::fit(whole, shape), Ok(Some(plan)) if plan.shape() == whole)
}
