//! A chain of element-wise ops as one generated kernel, composed of the ops' functions: each operand is read
//! from memory once, and the result written once. Each op rounds to the dtype as it does by itself, so the
//! result has the same bits.
//!
//! An operand has an element for each element of the result, or one element, or broadcasts by a pattern of
//! strides, as on the CPU; an intermediate value that broadcasts is computed anew for each element of the
//! result. If the shapes do not fit these cases, the ops run one by one as their own kernels. This includes
//! invalid shapes, so the error is that of the op.

use super::functions::{Function, function};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Program, Source, engine_of};
use crate::kernels::support::{Axes, allocate, is_unique, launch, read, repeated, type_name, write};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{DeviceTensor, Result};
use graph::Shape;
use kernels::numeric::broadcast::Plan;
use kernels::plan::fused::chain;
use kernels::plan::fused::chain::Chain;
use smallvec::SmallVec;
use std::fmt::Write;

static KERNEL: Source = Source { file: "fused.cu", text: include_str!("../fused.cu") };

/// Largest number of broadcast patterns of a chain's operands.
const MAX_PATTERNS: usize = 4;

/// Largest number of ops, and of operands, of a chain whose kernel computes several elements per thread; a
/// longer chain would need too many registers.
const MAX_SHORT: usize = 16;

