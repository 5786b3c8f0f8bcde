//! The saved state of iterators. Saving and restoring are one walk over a tree of iterators, a [`StateExchange`]: each
//! iterator passes its position and its buffered elements to it in a fixed order, and the exchange copies them to the
//! saved bytes or replaces them by the saved bytes. An input that cannot jump to a position (a compressed file) reads
//! up to it again; every other state is restored without producing elements again.

use super::function::FunctionInstance;
use super::{DatasetIterator, Element, IteratorContext, Pull};
use bytes::Bytes;
use checkpoint::proto::{put_varint, take_varint};
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::collections::VecDeque;

type Boxed = Box<dyn DatasetIterator>;

/// The first bytes of a saved state, which include the version of its format.
const HEADER: &[u8] = b"anabranch iterator state 1\n";

/// The treatment of functions whose ops have state outside the iterator, for example random number generators. Such
/// state is not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExternalStatePolicy {
    Warn,
    Ignore,
    Fail,
}

impl ExternalStatePolicy {
    /// Returns the policy with TensorFlow's number.
    ///
    /// # Errors
    /// `InvalidArgument` if no policy has the number.
    pub(crate) fn from_number(number: i64) -> Result<ExternalStatePolicy> {
        Ok(match number {
            0 => ExternalStatePolicy::Warn,
            1 => ExternalStatePolicy::Ignore,
            2 => ExternalStatePolicy::Fail,
            other => device::invalid!("external_state_policy must be 0, 1 or 2, got {other}"),
        })
    }
}

/// A value of an iterator that a [`StateExchange`] saves and restores.
pub(crate) trait ExchangedState {
    /// Passes each part of the value to `exchange`, in the same order for both directions.
    ///
    /// # Errors
    /// `Unimplemented` naming the dataset if the state cannot be saved; `InvalidArgument` if the saved bytes are
    /// damaged or belong to another dataset.
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()>;
}

/// The saving or restoring of the state of a tree of iterators. The threads of iterators that read ahead pause while
/// the exchange exists.
pub(crate) struct StateExchange<'a> {
    pull: &'a Pull,
    policy: ExternalStatePolicy,
    stream: Stream,
    /// Functions that let the paused threads go on.
    resume: Vec<Box<dyn FnOnce()>>,
}

impl Drop for StateExchange<'_> {
    fn drop(&mut self) {
        self.resume.drain(..).for_each(|resume| resume());
    }
}

#[derive(Debug)]
enum Stream {
    Save(Vec<u8>),
    Restore(Bytes),
}

