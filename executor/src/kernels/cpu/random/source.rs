//! Where a kernel's random numbers come from: its node's seeds, seeds or a key among its inputs, or the state of a
//! generator in a variable.

use super::distribution::RESERVED;
use super::philox::Philox;
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{KernelContext, KernelInit};
use crate::variable::VariableInput;
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;

/// The number by which programs know Philox; ThreeFry has kernels on no device here.
const PHILOX: i64 = 1;
const THREE_FRY: i64 = 2;
/// The best that a device has.
const AUTOMATIC: i64 = 3;

/// A kernel's place in its stream. Steps that run at once take parts that do not overlap.
pub(in crate::kernels) struct Stream(Mutex<Philox>);

impl Stream {
    /// Of the attributes `seed` and `seed2`.
    pub(in super::super) fn of(init: &KernelInit<'_>) -> Result<Stream> {
        Ok(Stream::seeded([init.attr("seed")?, init.attr("seed2")?]))
    }

    /// Of these seeds; of both 0, a stream that differs from run to run.
    pub(in super::super) fn seeded([seed, seed2]: [i64; 2]) -> Stream {
        Stream(Mutex::new(Philox::seeded(seed, seed2)))
    }

    /// Takes the next `groups` of four numbers.
    pub(in super::super) fn reserve(&self, groups: u64) -> Philox {
        let mut stream = self.0.lock();
        let taken = *stream;
        stream.skip(groups);
        taken
    }
}

/// Where numbers come from.
pub(in crate::kernels) enum Source {
    /// The node's own stream, in which each step goes on where the last one stopped.
    Node(Stream),
    /// Two seeds in this input: the same numbers in each step.
    Seeds(usize),
    /// A key in this input, then a counter and an algorithm.
    Key(usize),
    /// The state of a generator, which goes on.
    Generator(Generator),
}

impl Source {
    pub(in crate::kernels) fn of_node(init: &KernelInit<'_>) -> Result<Source> {
        Ok(Source::Node(Stream::of(init)?))
    }

    /// The input that says what shape the numbers have.
    pub(super) fn shape(&self) -> usize {
        match self {
            Source::Generator(generator) => generator.inputs(),
            _ => 0,
        }
    }

    /// The first input that only some distributions have.
    pub(in crate::kernels) fn parameters(&self) -> usize {
        match self {
            Source::Node(_) => 1,
            Source::Seeds(at) => at + 1,
            Source::Key(at) => at + 3,
            Source::Generator(generator) => generator.inputs() + 1,
        }
    }

