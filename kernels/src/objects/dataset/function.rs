//! Functions that datasets apply to elements, with what they capture.

use super::ahead::Monitor;
use super::{Element, MakeContext, Pull, placed};
use device::cancel::Cancellation;
use device::function::Function;
use device::kernel::Step;
use device::rendezvous::LocalRendezvous;
use device::{Error, Result};
use graph::{Bool8, Code, DType, Tensor};
use std::fmt;
use std::sync::Arc;

/// Called once with the function's results.
pub(crate) type FunctionDone = Box<dyn FnOnce(Result<Element>) + Send>;

/// A function of tensors.
pub(crate) trait ElementFunction: Send + Sync + fmt::Debug {
    /// Calls it; returns at once. It ends early, with an error, when `cancellation` is. A call that fails cancels
    /// nothing but itself.
    fn start(&self, cancellation: &Arc<Cancellation>, arguments: Element, done: FunctionDone);

    /// The same function with new state.
    fn instance(&self) -> Result<Arc<dyn ElementFunction>>;
}

/// A function of a graph.
#[derive(Debug)]
pub(crate) struct GraphFunction(pub Arc<dyn Function>);

impl ElementFunction for GraphFunction {
    fn start(&self, cancellation: &Arc<Cancellation>, arguments: Element, done: FunctionDone) {
        // Elements are made between steps too, and so not as parts of any.
        let step = Step::new(0, Arc::new(LocalRendezvous::new()), cancellation.clone());
        let device = match self.0.device() {
            Ok(device) => device,
            Err(error) => return done(Err(error)),
        };
        self.0.call(
            &Arc::new(step),
            placed::arguments(arguments).collect(),
            Box::new(move |result| done(result.and_then(|values| placed::element(&device, values)))),
        );
    }

    fn instance(&self) -> Result<Arc<dyn ElementFunction>> {
        Ok(Arc::new(GraphFunction(self.0.instance()?)))
    }
}

/// A function and the arguments that it gets after those of the element.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) function: Arc<dyn ElementFunction>,
    pub(crate) arguments: Element,
}

impl Captured {
    /// The function as iterators of this pipeline call it.
    pub(crate) fn instance(&self, ctx: &MakeContext) -> Result<Instance> {
        Ok(Instance {
            function: ctx.pipeline().instance(&self.function)?,
            captured: self.arguments.clone(),
            prefix: ctx.prefix().to_owned(),
        })
    }
}

/// A function in the hands of an iterator.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    function: Arc<dyn ElementFunction>,
    captured: Element,
    /// The iterator's, for messages.
    prefix: String,
}

impl Instance {
    /// Calls the function; returns at once.
    pub(crate) fn start(&self, cancellation: &Arc<Cancellation>, mut arguments: Element, done: FunctionDone) {
        arguments.extend(self.captured.iter().cloned());
        let prefix = self.prefix.clone();
        let end = move |result: Result<Element>| done(result.map_err(|error| blame(error, &prefix)));
        self.function.start(cancellation, arguments, Box::new(end));
    }

    /// Calls the function and waits for its results.
    pub(crate) fn call(&self, pull: &Pull, arguments: Element) -> Result<Element> {
        let ended = Monitor::<Option<Result<Element>>>::new(None);
        let landing = ended.clone();
        self.start(
            &pull.cancellation,
            arguments,
            Box::new(move |result| landing.change(|state| *state = Some(result))),
        );
        ended.wait(&pull.cancellation, Option::take)?
    }

    /// Calls a predicate.
    pub(crate) fn test(&self, pull: &Pull, element: Element) -> Result<bool> {
        truth(&self.call(pull, element)?)
    }
}

/// The value of a predicate.
pub(crate) fn truth(results: &[Tensor]) -> Result<bool> {
    match results {
        [result] if result.dtype() == DType::Bool && result.num_elements() == 1 => {
            Ok(result.item::<Bool8>()?.get())
        }
        _ => device::invalid!("Filter predicate `f` must return a scalar bool."),
    }
}

/// What a function gave in place of an element: an error, or the end that `OutOfRange` stands for.
pub(crate) fn end_or_error(error: Error, preserve_cardinality: bool) -> Result<Option<Element>> {
    if error.code() != Code::OutOfRange {
        return Err(error);
    }
    if preserve_cardinality {
        // To guarantee that the dataset has as many elements as its input, this cannot be its end.
        device::invalid!("Function invocation produced OutOfRangeError: {error}");
    }
    Ok(None)
}

fn blame(error: Error, prefix: &str) -> Error {
    let kind = prefix.rsplit("::").next().unwrap_or(prefix);
    let said = |message: &str| {
        format!(
            "Error in user-defined function passed to {kind}Dataset transformation with iterator: {prefix}: \
             {message}"
        )
    };
    match error {
        // Cancellation is nobody's fault, and what has been blamed needs no more.
        Error::Derived(_) => error,
        Error::Node { code, node, message } if !message.starts_with(BLAMED) => {
            Error::Node { code, node, message: said(&message) }
        }
        Error::Status { code, message } if !message.starts_with(BLAMED) => {
            Error::Status { code, message: said(&message) }
        }
        Error::Graph(error) => Error::Status { code: error.code(), message: said(&error.to_string()) },
        other => other,
    }
}

const BLAMED: &str = "Error in user-defined function";