impl<'a> StateExchange<'a> {
    /// Returns an exchange that saves state; `pull` ends it, because it may wait for calls of functions.
    pub(crate) fn save(pull: &'a Pull, policy: ExternalStatePolicy) -> StateExchange<'a> {
        StateExchange { pull, policy, stream: Stream::Save(HEADER.to_vec()), resume: Vec::new() }
    }

    /// Returns an exchange that restores the state in `bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no saved state.
    pub(crate) fn restore(pull: &'a Pull, bytes: Bytes) -> Result<StateExchange<'a>> {
        match bytes.strip_prefix(HEADER) {
            Some(rest) => {
                let (policy, stream) = (ExternalStatePolicy::Ignore, Stream::Restore(bytes.slice_ref(rest)));
                Ok(StateExchange { pull, policy, stream, resume: Vec::new() })
            }
            None => device::invalid!(
                "the tensor holds no iterator state that SerializeIterator of this server wrote"
            ),
        }
    }

    /// Returns the saved bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if the exchange restores and saved bytes are left over.
    pub(crate) fn finish(&mut self) -> Result<Bytes> {
        match &mut self.stream {
            Stream::Save(bytes) => Ok(std::mem::take(bytes).into()),
            Stream::Restore(rest) if rest.is_empty() => Ok(Bytes::new()),
            Stream::Restore(_) => Err(mismatch()),
        }
    }

    /// Calls `resume` when the exchange ends, also after an error. An iterator uses it to let its thread go on.
    pub(crate) fn at_end(&mut self, resume: impl FnOnce() + 'static) {
        self.resume.push(Box::new(resume));
    }

    /// Returns whether values are restored, not saved.
    pub(crate) fn is_restoring(&self) -> bool {
        matches!(self.stream, Stream::Restore(_))
    }

    /// Returns the request that may end the exchange.
    pub(crate) fn pull(&self) -> &'a Pull {
        self.pull
    }

    /// Saves a value, or replaces it by the saved value.
    pub(crate) fn value<T: StateValue>(&mut self, value: &mut T) -> Result<()> {
        match &mut self.stream {
            Stream::Save(out) => value.put(out),
            Stream::Restore(rest) => {
                *value = T::take(rest)?;
                Ok(())
            }
        }
    }

    /// Saves the kind of an iterator, or checks it.
    ///
    /// # Errors
    /// `InvalidArgument` naming both kinds if the saved kind is another one.
    pub(crate) fn kind(&mut self, kind: &'static str) -> Result<()> {
        self.pull.check()?;
        let mut saved = Bytes::from_static(kind.as_bytes());
        self.value(&mut saved)?;
        if saved != kind {
            device::invalid!(
                "the saved state is of another dataset: it has {}Dataset where this iterator has {kind}Dataset",
                String::from_utf8_lossy(&saved)
            );
        }
        Ok(())
    }

    /// Saves or restores the state of an input; `None` is an input that has ended.
    pub(crate) fn input(&mut self, input: &mut Option<Boxed>) -> Result<()> {
        self.remade(input, || Err(mismatch()))
    }

    /// Saves or restores the state of an iterator that may be absent; `make` makes the iterator if only the saved state
    /// has one.
    pub(crate) fn remade(
        &mut self,
        iterator: &mut Option<Boxed>,
        make: impl FnOnce() -> Result<Boxed>,
    ) -> Result<()> {
        let mut exists = iterator.is_some();
        self.value(&mut exists)?;
        if !exists {
            *iterator = None;
            return Ok(());
        }
        let iterator = match iterator {
            Some(iterator) => iterator,
            None => iterator.insert(make()?),
        };
        iterator.exchange(self)
    }

    /// Saves or restores several iterators, whose number is fixed unless all have been dropped at the end.
    pub(crate) fn inputs(&mut self, inputs: &mut Vec<Boxed>) -> Result<()> {
        let mut count = inputs.len();
        self.value(&mut count)?;
        if count == 0 {
            inputs.clear();
        }
        if count != inputs.len() {
            return Err(mismatch());
        }
        inputs.iter_mut().try_for_each(|input| input.exchange(self))
    }

    /// Applies the policy for external state to a function.
    ///
    /// # Errors
    /// `FailedPrecondition` naming the iterator and the op if the function has a stateful op and the policy is to fail.
    pub(crate) fn function(&mut self, function: &FunctionInstance) -> Result<()> {
        if self.is_restoring() || self.policy == ExternalStatePolicy::Ignore {
            return Ok(());
        }
        let Some(op) = function.stateful_op() else { return Ok(()) };
        let prefix = function.prefix();
        if self.policy == ExternalStatePolicy::Warn {
            tracing::warn!("the state of {op} in the function of {prefix} is not saved with its iterator");
            return Ok(());
        }
        let message = format!(
            "{op} is stateful. It is an op in the function of {prefix}Dataset, and its state cannot be saved; to save \
             the iterator without it, set the external state policy to \"ignore\"."
        );
        Err(Error::new(Code::FailedPrecondition, message))
    }

    /// Returns the error for a dataset whose iterators cannot be saved.
    pub(crate) fn unsupported(&self, kind: &str) -> Error {
        Error::unimplemented(format!("the state of an iterator of {kind}Dataset cannot be saved"))
    }
}

/// Returns the error for bytes that do not match the iterator.
pub(super) fn mismatch() -> Error {
    Error::invalid("the saved state of the iterator is damaged, or it is of another dataset")
}

/// A value that can be saved as bytes.
pub(crate) trait StateValue: Sized {
    /// Appends the value to `out`.
    ///
    /// # Errors
    /// `Unimplemented` for tensors of objects.
    fn put(&self, out: &mut Vec<u8>) -> Result<()>;

