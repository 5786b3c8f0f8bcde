//! What iterators are made with and pulled with.

use super::function::ElementFunction;
use device::Result;
use device::cancel::Cancellation;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// What all iterators under one root share, and what ends with it: the instances of functions, whose kernels
/// keep state from element to element, and through [`PerPipeline`] what datasets keep from epoch to epoch.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    functions: Mutex<FxHashMap<usize, Instances>>,
}

/// A function, held so that its address stays its own, and its instance.
type Instances = (Arc<dyn ElementFunction>, Arc<dyn ElementFunction>);

impl Pipeline {
    /// The instance of `function` that belongs to this pipeline.
    pub(crate) fn instance(&self, function: &Arc<dyn ElementFunction>) -> Result<Arc<dyn ElementFunction>> {
        let address = Arc::as_ptr(function).cast::<()>() as usize;
        if let Some((_, instance)) = self.functions.lock().get(&address) {
            return Ok(instance.clone());
        }
        // Made without the lock, which other iterators of the pipeline want; of two, the first stays.
        let made = function.instance()?;
        let mut functions = self.functions.lock();
        Ok(functions.entry(address).or_insert_with(|| (function.clone(), made)).1.clone())
    }
}

/// What a dataset keeps for each pipeline in which it is iterated.
pub(crate) struct PerPipeline<T>(Mutex<Vec<(Weak<Pipeline>, Arc<T>)>>);

impl<T> Default for PerPipeline<T> {
    fn default() -> PerPipeline<T> {
        PerPipeline(Mutex::default())
    }
}

impl<T> PerPipeline<T> {
    pub(crate) fn get(&self, pipeline: &Arc<Pipeline>, make: impl FnOnce() -> T) -> Arc<T> {
        let mut kept = self.0.lock();
        if let Some((_, found)) = kept.iter().find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(pipeline)))
        {
            return found.clone();
        }
        kept.retain(|(of, _)| of.strong_count() > 0);
        let made = Arc::new(make());
        kept.push((Arc::downgrade(pipeline), made.clone()));
        made
    }
}

impl<T> fmt::Debug for PerPipeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerPipeline({})", self.0.lock().len())
    }
}

/// Where a dataset stands in its pipeline.
pub(crate) type Place = Arc<[usize]>;

/// The place of an iterator that is being made: its pipeline, and the iterators around it.
#[derive(Clone, Debug)]
pub(crate) struct MakeContext {
    pipeline: Arc<Pipeline>,
    /// The names of the iterators around it, as messages show them.
    prefix: String,
    /// Which input it is within of each dataset around it that has several, the outermost first.
    place: Place,
    /// Within a dataset that a function gave for an element; such datasets have no places of their own.
    is_in_element: bool,
    depth: usize,
    /// Whether what runs in parallel keeps the order, where the dataset itself does not say.
    pub(crate) deterministic: bool,
}

impl MakeContext {
    /// The place of a root, in a pipeline of its own.
    pub(crate) fn root(deterministic: Option<bool>) -> MakeContext {
        MakeContext {
            pipeline: Arc::default(),
            prefix: "Iterator::Root".to_owned(),
            place: Arc::default(),
            is_in_element: false,
            depth: 0,
            deterministic: deterministic.unwrap_or(true),
        }
    }

    /// The place of inputs of the iterator over a dataset of this name.
    pub(crate) fn within(&self, name: &str) -> MakeContext {
        MakeContext { prefix: format!("{}::{name}", self.prefix), depth: self.depth + 1, ..self.clone() }
    }

    /// The place of input `i` of a dataset that has several.
    pub(crate) fn input(&self, i: usize) -> MakeContext {
        if self.is_in_element {
            return self.clone();
        }
        MakeContext { place: self.place.iter().copied().chain([i]).collect(), ..self.clone() }
    }

    /// The place of a dataset that a function gave for element `at`.
    pub(crate) fn element(&self, at: impl fmt::Display) -> MakeContext {
        MakeContext { is_in_element: true, ..self.within(&format!("[{at}]")) }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }
}

/// One pull of an element: it ends when it is cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pull {
    pub(crate) cancellation: Arc<Cancellation>,
}

impl Pull {
    /// The error of a pull that was cancelled: asked between elements, by what goes through many for one.
    pub(crate) fn check(&self) -> Result<()> {
        self.cancellation.check()
    }
}
