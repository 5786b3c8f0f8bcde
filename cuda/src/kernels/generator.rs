//! Pseudo-random numbers, the same as the CPU's, of a generator whose state is a variable in the GPU's memory: where it
//! stands is never known on the host.

use super::random::{SOURCE, apart, bounds, made};
use super::support::{allocate, function, launch, read, type_name, write};
use super::variable::changed;
use crate::engine::{Arguments, Function};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape};
use kernels::generator::skipped;
use kernels::numeric::dispatch::{FLOATS, INDEX, WORDS};
use kernels::random::{Generator, RESERVED, Source, shape_input};
use std::sync::Arc;

type Types = &'static [(&'static str, &'static [DType])];

const FLOAT: Types = &[("dtype", FLOATS), ("shape_dtype", INDEX)];
const BITS: Types = &[("dtype", WORDS), ("shape_dtype", INDEX)];
const WHOLE: Types = &[("dtype", INDEX), ("shape_dtype", INDEX)];

macro_rules! kernels {
    ($($op:literal $types:ident $host:expr, $make:expr;)*) => {
        &[$(KernelDef { host_memory: $host, ..KernelDef::updating($op, $types, $make) }),*]
    };
}

const SHAPE: &[&str] = &["algorithm", "shape"];
const ANY: Types = &[];

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "StatefulUniform" FLOAT SHAPE, |init| numbers(init, "random_from<Uniform, ");
    "StatefulStandardNormalV2" FLOAT SHAPE, |init| numbers(init, "random_from<Normal, ");
    "StatefulTruncatedNormal" FLOAT SHAPE, |init| numbers(init, "random_truncated_from<");
    "StatefulUniformFullInt" BITS SHAPE, |init| numbers(init, "random_from<Bits, ");
    "StatefulUniformInt" WHOLE &["algorithm", "shape", "minval", "maxval"], integers;
    "RngSkip" ANY &["algorithm", "delta"], |init| skip(init, false);
    "RngReadAndSkip" ANY &["alg", "delta"], |init| skip(init, true);
};

/// A generator, and what moves it on.
struct Moved {
    generator: Generator,
    move_on: Arc<Function>,
}

impl Moved {
    fn new(init: &KernelInit<'_>) -> Result<Moved> {
        let move_on = function(init, &SOURCE, "move_on".into())?;
        Ok(Moved { generator: Generator::of(init), move_on })
    }

    /// Where the generator stood before it was moved on by `groups` of four numbers: its counter's words, and its key.
    fn on(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<DeviceTensor> {
        self.generator.check_algorithm(ctx)?;
        changed(ctx, &*self.generator.variable.get(ctx)?, |state| {
            Generator::check_state(state.dtype, &state.shape)?;
            let stood = allocate(ctx, DType::Int64, Shape::new(&[3])?)?;
            let arguments = Arguments::new().address(write(state)?).address(write(&stood)?);
            launch(ctx, &self.move_on, 1, arguments.integer(groups as i64))?;
            Ok(stood)
        })
    }

    /// Sets the output to numbers of the next part of the stream; `more` adds what only this kernel is told.
    fn draw(
        &self,
        ctx: &mut KernelContext<'_>,
        function: &Function,
        (dtype, shape): (DType, Shape),
        more: impl FnOnce(Arguments) -> Arguments,
    ) -> Result<()> {
        let out = allocate(ctx, dtype, shape)?;
        let n = out.shape.num_elements();
        let stood = self.on(ctx, (n as u64).wrapping_mul(RESERVED as u64))?;
        let arguments = Arguments::new().address(write(&out)?).count(n).address(read(&stood)?);
        launch(ctx, function, n.div_ceil(made(dtype)), more(arguments))?;
        ctx.set_output(0, out);
        Ok(())
    }
}

fn numbers(init: &KernelInit<'_>, kernel: &str) -> Result<Kernel> {
    let (dtype, source) = (init.output_type(0), Source::Generator(Generator::of(init)));
    let draws_again = kernel.starts_with("random_truncated");
    let function = function(init, &SOURCE, format!("{kernel}{}>", type_name(dtype)?))?;
    let moved = Moved::new(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let more = |arguments: Arguments| match draws_again {
            true => arguments.count(apart(dtype)),
            false => arguments,
        };
        moved.draw(ctx, &function, (dtype, shape), more)
    })
}

fn integers(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, source) = (init.output_type(0), Source::Generator(Generator::of(init)));
    let function = function(init, &SOURCE, format!("random_integers_from<{}>", type_name(dtype)?))?;
    let moved = Moved::new(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let [least, end] = bounds(ctx, &source, &shape)?;
        let more = |arguments: Arguments| arguments.integer(least).integer(end.wrapping_sub(least));
        moved.draw(ctx, &function, (dtype, shape), more)
    })
}

fn skip(init: &KernelInit<'_>, reads: bool) -> Result<Kernel> {
    let moved = Moved::new(init)?;
    Kernel::sync(move |ctx| {
        let stood = moved.on(ctx, skipped(ctx)?)?;
        if reads {
            ctx.set_output(0, stood);
        }
        Ok(())
    })
}
