//! Pseudo-random numbers of a generator whose state is a variable in the GPU's memory; the numbers are the same
//! as on the CPU. The state is never copied to the host.

use super::random::{SOURCE, bounds, group_distance, values_per_thread};
use super::support::{allocate, function, launch, read, type_name, write};
use super::variable::update_value;
use crate::engine::{Arguments, Function};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{DType, Shape};
use kernels::numeric::dispatch::{FLOATS, INDEX, WORDS};
use kernels::plan::generator::groups_to_skip;
use kernels::plan::random::{Generator, RESERVED, Source, shape_input};
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

/// The generator of random numbers that a node uses, and the GPU function that advances the generator.
struct GeneratorKernel {
    generator: Generator,
    move_on: Arc<Function>,
}

impl GeneratorKernel {
    /// Loads the function that advances the generator.
    fn new(init: &KernelInit<'_>) -> Result<GeneratorKernel> {
        let move_on = function(init, &SOURCE, "move_on".into())?;
        Ok(GeneratorKernel { generator: Generator::of(init), move_on })
    }

    /// Advances the generator by `groups` groups of four random 32-bit words, and returns the state before: the
    /// two words of the counter, and the key.
    fn advance(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<DeviceTensor> {
        self.generator.check_algorithm(ctx)?;
        update_value(ctx, &*self.generator.variable.get(ctx)?, |state| {
            Generator::check_state(state.dtype, &state.shape)?;
            let old_state = allocate(ctx, DType::Int64, Shape::new(&[3])?)?;
            let arguments = Arguments::new().address(write(state)?).address(write(&old_state)?);
            launch(ctx, &self.move_on, 1, arguments.integer(groups as i64))?;
            Ok(old_state)
        })
    }

    /// Sets output 0 to the generator's next random numbers; `more` adds the arguments that are specific to the
    /// GPU function `function`.
    fn draw(
        &self,
        ctx: &mut KernelContext<'_>,
        function: &Function,
        (dtype, shape): (DType, Shape),
        more: impl FnOnce(Arguments) -> Arguments,
    ) -> Result<()> {
        let out = allocate(ctx, dtype, shape)?;
        let n = out.shape.num_elements();
        let old_state = self.advance(ctx, (n as u64).wrapping_mul(RESERVED as u64))?;
        let arguments = Arguments::new().address(write(&out)?).count(n).address(read(&old_state)?);
        launch(ctx, function, n.div_ceil(values_per_thread(dtype)), more(arguments))?;
        ctx.set_output(0, out);
        Ok(())
    }
}

/// Makes a kernel that draws random numbers from a generator. `kernel` is the name of a template in `random.cu`,
/// with the template arguments that precede the type of the numbers.
fn numbers(init: &KernelInit<'_>, kernel: &str) -> Result<Kernel> {
    let (dtype, source) = (init.output_type(0), Source::Generator(Generator::of(init)));
    let draws_again = kernel.starts_with("random_truncated");
    let function = function(init, &SOURCE, format!("{kernel}{}>", type_name(dtype)?))?;
    let generator_kernel = GeneratorKernel::new(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let more = |arguments: Arguments| match draws_again {
            true => arguments.count(group_distance(dtype)),
            false => arguments,
        };
        generator_kernel.draw(ctx, &function, (dtype, shape), more)
    })
}

/// Makes a kernel that draws random integers from a generator, from the input `minval` to `maxval` - 1.
fn integers(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, source) = (init.output_type(0), Source::Generator(Generator::of(init)));
    let function = function(init, &SOURCE, format!("random_integers_from<{}>", type_name(dtype)?))?;
    let generator_kernel = GeneratorKernel::new(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let [least, end] = bounds(ctx, &source, &shape)?;
        let more = |arguments: Arguments| arguments.integer(least).integer(end.wrapping_sub(least));
        generator_kernel.draw(ctx, &function, (dtype, shape), more)
    })
}

/// Makes a kernel that advances a generator without drawing numbers; if `reads` is set, output 0 is the
/// generator's state before the advance.
fn skip(init: &KernelInit<'_>, reads: bool) -> Result<Kernel> {
    let generator_kernel = GeneratorKernel::new(init)?;
    Kernel::sync(move |ctx| {
        let old_state = generator_kernel.advance(ctx, groups_to_skip(ctx)?)?;
        if reads {
            ctx.set_output(0, old_state);
        }
        Ok(())
    })
}
