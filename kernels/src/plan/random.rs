//! The sources of a kernel's random numbers: seeds in the attributes of a node, seeds or a key in its inputs, or the
//! state of a generator in a variable.

use crate::numeric::philox::{GROUP, Philox};
use device::kernel::{KernelContext, KernelInit};
use device::variable::VariableInput;
use device::{Error, Result, invalid};
use graph::{Code, DType, Shape, Tensor};
use parking_lot::Mutex;

/// TensorFlow's number for the Philox algorithm. The other algorithm, ThreeFry, is not implemented for any device.
const PHILOX: i64 = 1;

const THREE_FRY: i64 = 2;

/// TensorFlow's number for "the best algorithm for the device".
const AUTOMATIC: i64 = 3;

/// A stream of random numbers, and a kernel's position in it. Each step reserves its numbers, so concurrent steps get
/// different numbers.
#[derive(Debug)]
pub struct Stream(Mutex<Philox>);

impl Stream {
    /// Returns the stream seeded by the attributes `seed` and `seed2`.
    pub(crate) fn of(init: &KernelInit<'_>) -> Result<Stream> {
        Ok(Stream::seeded([init.attr("seed")?, init.attr("seed2")?]))
    }

    /// Returns the stream of two seeds; if both are 0, a stream with unpredictable seeds.
    pub(crate) fn seeded([seed, seed2]: [i64; 2]) -> Stream {
        Stream(Mutex::new(Philox::seeded(seed, seed2)))
    }

    /// Reserves the next `groups` groups of four numbers, and returns the position of the first group.
    pub(crate) fn reserve(&self, groups: u64) -> Philox {
        let mut stream = self.0.lock();
        let taken = *stream;
        stream.skip(groups);
        taken
    }
}

/// The source of a kernel's random numbers.
#[derive(Debug)]
pub enum Source {
    /// The node's own stream; each step continues where the previous step stopped.
    Node(Stream),
    /// Two seeds in the input with this index; steps with equal seeds get the same numbers.
    Seeds(usize),
    /// A key in the input with this index; the next inputs are the counter and the algorithm.
    Key(usize),
    /// The state of a generator in a variable, which each step advances.
    Generator(Generator),
}

impl Source {
    /// Returns a source with its own stream, seeded by the attributes `seed` and `seed2` of the node.
    pub fn of_node(init: &KernelInit<'_>) -> Result<Source> {
        Ok(Source::Node(Stream::of(init)?))
    }

    /// Returns the index of the input that holds the output's shape.
    fn shape(&self) -> usize {
        match self {
            Source::Generator(generator) => generator.inputs(),
            _ => 0,
        }
    }

    /// Returns the index of the first input with parameters of the distribution.
    pub fn parameters(&self) -> usize {
        match self {
            Source::Node(_) => 1,
            Source::Seeds(at) => at + 1,
            Source::Key(at) => at + 3,
            Source::Generator(generator) => generator.inputs() + 1,
        }
    }

    /// Returns the position in the random stream at which this step's numbers begin. A stream or a generator's state is
    /// advanced by `groups` groups of four numbers.
    pub(crate) fn reserve(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<Philox> {
        match self {
            Source::Node(stream) => Ok(stream.reserve(groups)),
            Source::Seeds(at) => Ok(Philox::scrambled(seeds(ctx.input(*at)?)?)),
            Source::Key(at) => keyed(ctx, *at),
            Source::Generator(generator) => generator.reserve(ctx, groups),
        }
    }

    /// Reserves enough random numbers to draw `count` numbers of any distribution, and returns the position of the
    /// first one.
    pub fn reserve_outputs(&self, ctx: &KernelContext<'_>, count: usize) -> Result<Philox> {
        self.reserve(ctx, (count as u64).wrapping_mul(RESERVED as u64))
    }

    /// Returns an error if the inputs of the source are invalid; called in steps that draw no numbers.
    pub fn check(&self, ctx: &KernelContext<'_>) -> Result<()> {
        match self {
            Source::Node(_) => Ok(()),
            Source::Key(at) => key(ctx, *at).map(|_| ()),
            _ => self.reserve(ctx, 0).map(|_| ()),
        }
    }
}

/// Returns the two seeds in an input of any integer dtype.
pub(crate) fn seeds(input: &Tensor) -> Result<[u64; 2]> {
    if input.shape().dims() != [2] {
        invalid!("seed must have shape [2], not {}", input.shape());
    }
    let seeds = match input.dtype() {
        DType::UInt64 => input.values::<u64>()?.to_vec(),
        DType::UInt32 => input.values::<u32>()?.iter().map(|&s| s.into()).collect(),
        // Negative seeds are sign-extended.
        _ => input.to_i64s()?.into_iter().map(|s| s as u64).collect(),
    };
    Ok([seeds[0], seeds[1]])
}

fn keyed(ctx: &KernelContext<'_>, at: usize) -> Result<Philox> {
    let stream = key(ctx, at)?;
    check_algorithm(ctx.input(at + 2)?.item::<i32>()?.into())?;
    Ok(stream)
}

/// Returns the position in the random stream given by the key in input `at` and the counter in the next input, without
/// checking that the algorithm is supported.
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
        // The minimum length of the counter is the number of the algorithm, like in TensorFlow.
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

/// The state of a generator in the variable of input 0: the two halves of the counter and the key, as signed integers.
#[derive(Debug)]
pub struct Generator {
    pub variable: VariableInput,
    /// True if the state begins with the number of the algorithm; if false, an input gives the algorithm.
    is_self_described: bool,
}

impl Generator {
    /// Returns a generator whose algorithm is given by an input.
    pub fn of(init: &KernelInit<'_>) -> Generator {
        Generator { variable: VariableInput::new(init, 0), is_self_described: false }
    }