    /// Takes the value from the start of `rest`.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not a value of this type.
    fn take(rest: &mut Bytes) -> Result<Self>;
}

impl StateValue for u64 {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        put_varint(out, *self);
        Ok(())
    }

    fn take(rest: &mut Bytes) -> Result<u64> {
        let mut bytes = &rest[..];
        let value = take_varint(&mut bytes).ok_or_else(mismatch)?;
        *rest = rest.slice_ref(bytes);
        Ok(value)
    }
}

/// Implements [`StateValue`] for an integer type by a conversion to `u64`.
macro_rules! as_u64 {
    ($($type:ty),*) => {$(
        impl StateValue for $type {
            fn put(&self, out: &mut Vec<u8>) -> Result<()> {
                (*self as u64).put(out)
            }

            fn take(rest: &mut Bytes) -> Result<$type> {
                let wide = u64::take(rest)?;
                let value = wide as $type;
                if value as u64 == wide { Ok(value) } else { Err(mismatch()) }
            }
        }
    )*};
}

as_u64!(i64, i32, usize);

impl StateValue for bool {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        u64::from(*self).put(out)
    }

    fn take(rest: &mut Bytes) -> Result<bool> {
        match u64::take(rest)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(mismatch()),
        }
    }
}

impl StateValue for () {
    fn put(&self, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn take(_: &mut Bytes) -> Result<()> {
        Ok(())
    }
}

impl StateValue for Bytes {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.len().put(out)?;
        out.extend_from_slice(self);
        Ok(())
    }

    fn take(rest: &mut Bytes) -> Result<Bytes> {
        let length = usize::take(rest)?;
        if length > rest.len() {
            return Err(mismatch());
        }
        Ok(rest.split_to(length))
    }
}

impl StateValue for Tensor {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        if matches!(self.dtype(), DType::Variant | DType::Resource) {
            let message = "an iterator holds an element with a component of";
            return Err(Error::unimplemented(format!(
                "{message} {} that has been read ahead, which cannot be saved",
                self.dtype()
            )));
        }
        Bytes::from(checkpoint::tensor::encode(self)?).put(out)
    }

    fn take(rest: &mut Bytes) -> Result<Tensor> {
        checkpoint::tensor::decode(&Bytes::take(rest)?).map_err(|_| mismatch())
    }
}

impl<T: StateValue> StateValue for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.len().put(out)?;
        self.iter().try_for_each(|value| value.put(out))
    }

    fn take(rest: &mut Bytes) -> Result<Vec<T>> {
        // The vector grows with the values, because the saved count may be wrong. Every value of a vector takes at
        // least one byte, so values are missing if no bytes are left.
        (0..usize::take(rest)?)
            .map(|_| if rest.is_empty() { Err(mismatch()) } else { T::take(rest) })
            .collect()
    }
}

impl<T: StateValue> StateValue for VecDeque<T> {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.len().put(out)?;
        self.iter().try_for_each(|value| value.put(out))
    }

    fn take(rest: &mut Bytes) -> Result<VecDeque<T>> {
        Vec::take(rest).map(VecDeque::from)
    }
}

impl<T: StateValue> StateValue for Option<T> {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.is_some().put(out)?;
        self.iter().try_for_each(|value| value.put(out))
    }

    fn take(rest: &mut Bytes) -> Result<Option<T>> {
        if bool::take(rest)? { T::take(rest).map(Some) } else { Ok(None) }
    }
}

