//! Pseudo-random numbers, the same as on the CPU. The position in the random sequence is kept on the host.

use super::host::same_as_cpu;
use super::support::{allocate, function, kernel_stream, launch, read, type_name, write};
use crate::engine::{Arguments, Function, Source as Code};
use device::Result;
use device::kernel::{ALL_ARGUMENTS, Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape};
use kernels::numeric::dispatch::{FLOATS, INDEX};
use kernels::plan::random::{RESERVED, Source, choice_sizes, reserve_choices, shape_input};

pub(super) static SOURCE: Code = Code { file: "random.cu", text: include_str!("random.cu") };

type Types = &'static [(&'static str, &'static [DType])];

const OF_NODE: Types = &[("dtype", FLOATS), ("T", INDEX)];
const INT64: &[DType] = &[DType::Int64];
const INT32: &[DType] = &[DType::Int32];
const KEYED: Types = &[("dtype", FLOATS), ("Tshape", INDEX)];
const KEY: &[&str] = &["shape", "key", "counter", "alg"];
const WORDS: &[DType] = &[DType::Int32, DType::Int64, DType::UInt32, DType::UInt64];
const KEYED_WORDS: Types = &[("dtype", WORDS), ("Tshape", INDEX)];
const SEEDED_WORDS: Types = &[("dtype", WORDS), ("T", INDEX), ("Tseed", INDEX)];
const SEEDED: Types = &[("dtype", FLOATS), ("T", INDEX), ("Tseed", INDEX)];

macro_rules! kernels {
    ($($op:literal $types:ident $host:expr, $source:expr, $function:literal;)*) => {
        &[
            $(KernelDef {
                host_memory: $host,
                ..KernelDef::of($op, $types, |init| numbers(init, $source(init)?, $function))
            },)*
            // Integers of 32 bits are in host memory, like all tensors of that dtype.
            same_as_cpu("RandomUniformInt", &[("Tout", INT32), ("T", INDEX)], ALL_ARGUMENTS),
            same_as_cpu("StatelessRandomUniformInt", &[("dtype", INT32), ("T", INDEX), ("Tseed", INDEX)], ALL_ARGUMENTS),
            same_as_cpu("StatelessRandomUniformIntV2", &[("dtype", INT32), ("Tshape", INDEX)], ALL_ARGUMENTS),
            KernelDef {
                host_memory: &["shape", "minval", "maxval"],
                ..KernelDef::of("RandomUniformInt", &[("Tout", INT64), ("T", INDEX)], |init| {
                    integers(init, Source::of_node(init)?)
                })
            },
            KernelDef {
                host_memory: &["shape", "seed", "minval", "maxval"],
                ..KernelDef::of("StatelessRandomUniformInt", &[("dtype", INT64), ("T", INDEX), ("Tseed", INDEX)], |init| {
                    integers(init, seeds(init)?)
                })
            },
            KernelDef {
                host_memory: &["shape", "key", "counter", "alg", "minval", "maxval"],
                ..KernelDef::of("StatelessRandomUniformIntV2", &[("dtype", INT64), ("Tshape", INDEX)], |init| {
                    integers(init, key(init)?)
                })
            },
            KernelDef {
                host_memory: &["num_samples"],
                ..KernelDef::of("Multinomial", &[("T", FLOATS), ("output_dtype", INDEX)], |init| {
                    choices(init, Source::of_node(init)?)
                })
            },
            KernelDef {
                host_memory: &["num_samples", "seed"],
                ..KernelDef::of(
                    "StatelessMultinomial",
                    &[("T", FLOATS), ("Tseed", INDEX), ("output_dtype", INDEX)],
                    |init| choices(init, Source::Seeds(2)),
                )
            },
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "RandomUniform" OF_NODE &["shape"], Source::of_node, "random<Uniform, ";
    "RandomStandardNormal" OF_NODE &["shape"], Source::of_node, "random<Normal, ";
    "TruncatedNormal" OF_NODE &["shape"], Source::of_node, "random_truncated<";
    "StatelessRandomUniform" SEEDED &["shape", "seed"], seeds, "random<Uniform, ";
    "StatelessRandomNormal" SEEDED &["shape", "seed"], seeds, "random<Normal, ";
    "StatelessTruncatedNormal" SEEDED &["shape", "seed"], seeds, "random_truncated<";
    "StatelessRandomUniformFullInt" SEEDED_WORDS &["shape", "seed"], seeds, "random<Bits, ";
    "StatelessRandomUniformFullIntV2" KEYED_WORDS KEY, key, "random<Bits, ";
    "StatelessRandomUniformV2" KEYED KEY, key, "random<Uniform, ";
    "StatelessRandomNormalV2" KEYED KEY, key, "random<Normal, ";
    "StatelessTruncatedNormalV2" KEYED KEY, key, "random_truncated<";
};

/// Returns the source of random numbers of an op whose input 1 is the seeds.
fn seeds(_: &KernelInit<'_>) -> Result<Source> {
    Ok(Source::Seeds(1))
}

/// Returns the source of random numbers of an op whose inputs 1 and 2 are the key and the counter.
fn key(_: &KernelInit<'_>) -> Result<Source> {
    Ok(Source::Key(1))
}

/// Returns the number of values that a thread makes from a group of four 32-bit words.
pub(super) fn values_per_thread(dtype: DType) -> usize {
    if dtype.size() == Some(8) { 2 } else { 4 }
}

/// Returns the distance, in groups of four words, between the parts of the random sequence that are reserved
/// for the threads of a kernel that draws some values again.
pub(super) fn group_distance(dtype: DType) -> usize {
    values_per_thread(dtype) * RESERVED / 4
}

/// Makes a kernel that draws numbers with the template `kernel` of the `.cu` file.
fn numbers(init: &KernelInit<'_>, source: Source, kernel: &str) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let draws_again = kernel.starts_with("random_truncated");
    let function = function(init, &SOURCE, format!("{kernel}{}>", type_name(dtype)?))?;
    let (values_per_thread, group_distance) = (values_per_thread(dtype), group_distance(dtype));
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let more =
            |arguments: Arguments| if draws_again { arguments.count(group_distance) } else { arguments };
        draw(ctx, &source, &function, (dtype, shape), values_per_thread, more)
    })
}