    /// Where this step's numbers begin; of streams that go on, `groups` of four are taken.
    pub(super) fn reserve(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<Philox> {
        match self {
            Source::Node(stream) => Ok(stream.reserve(groups)),
            Source::Seeds(at) => Ok(Philox::scrambled(seeds(ctx.input(*at)?)?)),
            Source::Key(at) => keyed(ctx, *at),
            Source::Generator(generator) => generator.reserve(ctx, groups),
        }
    }

    /// As [`Source::reserve`], as much as is set aside for `count` numbers of any distribution.
    pub(in crate::kernels) fn reserve_outputs(
        &self,
        ctx: &KernelContext<'_>,
        count: usize,
    ) -> Result<Philox> {
        self.reserve(ctx, (count as u64).wrapping_mul(RESERVED as u64))
    }

    /// An error if the inputs say nothing that numbers could come from, for steps that need none.
    pub(in crate::kernels) fn check(&self, ctx: &KernelContext<'_>) -> Result<()> {
        match self {
            Source::Node(_) => Ok(()),
            Source::Key(at) => key(ctx, *at).map(|_| ()),
            _ => self.reserve(ctx, 0).map(|_| ()),
        }
    }
}

/// Two seeds of any type of integers.
pub(in super::super) fn seeds(input: &Tensor) -> Result<[u64; 2]> {
    if input.shape().dims() != [2] {
        invalid!("seed must have shape [2], not {}", input.shape());
    }
    let seeds = match input.dtype() {
        DType::UInt64 => input.values::<u64>()?.to_vec(),
        DType::UInt32 => input.values::<u32>()?.iter().map(|&s| s.into()).collect(),
        // Negative seeds keep their sign as they widen.
        _ => input.to_i64s()?.into_iter().map(|s| s as u64).collect(),
    };
    Ok([seeds[0], seeds[1]])
}

fn keyed(ctx: &KernelContext<'_>, at: usize) -> Result<Philox> {
    let stream = key(ctx, at)?;
    check_algorithm(ctx.input(at + 2)?.item::<i32>()?.into())?;
    Ok(stream)
}

/// Where numbers begin, whatever the algorithm.
fn key(ctx: &KernelContext<'_>, at: usize) -> Result<Philox> {
    let (key, counter, algorithm) = (ctx.input(at)?, ctx.input(at + 1)?, ctx.input(at + 2)?);
    if algorithm.shape().rank() != 0 {
        invalid!("input {} (0-based) must have shape [], not {}", at + 2, algorithm.shape());
    }
    if key.shape().dims() != [1] {
        invalid!("key must have shape [1], not {}", key.shape());
    }
    let number: i64 = algorithm.item::<i32>()?.into();
    if number != AUTOMATIC && number > counter.num_elements() as i64 {
        // To the peer the number of an algorithm says how long its counter is.
        invalid!("counter must be a vector with length at least {number}, not {}", counter.shape());
    }
    match (counter.shape().rank(), counter.values::<u64>()?) {
        (1, &[low, high, ..]) => Ok(Philox::at_counter(key.item()?, [low, high])),
        (1, _) => invalid!("counter must be a vector with length at least 2, not {}", counter.shape()),
        _ => invalid!("counter must be a vector, not of shape {}", counter.shape()),
    }
}

fn check_algorithm(algorithm: i64) -> Result<()> {
    match algorithm {
        PHILOX | AUTOMATIC => Ok(()),
        _ => invalid!("Unsupported algorithm id: {algorithm}"),
    }
}

fn no_three_fry() -> Error {
    Error::unimplemented("there is no ThreeFry algorithm on this device")
}

fn check_words(dtype: DType, shape: &Shape) -> Result<()> {
    if dtype != DType::Int64 {
        invalid!("dtype of RNG state variable must be int64, not {dtype}");
    }
    if shape.rank() != 1 {
        invalid!("RNG state must have one and only one dimension, not {}", shape.rank());
    }
    Ok(())
}

fn too_short(words: usize) -> Error {
    Error::invalid(format!("For the Philox algorithm, the size of state must be at least 3; got {words}"))
}

/// A generator's state in the variable behind input 0: the halves of the counter and the key, as signed numbers.
pub(in crate::kernels) struct Generator {
    pub(in crate::kernels) variable: VariableInput,
    /// The state begins with the algorithm, which is an input else.
    is_self_described: bool,
}

impl Generator {
    pub(in crate::kernels) fn of(init: &KernelInit<'_>) -> Generator {
        Generator { variable: VariableInput::new(init, 0), is_self_described: false }
    }

    /// As states were at first: the algorithm before the counter, in the variable itself.
    pub(in super::super) fn self_described(init: &KernelInit<'_>) -> Generator {
        Generator { is_self_described: true, ..Generator::of(init) }
    }

    fn inputs(&self) -> usize {
        if self.is_self_described { 1 } else { 2 }
    }

    /// An error unless the algorithm, where it is an input, is one that is there.
    pub(in crate::kernels) fn check_algorithm(&self, ctx: &KernelContext<'_>) -> Result<()> {
        if self.is_self_described {
            return Ok(());
        }
        let algorithm = ctx.input(1)?;
        if algorithm.shape().rank() != 0 {
            invalid!("algorithm must be of shape [], not {}", algorithm.shape());
        }
        match algorithm.to_i64s()?[0] {
            THREE_FRY => Err(no_three_fry()),
            algorithm => check_algorithm(algorithm),
        }
    }

    /// An error unless this can be a state without its algorithm.
    #[cfg(feature = "cuda")]
    pub(in crate::kernels) fn check_state(dtype: DType, shape: &Shape) -> Result<()> {
        check_words(dtype, shape)?;
        if shape.num_elements() < 3 { Err(too_short(shape.num_elements())) } else { Ok(()) }
    }

    /// Where the generator stands, and moves it on by `groups` of four numbers.
    pub(in super::super) fn reserve(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<Philox> {
        self.check_algorithm(ctx)?;
        self.variable.get(ctx)?.update(|state| {
            check_words(state.dtype(), state.shape())?;
            let mut words = state.values_mut::<i64>()?;
            if self.is_self_described {
                let Some((algorithm, rest)) = words.split_first_mut() else {
                    invalid!("Size of tensor must be at least 1");
                };
                match *algorithm {
                    PHILOX => {}
                    THREE_FRY => return Err(no_three_fry()),
                    _ => invalid!("Unsupported algorithm id: {algorithm}"),
                }
                words = rest;
            }
            let &mut [ref mut low, ref mut high, key, ..] = words else {
                return Err(too_short(words.len()));
            };
            let stream = Philox::at_counter(key as u64, [*low as u64, *high as u64]);
            [*low, *high] = stream.at(groups).counter().map(|half| half as i64);
            Ok(stream)
        })
    }
}