impl<A: StateValue, B: StateValue> StateValue for (A, B) {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.0.put(out)?;
        self.1.put(out)
    }

    fn take(rest: &mut Bytes) -> Result<(A, B)> {
        Ok((A::take(rest)?, B::take(rest)?))
    }
}

/// An element that has been read ahead, or the error in its place.
impl StateValue for Result<Element> {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Ok(element) => {
                0i32.put(out)?;
                element.put(out)
            }
            Err(error) => {
                error.code().number().put(out)?;
                Bytes::from(error.to_string()).put(out)
            }
        }
    }

    fn take(rest: &mut Bytes) -> Result<Result<Element>> {
        match i32::take(rest)? {
            0 => Element::take(rest).map(Ok),
            number => {
                let message = String::from_utf8_lossy(&Bytes::take(rest)?).into_owned();
                Ok(Err(Error::new(Code::from_number(number), message)))
            }
        }
    }
}

/// The state of an iterator that reads one input, calls functions, and keeps a value.
pub(super) struct InputState<V = ()> {
    /// The input; `None` once it is not read any more.
    pub(super) input: Option<Boxed>,
    pub(super) functions: Vec<FunctionInstance>,
    pub(super) value: V,
}

impl<V> InputState<V> {
    /// Returns the state of an iterator without functions.
    pub(super) fn new(input: Boxed, value: V) -> InputState<V> {
        InputState { input: Some(input), functions: Vec::new(), value }
    }

    /// Returns the state of an iterator that calls `function`.
    pub(super) fn calling(input: Boxed, function: &FunctionInstance, value: V) -> InputState<V> {
        InputState { input: Some(input), functions: vec![function.clone()], value }
    }

    /// Returns the next element of the input; `None` if the input has ended.
    pub(super) fn next_input(&mut self, pull: &Pull) -> Result<Option<Element>> {
        match &mut self.input {
            Some(input) => input.next(pull),
            None => Ok(None),
        }
    }
}

impl<V: StateValue> ExchangedState for InputState<V> {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        self.functions.iter().try_for_each(|function| exchange.function(function))?;
        exchange.value(&mut self.value)?;
        exchange.input(&mut self.input)
    }
}

/// Saves the state of the iterator and of its pipeline.
///
/// # Errors
/// The errors of [`ExchangedState::exchange`], and of [`StateExchange::function`].
pub(super) fn save(
    iterator: &mut dyn DatasetIterator,
    ctx: &IteratorContext,
    policy: ExternalStatePolicy,
    pull: &Pull,
) -> Result<Bytes> {
    let mut exchange = StateExchange::save(pull, policy);
    iterator.exchange(&mut exchange)?;
    // The threads of the pipeline still pause, so the shared states belong to the same moment.
    let mut shared = ctx.pipeline().saved_states(pull)?;
    let mut own = exchange.finish()?;
    let mut whole = StateExchange::save(pull, policy);
    whole.value(&mut shared)?;
    whole.value(&mut own)?;
    whole.finish()
}

/// Makes an iterator with `make` in the pipeline of `ctx`, which must be new, and restores its state and the
/// pipeline's.
///
/// # Errors
/// The errors of [`ExchangedState::exchange`], of making iterators, and of functions whose results are iterated.
pub(super) fn restore(
    bytes: Bytes,
    ctx: &IteratorContext,
    make: impl FnOnce() -> Result<Boxed>,
    pull: &Pull,
) -> Result<Boxed> {
    let mut whole = StateExchange::restore(pull, bytes)?;
    let (mut shared, mut own) = (Vec::new(), Bytes::new());
    whole.value(&mut shared)?;
    whole.value(&mut own)?;
    whole.finish()?;
    let mut exchange = StateExchange::restore(pull, own)?;
    ctx.pipeline().begin_restore(shared);
    let mut iterator = make()?;
    iterator.exchange(&mut exchange)?;
    exchange.finish()?;
    // Making iterators has drawn seeds, so the states that the pipeline shares are set again.
    ctx.pipeline().end_restore(pull)?;
    Ok(iterator)
}
