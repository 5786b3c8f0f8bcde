//! Functions that datasets apply to elements, and their captured arguments.

use super::prefetch_iterator::Monitor;
use super::{Element, IteratorContext, Pull, on_device};
use device::cancel::Cancellation;
use device::function::Function;
use device::kernel::Step;
use device::rendezvous::LocalRendezvous;
use device::{Error, Result};
use graph::{Bool8, Code, DType, Tensor};
use std::fmt;
use std::sync::Arc;

/// The callback of a function call, called once with the results or the error.
pub(crate) type FunctionDone = Box<dyn FnOnce(Result<Element>) + Send>;

/// A function that maps tensors to tensors.
pub(crate) trait ElementFunction: Send + Sync + fmt::Debug {
    /// Starts a call and returns at once. Cancelling `cancellation` ends the call with an error; a failed call
    /// cancels no other call.
    fn start(&self, cancellation: &Arc<Cancellation>, arguments: Element, done: FunctionDone);

    /// Returns an instance of the same function whose kernels have new state.
    fn instance(&self) -> Result<Arc<dyn ElementFunction>>;

    /// Returns the name of an op in the function, or in a function that it calls, whose state lasts from call to call;
    /// `None` if there is none.
    fn stateful_op(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns whether the function is from the client's graph; error messages about such a function say that it is
    /// user-defined.
    fn is_user_defined(&self) -> bool {
        true
    }
}

/// A function of a graph's function library.
#[derive(Debug)]
pub(crate) struct GraphFunction(pub Arc<dyn Function>);

impl ElementFunction for GraphFunction {
    fn start(&self, cancellation: &Arc<Cancellation>, arguments: Element, done: FunctionDone) {
        // Each call is a step with id 0, because elements are also produced between the steps of the session.
        let step = Step::new(0, Arc::new(LocalRendezvous::new()), cancellation.clone());
        let device = match self.0.device() {
            Ok(device) => device,
            Err(error) => return done(Err(error)),
        };
        self.0.call(
            &Arc::new(step),
            on_device::arguments(arguments).collect(),
            Box::new(move |result| done(result.and_then(|values| on_device::element(&device, values)))),
        );
    }

    fn instance(&self) -> Result<Arc<dyn ElementFunction>> {
        Ok(Arc::new(GraphFunction(self.0.instance()?)))
    }

    fn stateful_op(&self) -> Option<Arc<str>> {
        self.0.stateful_op()
    }
}

/// A function with captured arguments, which are passed after the components of the element.
#[derive(Clone, Debug)]
pub(crate) struct CapturedFunction {
    pub(crate) function: Arc<dyn ElementFunction>,
    pub(crate) arguments: Element,
}

impl CapturedFunction {
    /// Returns the function's instance in the pipeline of `ctx`.
    pub(crate) fn instance(&self, ctx: &IteratorContext) -> Result<FunctionInstance> {
        Ok(FunctionInstance {
            function: ctx.pipeline().instance(&self.function)?,
            captured: self.arguments.clone(),
            prefix: ctx.prefix().to_owned(),
        })
    }
}

/// The instance of a captured function for one iterator, which calls it.
#[derive(Clone, Debug)]
pub(crate) struct FunctionInstance {
    function: Arc<dyn ElementFunction>,
    captured: Element,
    /// Names of the containing iterators, for error messages.
    prefix: String,
}

impl FunctionInstance {
    /// Starts a call and returns at once; an error in `done` names the iterator.
    pub(crate) fn start(&self, cancellation: &Arc<Cancellation>, mut arguments: Element, done: FunctionDone) {
        arguments.extend(self.captured.iter().cloned());
        if !self.function.is_user_defined() {
            return self.function.start(cancellation, arguments, done);
        }
        let prefix = self.prefix.clone();
        let end = move |result: Result<Element>| done(result.map_err(|error| name_iterator(error, &prefix)));
        self.function.start(cancellation, arguments, Box::new(end));
    }

    /// Returns the name of an op in the function whose state lasts from call to call.
    pub(crate) fn stateful_op(&self) -> Option<Arc<str>> {
        self.function.stateful_op()
    }

    /// Returns the names of the iterator that calls the function and of the iterators that contain it.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Calls the function and waits for its results.
    pub(crate) fn call(&self, pull: &Pull, arguments: Element) -> Result<Element> {
        let ended = Monitor::<Option<Result<Element>>>::new(None);
        let slot = ended.clone();
        self.start(
            &pull.cancellation,
            arguments,
            Box::new(move |result| slot.change(|state| *state = Some(result))),
        );
        ended.wait(&pull.cancellation, Option::take)?
    }

    /// Calls the function as a predicate and waits for the boolean that it returns.
    pub(crate) fn test(&self, pull: &Pull, element: Element) -> Result<bool> {
        predicate_value(&self.call(pull, element)?)
    }
}

/// Returns the boolean that a predicate returned.
///
/// # Errors
/// `InvalidArgument` unless the results are a single boolean.
pub(crate) fn predicate_value(results: &[Tensor]) -> Result<bool> {
    match results {
        [result] if result.dtype() == DType::Bool && result.num_elements() == 1 => {
            Ok(result.item::<Bool8>()?.get())
        }
        _ => device::invalid!("Filter predicate `f` must return a scalar bool."),
    }
}

/// Converts the error of a function call into the result of a pull: `OutOfRange` ends the dataset, and any other error
/// is returned.
///
/// # Errors
/// `InvalidArgument` for `OutOfRange` if `preserve_cardinality` promises that the dataset does not end before its
/// input.
pub(crate) fn end_or_error(error: Error, preserve_cardinality: bool) -> Result<Option<Element>> {
    if error.code() != Code::OutOfRange {
        return Err(error);
    }
    if preserve_cardinality {
        // Ending here would give the dataset fewer elements than its input, which `preserve_cardinality` excludes.
        device::invalid!("Function invocation produced OutOfRangeError: {error}");
    }
    Ok(None)
}

/// Adds the name of the iterator to the message of an error from a function.
fn name_iterator(error: Error, prefix: &str) -> Error {
    let kind = prefix.rsplit("::").next().unwrap_or(prefix);
    let with_prefix = |message: &str| {
        format!(
            "Error in user-defined function passed to {kind}Dataset transformation with iterator: {prefix}: \
             {message}"
        )
    };
    match error {
        // A derived error (a cancellation) does not originate in the function, and a message that begins with
        // [`FUNCTION_ERROR`] names its iterator already.
        Error::Derived(_) => error,
        Error::Node { code, node, message } if !message.starts_with(FUNCTION_ERROR) => {
            Error::Node { code, node, message: with_prefix(&message) }
        }
        Error::Status { code, message } if !message.starts_with(FUNCTION_ERROR) => {
            Error::Status { code, message: with_prefix(&message) }
        }
        Error::Graph(error) => Error::Status { code: error.code(), message: with_prefix(&error.to_string()) },
        other => other,
    }
}

const FUNCTION_ERROR: &str = "Error in user-defined function";