/// Makes a kernel that draws integers in a range.
fn integers(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let function = function(init, &SOURCE, format!("random_integers<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let [least, end] = bounds(ctx, &source, &shape)?;
        let more = |arguments: Arguments| arguments.integer(least).integer(end.wrapping_sub(least));
        draw(ctx, &source, &function, (dtype, shape), 2, more)
    })
}

/// Returns the range of the integers to draw: the least integer, and the first that is too large.
pub(super) fn bounds(ctx: &KernelContext<'_>, source: &Source, shape: &Shape) -> Result<[i64; 2]> {
    let bound = |i: usize, name: &str| -> Result<i64> {
        let bound = ctx.input(source.parameters() + i)?;
        if bound.shape().rank() != 0 {
            device::invalid!("{name} must be 0-D, got shape {}", bound.shape());
        }
        Ok(bound.to_i64s()?[0])
    };
    let (least, end) = (bound(0, "minval")?, bound(1, "maxval")?);
    if shape.num_elements() > 0 && least >= end {
        device::invalid!("Need minval < maxval, got {least} >= {end}");
    }
    Ok([least, end])
}

/// Makes a kernel that samples classes by the logits of each row.
fn choices(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let (dtype, to) = (init.input_type(0), init.output_type(0));
    let shares = function(init, &SOURCE, format!("shares<{}>", type_name(dtype)?))?;
    let choose = function(init, &SOURCE, format!("choose<{}>", type_name(to)?))?;
    Kernel::sync(move |ctx| {
        let [batch, classes, samples] = choice_sizes(ctx)?;
        let out = allocate(ctx, to, Shape::new(&[batch, samples])?)?;
        match out.shape.num_elements() {
            0 => source.check(ctx)?,
            n => {
                let stream = reserve_choices(ctx, &source, batch, samples)?;
                let sums = allocate(ctx, DType::Double, Shape::new(&[batch, classes])?)?;
                let logits = Arguments::new().address(read(ctx.device_input(0)?)?);
                let arguments = logits.address(write(&sums)?).count(batch).count(classes);
                kernel_stream(ctx)?.launch_blocks(&shares, batch, &arguments)?;
                let [low, high] = stream.counter().map(|half| half as i64);
                let arguments = Arguments::new()
                    .address(read(&sums)?)
                    .address(write(&out)?)
                    .count(n)
                    .integer(stream.key() as i64)
                    .integer(low)
                    .integer(high)
                    .count(classes)
                    .count(samples);
                launch(ctx, &choose, n, arguments)?;
            }
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Sets output 0 to the next numbers of `source`; each thread makes `values_per_thread` numbers. `more` adds
/// the arguments that are specific to the kernel `function`.
fn draw(
    ctx: &mut KernelContext<'_>,
    source: &Source,
    function: &Function,
    (dtype, shape): (DType, Shape),
    values_per_thread: usize,
    more: impl FnOnce(Arguments) -> Arguments,
) -> Result<()> {
    let out = allocate(ctx, dtype, shape)?;
    match out.shape.num_elements() {
        0 => source.check(ctx)?,
        n => {
            let stream = source.reserve_outputs(ctx, n)?;
            let [low, high] = stream.counter().map(|half| half as i64);
            let arguments = Arguments::new()
                .address(write(&out)?)
                .count(n)
                .integer(stream.key() as i64)
                .integer(low)
                .integer(high);
            launch(ctx, function, n.div_ceil(values_per_thread), more(arguments))?;
        }
    }
    ctx.set_output(0, out);
    Ok(())
}