/// Makes the kernel of a `_FusedElementwise` node.
pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let chain = Chain::new(init, function)?;
    let (text, element) = (text(&chain)?, type_name(dtype)?);
    let load = |has_patterns: bool| {
        let function = format!("chain<Chain, {element}, {has_patterns}>");
        let program = Program { file: KERNEL.file, text: text.clone().into(), function };
        engine_of(init.device)?.function(program)
    };
    let (flat, spread) = (load(false)?, load(true)?);
    let lanes = if has_packed_reads(&chain) { 16 / dtype.size().unwrap_or(16) } else { 1 };
    Kernel::sync(move |ctx| {
        let Some(layout) = ChainLayout::of(&chain, ctx) else { return chain.run_unfused(ctx) };
        let mut inputs: SmallVec<[DeviceTensor; 8]> = SmallVec::new();
        for i in 0..chain.inputs {
            inputs.push(ctx.take_device_input(i)?);
        }
        // The result may reuse the memory of an operand that does not broadcast, because each thread reads an
        // element before it writes the same element.
        let is_free = |i: &usize| layout.operands[*i] == OperandLayout::Whole && is_unique(&mut inputs[*i]);
        let in_place = (0..chain.inputs).find(is_free);
        let out = match in_place.map(|i| inputs[i].memory.clone()) {
            Some(memory) => DeviceTensor { dtype, shape: layout.shape.clone(), memory },
            None => allocate(ctx, dtype, layout.shape.clone())?,
        };
        let addresses = inputs.iter().map(read).collect::<Result<SmallVec<[Address; 8]>>>()?;
        let n = out.shape.num_elements();
        let operands = addresses
            .iter()
            .map(|at| at.0 as i64)
            .chain(layout.operands.iter().map(|operand| operand.code()));
        // If an operand broadcasts by a pattern, all elements of a thread must be in one row.
        let are_in_rows = !layout.has_patterns || layout.axes.innermost() % lanes == 0;
        let width = if are_in_rows { lanes } else { 1 };
        let arguments = Arguments::new()
            .structure(operands)
            .address(write(&out)?)
            .count(n)
            .count(width)
            .structure(layout.axes.words());
        let kernel = if layout.has_patterns { &spread } else { &flat };
        launch(ctx, kernel, n.div_ceil(width), arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns whether the chain is short enough that each thread computes several elements.
fn has_packed_reads(chain: &Chain<Function>) -> bool {
    chain.ops.len() + chain.inputs <= MAX_SHORT
}

/// Returns the kernel's source: the files of the chain's functions, the chain, and the kernel.
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
        // Each `.cu` file defines macros `MAP` and `ZIP` of its own, so they are undefined after each file.
        text += source.text;
        text += "#undef MAP\n#undef ZIP\n";
    }
    write_chain(chain, &mut text).map_err(|_| device::Error::internal("a chain has no text"))?;
    text += KERNEL.text;
    Ok(text)
}

/// Writes the structure `Chain` of the kernel, one line per op. All values except the last are rounded to the
/// dtype.
fn write_chain(chain: &Chain<Function>, to: &mut String) -> std::fmt::Result {
    writeln!(to, "struct Chain {{")?;
    writeln!(to, "    static const int operands = {};", chain.inputs)?;
    writeln!(to, "    static const bool is_short = {};", has_packed_reads(chain))?;
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

/// The way in which an operand broadcasts to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandLayout {
    /// The operand has an element for each element of the result.
    Whole,
    /// The operand has one element, used for all elements of the result.
    Single,
    /// The operand is repeated by the pattern of strides that has this index.
    Spread(usize),
}

impl OperandLayout {
    /// Returns the number by which `fused.cu` identifies the layout.
    fn code(self) -> i64 {
        match self {
            OperandLayout::Whole => 0,
            OperandLayout::Single => 1,
            OperandLayout::Spread(pattern) => 2 + pattern as i64,
        }
    }
}

/// The ways in which the operands of a chain broadcast to the result, and the result's axes.
struct ChainLayout {
    shape: Shape,
    operands: SmallVec<[OperandLayout; 8]>,
    has_patterns: bool,
    /// The result's axes, with the strides of each pattern of broadcasting.
    axes: Axes<MAX_PATTERNS>,
}

impl ChainLayout {
    /// Returns how the operands broadcast; `None` if an input or intermediate value does not broadcast to the
    /// result, or there are more patterns than the kernel supports.
    fn of(chain: &Chain<Function>, ctx: &KernelContext<'_>) -> Option<ChainLayout> {
        let input_shapes = chain.input_shapes(ctx)?;
        if chain.has_one_shape(&input_shapes) {
            let (shape, operands) =
                (input_shapes[0].clone(), input_shapes.iter().map(|_| OperandLayout::Whole).collect());
            return Some(ChainLayout { shape, operands, has_patterns: false, axes: Axes::new([]).ok()? });
        }
        let shapes = chain.shapes(&input_shapes)?;
        let whole = shapes.last()?;
        let fits = |shape: &Shape| shape == whole || broadcasts_to(shape, whole);
        if !shapes.iter().all(fits) || !input_shapes.iter().all(|shape| fits(shape)) {
            return None;
        }
        let mut patterns: SmallVec<[SmallVec<[isize; 6]>; MAX_PATTERNS]> = SmallVec::new();
        let mut layout_of = |shape: &Shape| {
            if shape.num_elements() == whole.num_elements() {
                return OperandLayout::Whole;
            }
            if shape.num_elements() == 1 {
                return OperandLayout::Single;
            }
            let pattern = repeated(shape, whole);
            let known = patterns.iter().position(|known| *known == pattern);
            OperandLayout::Spread(known.unwrap_or_else(|| {
                patterns.push(pattern);
                patterns.len() - 1
            }))
        };
        let operands = input_shapes.iter().map(|shape| layout_of(shape)).collect();
        if patterns.len() > MAX_PATTERNS {
            return None;
        }
        let step = |pattern: usize, axis: usize| patterns.get(pattern).map_or(0, |steps| steps[axis]);
        let axes = (0..whole.rank()).map(|axis| (whole[axis], std::array::from_fn(|p| step(p, axis))));
        let axes = Axes::new(axes).ok()?;
        Some(ChainLayout { shape: whole.clone(), operands, has_patterns: !patterns.is_empty(), axes })
    }
}

/// Returns whether a tensor of shape `shape` broadcasts to shape `whole`.
fn broadcasts_to(shape: &Shape, whole: &Shape) -> bool {
    matches!(Plan::fit(whole, shape), Ok(Some(plan)) if plan.shape() == whole)
}