    /// Returns a generator in the older format, in which the state begins with the number of the algorithm.
    pub(crate) fn self_described(init: &KernelInit<'_>) -> Generator {
        Generator { is_self_described: true, ..Generator::of(init) }
    }

    fn inputs(&self) -> usize {
        if self.is_self_described { 1 } else { 2 }
    }

    /// Returns an error if an input gives an algorithm that is not supported.
    pub fn check_algorithm(&self, ctx: &KernelContext<'_>) -> Result<()> {
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

    /// Returns an error unless the variable's dtype and shape fit a state without the number of the algorithm.
    pub fn check_state(dtype: DType, shape: &Shape) -> Result<()> {
        check_words(dtype, shape)?;
        if shape.num_elements() < 3 { Err(too_short(shape.num_elements())) } else { Ok(()) }
    }

    /// Returns the position given by the generator's state, and advances the state by `groups` groups of four numbers.
    pub(crate) fn reserve(&self, ctx: &KernelContext<'_>, groups: u64) -> Result<Philox> {
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

/// Groups of four random numbers reserved for each number drawn from a distribution that may reject candidates.
pub const RESERVED: usize = 256;

/// Returns the shape of the output, given by an input of the node.
pub fn shape_input(ctx: &KernelContext<'_>, source: &Source) -> Result<Shape> {
    let shape = ctx.input(source.shape())?;
    if shape.shape().rank() != 1 {
        invalid!("shape must be a vector of {{int32,int64}}, got shape {}", shape.shape());
    }
    Ok(Shape::from_i64(&shape.to_i64s()?)?)
}

/// Returns the numbers of rows and classes of the logits in input 0, and the number of samples per row in input 1.
pub fn choice_sizes(ctx: &KernelContext<'_>) -> Result<[usize; 3]> {
    let (logits, samples) = (ctx.shape(0)?, ctx.input(1)?);
    let &[batch, classes] = logits.dims() else {
        device::invalid!("logits should be a matrix, got shape {logits}");
    };
    if samples.shape().rank() != 0 {
        device::invalid!("num_samples should be a scalar, got shape {}", samples.shape());
    }
    let samples = samples.item::<i32>()?;
    let Ok(samples) = usize::try_from(samples) else {
        device::invalid!("num_samples should be non-negative, got {samples}");
    };
    if classes == 0 && batch > 0 {
        device::invalid!("num_classes should be positive, got {classes}");
    }
    Ok([batch, classes, samples])
}

/// Reserves the random numbers for `samples` samples of each of `batch` rows. A sample takes two 32-bit numbers, and
/// the number of samples of a row is rounded up to a multiple of four.
pub fn reserve_choices(
    ctx: &KernelContext<'_>,
    source: &Source,
    batch: usize,
    samples: usize,
) -> Result<Philox> {
    let numbers = samples.next_multiple_of(GROUP).checked_mul(2).and_then(|n| n.checked_mul(batch));
    let Some(numbers) = numbers else {
        return Err(device::Error::new(Code::InvalidArgument, "num_samples is out of range"));
    };
    source.reserve(ctx, (numbers as u64).wrapping_mul(RESERVED as u64))
}
